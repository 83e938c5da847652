package detectorconnector

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/pitcrew/pitcrew/collector/apiserver"
	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/job"
	"github.com/pitcrew/pitcrew/detector/series"
)

// Config of the connector. What a sample's resource says of cluster, node and boot goes before what is said here.
type Config struct {
	Cluster    string `mapstructure:"cluster"`
	Node       string `mapstructure:"node"`         // default: the host's name
	BootIDFile string `mapstructure:"boot_id_file"` // tells one boot of the node from the next

	RulesOverride      string        `mapstructure:"rules_override"` // YAML laid over the built-in tables
	StallFloor         time.Duration `mapstructure:"stall_floor"`
	StallFactor        float64       `mapstructure:"stall_factor"`
	SetupLimit         time.Duration `mapstructure:"setup_limit"`
	HeartbeatLimit     time.Duration `mapstructure:"heartbeat_limit"`
	MaxSeries          int           `mapstructure:"max_series"`
	PodResourcesSocket string        `mapstructure:"pod_resources_socket"` // empty: GPUs are not mapped to pods
	// Kubernetes is asked which GPU a DRA claim means and whose job a pod is.
	Kubernetes apiserver.Options `mapstructure:"kubernetes"`
	StateFile  string            `mapstructure:"state_file"` // open findings across restarts; empty: none

	Scope     Scope     `mapstructure:"scope"`     // whose series are judged: of one node by themselves, or of jobs by their ranks
	Anomalies Anomalies `mapstructure:"anomalies"` // dynamic thresholds
	Jobs      Jobs      `mapstructure:"jobs"`      // ranks against their peers, with scope jobs
}

// Scope says what the connector stands for.
type Scope string

// Scopes. An agent judges its own node; a gateway judges jobs, whose series the load-balancing exporter brings together.
const (
	ScopeNode Scope = "node"
	ScopeJobs Scope = "jobs"
)

// Anomalies bound and tune the statistical part. It judges what a table names (detector/anomaly), and nothing else.
type Anomalies struct {
	Enabled     bool    `mapstructure:"enabled"`
	AskedRate   float64 `mapstructure:"asked_rate"`   // false onsets per series-hour of one series, before corroboration
	MaxSeries   int     `mapstructure:"max_series"`   // beyond it the entity seen least recently is forgotten
	MaxContexts int     `mapstructure:"max_contexts"` // of series with an interval of a minute and more, about 10 KB each
	StateFile   string  `mapstructure:"state_file"`   // what was learnt and what is open, across restarts; empty: none
}

func createDefaultConfig() component.Config {
	return &Config{
		Cluster: "default", BootIDFile: "/proc/sys/kernel/random/boot_id", StallFloor: detector.DefaultStallFloor, StallFactor: detector.DefaultStallFactor, SetupLimit: detector.DefaultSetupLimit,
		HeartbeatLimit: detector.DefaultHeartbeatLimit, MaxSeries: detector.DefaultMaxSeries,
		PodResourcesSocket: "/var/lib/kubelet/pod-resources/kubelet.sock",
		Kubernetes:         apiserver.Options{Server: "auto"},
		Scope:              ScopeNode,
		Anomalies:          Anomalies{Enabled: true, AskedRate: series.AskedShipped, MaxSeries: 4096, MaxContexts: 64},
		Jobs:               Jobs{MaxJobs: job.DefaultMaxJobs, MaxRanks: job.DefaultMaxRanks, Absent: job.DefaultAbsent, Forget: job.DefaultForget},
	}
}

// Validate reports all faults of the block at once.
func (a *Anomalies) Validate() error {
	if !a.Enabled {
		return nil
	}
	var errs []error
	if _, err := series.New(series.Config{Asked: a.AskedRate}); err != nil || a.AskedRate <= 0 {
		errs = append(errs, fmt.Errorf("asked_rate must be above 0 and at most 600 onsets per series-hour, not %g", a.AskedRate))
	}
	if a.MaxSeries < minSeries {
		errs = append(errs, fmt.Errorf("max_series must be at least %d (one node's GPUs and ranks), not %d", minSeries, a.MaxSeries))
	}
	if a.MaxContexts < 1 {
		errs = append(errs, fmt.Errorf("max_contexts must be at least 1, not %d", a.MaxContexts))
	}
	return errors.Join(errs...)
}

const minSeries = 128

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	positive := map[string]bool{
		"stall_floor": c.StallFloor > 0, "setup_limit": c.SetupLimit > 0, "heartbeat_limit": c.HeartbeatLimit > 0, "max_series": c.MaxSeries > 0,
	}
	for _, name := range []string{"stall_floor", "setup_limit", "heartbeat_limit", "max_series"} {
		if !positive[name] {
			errs = append(errs, fmt.Errorf("%s must be above 0", name))
		}
	}
	if c.StallFactor < 1 {
		errs = append(errs, fmt.Errorf("stall_factor must be at least 1, not %g", c.StallFactor))
	}
	switch c.Scope {
	case ScopeNode:
	case ScopeJobs:
		errs = append(errs, c.Jobs.Validate())
	default:
		errs = append(errs, fmt.Errorf("scope %q: node or jobs", c.Scope))
	}
	if c.Cluster == "" {
		errs = append(errs, errors.New("cluster must not be empty"))
	}
	if c.BootIDFile == "" {
		errs = append(errs, errors.New("boot_id_file must not be empty"))
	}
	return errors.Join(errs...)
}
