package torchreceiver

import (
	"errors"
	"path/filepath"
	"time"
)

// minInterval bounds how often the rings are read: a reading of all ranks of a node costs some tens of microseconds.
const minInterval = 10 * time.Millisecond

// Config is the receiver's configuration.
type Config struct {
	// KubeletRoot is below which the pods' directories lie. With the extension pilot in the same collector, its
	// kubelet_root is used instead: both look through one pair of eyes.
	KubeletRoot string `mapstructure:"kubelet_root"`
	// Interval at which the rings are read.
	Interval time.Duration `mapstructure:"interval"`
	// Cluster and Node become k8s.cluster.name and k8s.node.name.
	Cluster string `mapstructure:"cluster"`
	Node    string `mapstructure:"node"`
}

// NewDefaultConfig is the configuration for a node agent of a cluster with kubeadm's paths.
func NewDefaultConfig() *Config {
	return &Config{KubeletRoot: "/var/lib/kubelet", Interval: 200 * time.Millisecond}
}

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.KubeletRoot) {
		errs = append(errs, errors.New("kubelet_root must be an absolute path, for example /var/lib/kubelet"))
	}
	if c.Interval < minInterval {
		errs = append(errs, errors.New("interval must be at least 10ms"))
	}
	return errors.Join(errs...)
}
