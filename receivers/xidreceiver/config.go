package xidreceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
)

// Config is the receiver's configuration.
type Config struct {
	// Path is the kernel log: /dev/kmsg, or a FIFO or file in its record format.
	Path string `mapstructure:"path"`
	// FabricPath is the fabric manager's log. Empty reads none; one that does not exist is read when it appears.
	FabricPath string `mapstructure:"fabric_path"`
	// BootIDPath is read for the id of this boot.
	BootIDPath string `mapstructure:"boot_id_path"`
	// StorageID names a storage extension in which the position is kept. Without
	// one, a restart takes what is younger than NewsWindow for news once more.
	StorageID *component.ID `mapstructure:"storage"`
	// NewsWindow is how old a line may be, when there is no stored position, and
	// still be news. Older ones are emitted as history.
	NewsWindow time.Duration `mapstructure:"news_window"`
	// UserRecords takes records that a process wrote (facility other than 0) for the driver's, as a test needs it. Whoever may
	// write to /dev/kmsg can make up a fault then; the kernel gives facility 0 to nobody but itself.
	UserRecords bool `mapstructure:"user_records"`
	// Proc is where the host's /proc is mounted: the process that a line names is looked for there, and so its pod.
	Proc string `mapstructure:"proc"`
	// Cluster and Node become resource attributes; empty ones are left out.
	Cluster string `mapstructure:"cluster"`
	Node    string `mapstructure:"node"`
}

func createDefaultConfig() component.Config {
	return &Config{
		Path:       "/dev/kmsg",
		BootIDPath: "/proc/sys/kernel/random/boot_id",
		Proc:       "/proc",
		NewsWindow: 10 * time.Minute,
	}
}

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Path) {
		errs = append(errs, errors.New("path: an absolute path is wanted, such as /dev/kmsg"))
	}
	if c.FabricPath != "" && !filepath.IsAbs(c.FabricPath) {
		errs = append(errs, fmt.Errorf("fabric_path must be absolute, got %q; use /var/log/fabricmanager.log, or nothing to read none", c.FabricPath))
	}
	if !filepath.IsAbs(c.BootIDPath) {
		errs = append(errs, errors.New("boot_id_path: an absolute path is wanted, such as /proc/sys/kernel/random/boot_id"))
	}
	if c.NewsWindow < 0 {
		errs = append(errs, errors.New("news_window: must not be negative"))
	}
	return errors.Join(errs...)
}
