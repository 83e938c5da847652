package detectorconnector

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"
)

// Type is the connector's name in configurations.
var Type = component.MustNewType("detector")

// NewFactory makes the connector's factory.
func NewFactory() connector.Factory {
	s := &shared{cores: map[*Config]*core{}}
	return connector.NewFactory(Type, createDefaultConfig,
		connector.WithMetricsToLogs(func(_ context.Context, set connector.Settings, cfg component.Config, next consumer.Logs) (connector.Metrics, error) {
			if c := cfg.(*Config); c.Scope == ScopeJobs {
				return newJobs(set, c, next)
			}
			c, err := s.get(set, cfg.(*Config))
			return &metricsSkin{skin{c, next}}, err
		}, component.StabilityLevelAlpha),
		connector.WithLogsToLogs(func(_ context.Context, set connector.Settings, cfg component.Config, next consumer.Logs) (connector.Logs, error) {
			if cfg.(*Config).Scope == ScopeJobs {
				return nil, errors.New("scope jobs reads metrics and no logs: take the connector out of the pipelines of logs")
			}
			c, err := s.get(set, cfg.(*Config))
			return &logsSkin{skin{c, next}}, err
		}, component.StabilityLevelAlpha),
	)
}

// shared hands the instances of one configuration the same core.
type shared struct {
	mu    sync.Mutex
	cores map[*Config]*core
}

func (s *shared) get(set connector.Settings, cfg *Config) (*core, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.cores[cfg]; ok {
		c.instances++
		return c, nil
	}
	c, err := newCore(set, cfg)
	if err != nil {
		return nil, err
	}
	c.release = func() (last bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.instances--; c.instances == 0 {
			delete(s.cores, cfg)
		}
		return c.instances == 0
	}
	c.instances = 1
	s.cores[cfg] = c
	return c, nil
}

// skin is one instance's way out.
type skin struct {
	*core
	next consumer.Logs
}

func (skin) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }
