package torchreceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/pitcrew/pitcrew/hook"
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
	// Budget of each pod. With the extension pilot in the same collector, its budget is used instead.
	Budget hook.Budget `mapstructure:"budget"`
	// DetailRanks is how many ranks of the node are read in full. Of the others, only their life and their step are reported.
	DetailRanks int `mapstructure:"detail_ranks"`
	// NodeRecords bounds the steps that are read from the rings of all pods, shared fairly among the pods.
	NodeRecords hook.Rate `mapstructure:"node_records"`
	// MemoryLimitMiB is the memory limit of the process, in MiB. Above three quarters of it, pods are shed one by one. 0 sheds none.
	MemoryLimitMiB int `mapstructure:"memory_limit_mib"`
}

// NewDefaultConfig is the configuration for a node agent of a cluster with kubeadm's paths.
func NewDefaultConfig() *Config {
	return &Config{
		KubeletRoot: "/var/lib/kubelet", Interval: 200 * time.Millisecond, DetailRanks: 128, NodeRecords: hook.Rate{PerSecond: 4000, Burst: 16000},
	}
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
	if c.DetailRanks < 1 {
		errs = append(errs, fmt.Errorf("detail_ranks must be at least 1, got %d", c.DetailRanks))
	}
	if c.NodeRecords.PerSecond <= 0 || c.NodeRecords.Burst < 1 {
		errs = append(errs, fmt.Errorf("node_records: per_second must be above 0 and burst at least 1, got %v and %v", c.NodeRecords.PerSecond, c.NodeRecords.Burst))
	}
	if c.MemoryLimitMiB < 0 {
		errs = append(errs, fmt.Errorf("memory_limit_mib must not be negative, got %d", c.MemoryLimitMiB))
	}
	errs = append(errs, c.Budget.Validate())
	return errors.Join(errs...)
}
