package torchreceiver

import (
	"context"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
)

// Type is the receiver's name in a collector's configuration.
var Type = component.MustNewType("torch")

// ScopeName is the instrumentation scope of what this receiver emits.
const ScopeName = "github.com/pitcrew/pitcrew/receivers/torchreceiver"

// NewFactory returns the factory of the torch receiver. A receiver named in a metrics and in a logs pipeline is one instance.
func NewFactory() receiver.Factory {
	s := &shared{all: map[*Config]*torchReceiver{}}
	return receiver.NewFactory(Type,
		func() component.Config { return NewDefaultConfig() },
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return s.attach(set, cfg.(*Config), func(r *torchReceiver) { r.metrics = next })
		}, component.StabilityLevelAlpha),
		receiver.WithLogs(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Logs) (receiver.Logs, error) {
			return s.attach(set, cfg.(*Config), func(r *torchReceiver) { r.logs = next })
		}, component.StabilityLevelAlpha),
	)
}

// shared gives each configuration one receiver, whatever number of pipelines names it.
type shared struct {
	mu  sync.Mutex
	all map[*Config]*torchReceiver
}

func (s *shared) attach(set receiver.Settings, cfg *Config, use func(*torchReceiver)) (*torchReceiver, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.all[cfg]
	if !ok {
		var err error
		r, err = newReceiver(set, cfg, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.all, cfg)
		})
		if err != nil {
			return nil, err
		}
		s.all[cfg] = r
	}
	use(r)
	return r, nil
}
