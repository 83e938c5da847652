package fabricreceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
)

// Config is the receiver's configuration.
type Config struct {
	// Sys is where the host's /sys is mounted.
	Sys string `mapstructure:"sys"`
	// StateInterval is between looks at the ports' states, Interval between readings of their counters.
	StateInterval time.Duration `mapstructure:"state_interval"`
	Interval      time.Duration `mapstructure:"interval"`
	// Cluster and Node become resource attributes; empty ones are left out.
	Cluster string `mapstructure:"cluster"`
	Node    string `mapstructure:"node"`
}

func createDefaultConfig() component.Config {
	return &Config{Sys: "/sys", StateInterval: time.Second, Interval: 15 * time.Second}
}

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Sys) {
		errs = append(errs, errors.New("sys: an absolute path is wanted, such as /sys"))
	}
	if c.StateInterval < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("state_interval: %v is less than 100ms; each look asks the adapter's firmware", c.StateInterval))
	}
	if c.Interval < c.StateInterval {
		errs = append(errs, fmt.Errorf("interval: %v is less than state_interval", c.Interval))
	}
	return errors.Join(errs...)
}
