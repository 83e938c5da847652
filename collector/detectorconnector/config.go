package detectorconnector

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/pitcrew/pitcrew/detector"
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
	StateFile          string        `mapstructure:"state_file"`           // open findings across restarts; empty: none
}

func createDefaultConfig() component.Config {
	return &Config{
		Cluster: "default", BootIDFile: "/proc/sys/kernel/random/boot_id", StallFloor: detector.DefaultStallFloor, StallFactor: detector.DefaultStallFactor, SetupLimit: detector.DefaultSetupLimit,
		HeartbeatLimit: detector.DefaultHeartbeatLimit, MaxSeries: detector.DefaultMaxSeries,
		PodResourcesSocket: "/var/lib/kubelet/pod-resources/kubelet.sock",
	}
}

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
	if c.Cluster == "" {
		errs = append(errs, errors.New("cluster must not be empty"))
	}
	if c.BootIDFile == "" {
		errs = append(errs, errors.New("boot_id_file must not be empty"))
	}
	return errors.Join(errs...)
}
