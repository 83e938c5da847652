package gpuprocessreceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
)

// Config is the receiver's configuration.
type Config struct {
	// Proc is where the host's /proc is mounted.
	Proc string `mapstructure:"proc"`
	// ContainerLogs is the kubelet's folder of links to container logs: a container's pod and name stand in their names.
	ContainerLogs string `mapstructure:"container_logs"`
	// Interval is between looks for new processes.
	Interval time.Duration `mapstructure:"interval"`
	// MaxLooks is how many processes are looked into at once; the others have their turn at the next look.
	MaxLooks int `mapstructure:"max_looks"`
	// Cluster and Node become resource attributes; empty ones are left out.
	Cluster string `mapstructure:"cluster"`
	Node    string `mapstructure:"node"`
}

func createDefaultConfig() component.Config {
	return &Config{Proc: "/proc", ContainerLogs: "/var/log/containers", Interval: 5 * time.Second, MaxLooks: 512}
}

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Proc) {
		errs = append(errs, errors.New("proc: an absolute path is wanted, such as /proc"))
	}
	if c.ContainerLogs != "" && !filepath.IsAbs(c.ContainerLogs) {
		errs = append(errs, errors.New("container_logs: an absolute path is wanted, such as /var/log/containers"))
	}
	if c.Interval < time.Second {
		errs = append(errs, fmt.Errorf("interval: %v is less than a second; to look costs processor time", c.Interval))
	}
	if c.MaxLooks < 1 {
		errs = append(errs, errors.New("max_looks: must be at least 1"))
	}
	return errors.Join(errs...)
}
