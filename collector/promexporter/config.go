package promexporter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
)

// Families that can be served.
const (
	AllFamilies     = "all"
	DCGMFamilies    = "dcgm"    // the names that dcgm-exporter serves: DCGM_FI_*, DCGM_EXP_*
	PitcrewFamilies = "pitcrew" // all others
)

// FamilySets lists them.
var FamilySets = []string{AllFamilies, DCGMFamilies, PitcrewFamilies}

// dcgmPrefix starts the name of each family of dcgm-exporter's set, before and after translation.
const dcgmPrefix = "DCGM_"

// Config of the exporter. The keys are those of the stock exporter, so that an overlay written for it keeps working.
type Config struct {
	confighttp.ServerConfig `mapstructure:",squash"`

	// Families chooses what is served: all, dcgm or pitcrew. What is not served is not kept.
	Families string `mapstructure:"families"`
	// Namespace is put before each name.
	Namespace string `mapstructure:"namespace"`
	// ConstLabels are added to each series.
	ConstLabels map[string]string `mapstructure:"const_labels"`
	// SendTimestamps adds each value's own time. Every new value then changes the page, even if it is equal to the last.
	SendTimestamps bool `mapstructure:"send_timestamps"`
	// MetricExpiration is how long a series is served after its last value.
	MetricExpiration time.Duration `mapstructure:"metric_expiration"`
	// ResourceToTelemetry turns the resource's attributes into labels.
	ResourceToTelemetry ResourceSettings `mapstructure:"resource_to_telemetry_conversion"`
	// EnableOpenMetrics serves OpenMetrics to a scraper that asks for it.
	EnableOpenMetrics bool `mapstructure:"enable_open_metrics"`
	// WithoutScopeInfo leaves the labels otel_scope_* off.
	WithoutScopeInfo bool `mapstructure:"without_scope_info"`
	// AddMetricSuffixes adds the unit and _total to names.
	AddMetricSuffixes bool `mapstructure:"add_metric_suffixes"`
}

// ResourceSettings are of resource_to_telemetry_conversion.
type ResourceSettings struct {
	Enabled bool `mapstructure:"enabled"`
	// ExcludeServiceAttributes leaves service.name, service.namespace and service.instance.id off, which are the labels job and instance.
	ExcludeServiceAttributes bool `mapstructure:"exclude_service_attributes"`
}

func createDefaultConfig() component.Config {
	return &Config{ServerConfig: confighttp.NewDefaultServerConfig(), Families: AllFamilies, MetricExpiration: 5 * time.Minute, AddMetricSuffixes: true}
}

// Validate reports every setting that cannot work.
func (c *Config) Validate() error {
	var errs []error
	if strings.TrimSpace(c.NetAddr.Endpoint) == "" {
		errs = append(errs, errors.New("endpoint: empty: set host:port"))
	}
	if !slices.Contains(FamilySets, c.Families) {
		errs = append(errs, fmt.Errorf("families: unknown %q: set %s", c.Families, strings.Join(FamilySets, ", ")))
	}
	if c.MetricExpiration <= 0 {
		errs = append(errs, fmt.Errorf("metric_expiration: must be positive, got %v", c.MetricExpiration))
	}
	return errors.Join(errs...)
}

// serves reports whether a metric of this name is served. The name is the one before translation.
func (c *Config) serves(metric string) bool {
	switch c.Families {
	case DCGMFamilies:
		return strings.HasPrefix(metric, dcgmPrefix)
	case PitcrewFamilies:
		return !strings.HasPrefix(metric, dcgmPrefix)
	}
	return true
}
