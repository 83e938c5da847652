package statementsextension

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/extension"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// Type is the extension's name in configurations.
var Type = component.MustNewType("statements")

const (
	retryEvery = 200 * time.Millisecond // after which a broken watch is begun again
	ahead      = 10 * time.Minute       // that a person's clock may be of the server's
)

// Config of the extension.
type Config struct {
	URL       string              `mapstructure:"url"`     // of NATS
	Cluster   string              `mapstructure:"cluster"` // name of the Kubernetes cluster
	Node      string              `mapstructure:"node"`    // the gateway's own name, for the connection's
	Creds     string              `mapstructure:"creds"`   // path of a NATS credentials file
	Token     configopaque.String `mapstructure:"token"`
	TokenFile string              `mapstructure:"token_file"` // path of a service account token for NATS
	Replicas  int                 `mapstructure:"replicas"`   // of streams and buckets that this extension has to make
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
	return errors.Join(errs...)
}

// NewFactory makes the extension's factory.
func NewFactory() extension.Factory {
	return extension.NewFactory(Type,
		func() component.Config {
			return &Config{URL: bus.DefaultURL, Cluster: bus.DefaultCluster, Replicas: 1}
		},
		func(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
			f, err := NewFollower(set.TelemetrySettings, "gateway", ofGateways)
			if err != nil {
				return nil, err
			}
			x, err := newExchange(set.Logger, set.MeterProvider.Meter("github.com/pitcrew/pitcrew/collector/statementsextension"))
			return &gateway{Follower: f, log: set.Logger, cfg: cfg.(*Config), classes: x, every: classesEvery}, err
		}, component.StabilityLevelAlpha)
}

// ofGateways reports whether a statement can be of what gateways find. Acknowledgement and acceptance are of what had been found when they
// were made, so one that says it will be made later would be of what nobody has seen.
func ofGateways(s bus.Statement, stored time.Time) (bool, error) {
	if !slices.ContainsFunc(event.GatewaySignals, func(name string) bool { return statement.Names(s.Key, name) }) {
		return false, nil
	}
	if d := s.At.Sub(stored); d > ahead {
		return false, fmt.Errorf("it calls itself %s younger than it is: is the clock right where it was made?", d.Round(time.Second))
	}
	return true, nil
}

// gateway is the extension.
type gateway struct {
	*Follower
	log  *zap.Logger
	cfg  *Config
	bus  *bus.Bus
	stop context.CancelFunc
	work sync.WaitGroup

	classes *exchange
	every   time.Duration
}

// Start implements component.Component. It does not wait for NATS.
func (g *gateway) Start(context.Context, component.Host) error {
	b, err := bus.Connect(bus.Options{
		URL: g.cfg.URL, Cluster: g.cfg.Cluster, Name: "pitcrew-statements/" + g.cfg.Node, Creds: g.cfg.Creds, Token: string(g.cfg.Token), TokenFile: g.cfg.TokenFile, Replicas: g.cfg.Replicas,
	})
	if err != nil {
		return err
	}
	g.bus = b
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	g.work.Go(func() {
		for ctx.Err() == nil {
			err := b.Wait(ctx)
			if err == nil {
				err = g.Run(ctx, b.WatchStatements)
			}
			if err != nil && ctx.Err() == nil {
				g.log.Warn("what people say cannot be followed; trying again", zap.Error(err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryEvery):
			}
		}
	})
	return nil
}

// Shutdown implements component.Component.
func (g *gateway) Shutdown(context.Context) error {
	if g.stop != nil {
		g.stop()
		g.work.Wait()
		g.bus.Close()
	}
	return errors.Join(g.Close(), g.classes.reg.Unregister())
}
