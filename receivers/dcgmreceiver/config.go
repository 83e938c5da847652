package dcgmreceiver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Modes of reaching DCGM.
const (
	ModeStandalone = "standalone" // a host engine of its own process, at Address
	ModeEmbedded   = "embedded"   // a host engine inside this process
	ModeReplay     = "replay"     // a recorded node, from File; needs neither DCGM nor cgo
)

// minInterval bounds how often the driver is asked.
const minInterval = 100 * time.Millisecond

// Config is the receiver's configuration.
type Config struct {
	// Mode is standalone, embedded or replay.
	Mode string `mapstructure:"mode"`
	// Address of the host engine: host:port, /path/of.socket, or tcp://, unix://, vsock:// (DCGM 4.5 and later).
	Address string `mapstructure:"address"`
	// Library is the path of libdcgm.so.4; empty lets the loader look for it.
	Library string `mapstructure:"library"`
	// NVMLLibrary is the path of libnvidia-ml.so.1, which is asked for the UUIDs of MIG devices that DCGM does not tell; empty lets the
	// loader look for it.
	NVMLLibrary string `mapstructure:"nvml_library"`
	// File is what mode replay plays.
	File string `mapstructure:"file"`
	// Interval at which the fields that tell of faults are read; the others have their own, never shorter.
	Interval time.Duration `mapstructure:"interval"`
	// MaxInterval bounds how rarely any field is read and sent on, where Interval is not longer. It has to stay below the age at which
	// the agent's Prometheus endpoint takes a series for ended.
	MaxInterval time.Duration `mapstructure:"max_interval"`
	// CallTimeout is how long the engine may take to answer before its data counts as stale.
	CallTimeout time.Duration `mapstructure:"call_timeout"`
	// RetryMax bounds the wait between two attempts to connect.
	RetryMax time.Duration `mapstructure:"retry_max"`
	// ExpectedGPUs is how many GPUs the node should have; 0 takes the most seen since the start.
	ExpectedGPUs int `mapstructure:"expected_gpus"`
	// DCGMNames adds each value under its DCGM_FI_* name, with the labels of dcgm-exporter.
	DCGMNames bool `mapstructure:"dcgm_names"`
	// DCGMNamesInterval is the least time between two values of a field under that name: they are for scrapers, who come seldom.
	DCGMNamesInterval time.Duration `mapstructure:"dcgm_names_interval"`
	// Policies are the conditions whose violations become log events.
	Policies []string `mapstructure:"policies"`
	// ExtraFields are ids of fields to read beyond the core ones.
	ExtraFields []uint16 `mapstructure:"extra_fields"`
	// Cluster and Node become k8s.cluster.name and k8s.node.name.
	Cluster string `mapstructure:"cluster"`
	Node    string `mapstructure:"node"`
}

// NewDefaultConfig returns the configuration that works beside a host engine on the same node.
func NewDefaultConfig() *Config {
	return &Config{
		Mode:        ModeStandalone,
		Address:     "localhost:5555",
		Interval:    time.Second,
		MaxInterval: 15 * time.Second,
		CallTimeout: 5 * time.Second,
		RetryMax:    30 * time.Second,
		DCGMNames:   true,

		DCGMNamesInterval: 10 * time.Second,

		Policies: []string{"xid", "dbe"},
	}
}

// Validate names everything that is wrong.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	switch c.Mode {
	case ModeEmbedded:
	case ModeStandalone:
		if c.Address == "" {
			fail("address: empty: give the host engine's host:port or socket path, or set mode: embedded")
		}
	case ModeReplay:
		if c.File == "" {
			fail("file: empty: mode replay needs a recording")
		}
	default:
		fail("mode: unknown %q: want standalone, embedded or replay", c.Mode)
	}
	if c.Interval < minInterval {
		fail("interval: %v is below %v", c.Interval, minInterval)
	}
	if c.MaxInterval <= 0 {
		fail("max_interval: %v is not positive", c.MaxInterval)
	}
	if c.CallTimeout <= 0 {
		fail("call_timeout: %v is not positive", c.CallTimeout)
	}
	if c.RetryMax <= 0 {
		fail("retry_max: %v is not positive", c.RetryMax)
	}
	if c.DCGMNamesInterval < 0 {
		fail("dcgm_names_interval: %v is negative", c.DCGMNamesInterval)
	}
	if c.ExpectedGPUs < 0 {
		fail("expected_gpus: %d is negative", c.ExpectedGPUs)
	}
	for _, p := range c.Policies {
		if !slices.Contains(Policies, p) {
			fail("policies: unknown %q: want some of %s", p, strings.Join(Policies, ", "))
		}
	}
	for _, id := range c.ExtraFields {
		if f, ok := FieldByID(id); !ok {
			fail("extra_fields: %d is not in the table: see docs/dcgm.md", id)
		} else if !f.Optional {
			fail("extra_fields: %d (%s) is read anyway", id, f.DCGM)
		}
	}
	return errors.Join(errs...)
}

// fields returns the rows of the table that are read.
func (c *Config) fields() []Field {
	var out []Field
	for _, f := range Fields {
		if !f.Optional || slices.Contains(c.ExtraFields, f.ID) {
			out = append(out, f)
		}
	}
	return out
}
