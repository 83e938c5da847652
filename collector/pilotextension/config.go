package pilotextension

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configopaque"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/hook"
)

// Config of the extension.
type Config struct {
	// Node is this node's name, the one that commands are addressed to.
	Node string `mapstructure:"node"`
	// KubeletRoot is below which the pods' directories lie.
	KubeletRoot string `mapstructure:"kubelet_root"`
	// Proc is where the host's /proc is mounted.
	Proc string `mapstructure:"proc"`
	// Budget is what each pod may make the agent spend; docs/isolation.md has the units and defaults.
	Budget hook.Budget `mapstructure:"budget"`
	// Beat is how often the agent says that it is there.
	Beat time.Duration `mapstructure:"beat"`

	URL       string              `mapstructure:"url"`     // of NATS
	Cluster   string              `mapstructure:"cluster"` // name of the Kubernetes cluster
	Creds     string              `mapstructure:"creds"`   // path of a NATS credentials file
	Token     configopaque.String `mapstructure:"token"`
	TokenFile string              `mapstructure:"token_file"` // path of a service account token for NATS
	// Replicas of streams and buckets that this extension has to make.
	Replicas int `mapstructure:"replicas"`
}

func createDefaultConfig() component.Config {
	return &Config{KubeletRoot: "/var/lib/kubelet", Proc: "/proc", Beat: 500 * time.Millisecond, URL: bus.DefaultURL, Cluster: bus.DefaultCluster, Replicas: 1}
}

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("node must not be empty: the name of this Kubernetes node"))
	}
	if !filepath.IsAbs(c.KubeletRoot) {
		errs = append(errs, errors.New("kubelet_root must be an absolute path, for example /var/lib/kubelet"))
	}
	if !filepath.IsAbs(c.Proc) {
		errs = append(errs, fmt.Errorf("proc must be an absolute path, for example /proc, got %q", c.Proc))
	}
	errs = append(errs, c.Budget.Validate())
	if c.Beat < 50*time.Millisecond {
		errs = append(errs, errors.New("beat must be at least 50ms"))
	}
	if c.URL == "" {
		errs = append(errs, errors.New("url must not be empty: nats://host:4222"))
	}
	if c.Cluster == "" {
		errs = append(errs, errors.New("cluster must not be empty"))
	}
	if c.Replicas < 1 {
		errs = append(errs, errors.New("replicas must be at least 1"))
	}
	return errors.Join(errs...)
}
