package natsexporter

import (
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configopaque"

	"github.com/pitcrew/pitcrew/bus"
)

// Config of the exporter.
type Config struct {
	URL          string              `mapstructure:"url"`
	Cluster      string              `mapstructure:"cluster"`
	Node         string              `mapstructure:"node"`  // only for the connection's name
	Spool        string              `mapstructure:"spool"` // folder for findings without an acknowledgement; empty: memory
	Creds        string              `mapstructure:"creds"` // path of a NATS credentials file
	Token        configopaque.String `mapstructure:"token"`
	TokenFile    string              `mapstructure:"token_file"`    // path of a service account token for NATS
	Replicas     int                 `mapstructure:"replicas"`      // of streams that this exporter has to make
	FlushTimeout time.Duration       `mapstructure:"flush_timeout"` // at shutdown
}

func createDefaultConfig() component.Config {
	return &Config{URL: bus.DefaultURL, Cluster: bus.DefaultCluster, Replicas: 1, FlushTimeout: 3 * time.Second}
}

// Validate reports all faults at once.
func (c *Config) Validate() error {
	var errs []error
	if c.URL == "" {
		errs = append(errs, errors.New("url must not be empty: nats://host:4222"))
	}
	if c.Cluster == "" {
		errs = append(errs, errors.New("cluster must not be empty"))
	}
	if c.Replicas < 1 {
		errs = append(errs, errors.New("replicas must be at least 1"))
	}
	if c.FlushTimeout <= 0 {
		errs = append(errs, errors.New("flush_timeout must be above 0"))
	}
	return errors.Join(errs...)
}
