package fabricreceiver

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
)

// Type is the receiver's name in configurations.
var Type = component.MustNewType("fabric")

// NewFactory makes the receiver's factory. The metrics and the logs of one configuration are one receiver's.
func NewFactory() receiver.Factory {
	s := &shared{by: map[*Config]*fabricReceiver{}}
	return receiver.NewFactory(Type, createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return s.get(set, cfg.(*Config), func(r *fabricReceiver) { r.metrics = next }), nil
		}, component.StabilityLevelAlpha),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			return s.get(set, cfg.(*Config), func(r *fabricReceiver) { r.logs = next }), nil
		}, component.StabilityLevelAlpha))
}

type shared struct {
	mu sync.Mutex
	by map[*Config]*fabricReceiver
}

func (s *shared) get(set receiver.Settings, cfg *Config, with func(*fabricReceiver)) *fabricReceiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.by[cfg]
	if r == nil {
		r = newReceiver(set, cfg)
		r.forget = func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.by, cfg)
		}
		s.by[cfg] = r
	}
	with(r)
	return r
}
