package podlabels

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/processor"

	"github.com/pitcrew/pitcrew/collector/apiserver"
	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/collector/promexporter"
)

// Type is the processor's name in configurations.
var Type = component.MustNewType("podlabels")

// Config of the processor.
type Config struct {
	// PodResourcesSocket is the kubelet's; empty: no series is given a pod.
	PodResourcesSocket string `mapstructure:"pod_resources_socket"`
	// Kubernetes is asked which GPU a DRA claim means and whose job a pod is; Node is the node that is asked about.
	Kubernetes apiserver.Options `mapstructure:"kubernetes"`
	Node       string            `mapstructure:"node"`
	// Interval is the least time between two values of a series; what comes between is left off. 0 passes every value. A scraper takes
	// the newest every few seconds; ranks are sampled ten times a second for the detector's sake.
	Interval time.Duration `mapstructure:"interval"`
	// Families is what the endpoint serves: all, dcgm or pitcrew. What it does not serve is not passed on.
	Families string `mapstructure:"families"`
}

// Validate refuses what cannot be meant.
func (c *Config) Validate() error {
	if c.Interval < 0 {
		return fmt.Errorf("interval: %v is negative", c.Interval)
	}
	if !slices.Contains(promexporter.FamilySets, c.Families) {
		return fmt.Errorf("families: unknown %q: set %s", c.Families, strings.Join(promexporter.FamilySets, ", "))
	}
	return nil
}

// NewFactory makes the processor's factory.
func NewFactory() processor.Factory {
	return processor.NewFactory(Type,
		func() component.Config {
			return &Config{PodResourcesSocket: "/var/lib/kubelet/pod-resources/kubelet.sock", Families: promexporter.AllFamilies, Kubernetes: apiserver.Options{Server: "auto"}}
		},
		processor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			conf := cfg.(*Config)
			api := conf.Kubernetes
			if api.Node = conf.Node; api.Node == "" && api.Server == "auto" {
				api.Server = "" // of no node in particular: nothing can be asked
			}
			pods, err := podresources.Open(conf.PodResourcesSocket, api, set.Logger)
			if err != nil {
				return nil, fmt.Errorf("kubernetes: %w", err)
			}
			l := newLabeller(next, conf.Interval, pods, time.Now)
			l.log, l.families = set.Logger, conf.Families
			return l, nil
		}, component.StabilityLevelAlpha))
}
