package promrulesconnector

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
)

// Config of the connector.
type Config struct {
	Files     []string      `mapstructure:"files"`      // rule files, or patterns of them; empty ones are left out, none at all: the connector does nothing
	Cluster   string        `mapstructure:"cluster"`    // of findings whose labels name none
	Node      string        `mapstructure:"node"`       // who speaks, default: the host's name
	Window    time.Duration `mapstructure:"window"`     // how far back a rule may look
	Interval  time.Duration `mapstructure:"interval"`   // of groups that say none
	MaxSeries int           `mapstructure:"max_series"` // of metrics that a rule asks for
	StateFile string        `mapstructure:"state_file"` // firing alerts across restarts; empty: none
}

func createDefaultConfig() component.Config {
	return &Config{Cluster: "default", Window: 15 * time.Minute, Interval: 15 * time.Second, MaxSeries: 50_000}
}

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Window < time.Minute || c.Window > 24*time.Hour {
		errs = append(errs, fmt.Errorf("window must be from 1m to 24h, not %s: it is kept in memory", c.Window))
	}
	if c.Interval < time.Second {
		errs = append(errs, fmt.Errorf("interval must be at least 1s, not %s", c.Interval))
	}
	if c.MaxSeries < 1 {
		errs = append(errs, fmt.Errorf("max_series must be above 0, not %d", c.MaxSeries))
	}
	for _, f := range c.Files {
		if _, err := filepath.Match(f, ""); err != nil {
			errs = append(errs, fmt.Errorf("files: pattern %q: %w", f, err))
		}
	}
	return errors.Join(errs...)
}

// found gives the files that the patterns name. A pattern without a file is an error: rules that are silently absent never fire.
func (c *Config) found() (out []string, err error) {
	for _, pattern := range c.Files {
		if pattern == "" {
			continue
		}
		files, bad := filepath.Glob(pattern)
		if bad == nil && len(files) == 0 {
			if _, bad = os.Stat(pattern); bad == nil {
				files = []string{pattern}
			}
		}
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("rule files %s: %w", pattern, bad))
		}
		out = append(out, files...)
	}
	return out, err
}
