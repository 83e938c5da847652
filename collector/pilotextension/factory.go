package pilotextension

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/pitcrew/pitcrew/bus"
)

// Type is the extension's name in configurations.
var Type = component.MustNewType("pilot")

// NewFactory makes the extension's factory.
func NewFactory() extension.Factory {
	return extension.NewFactory(Type, createDefaultConfig, func(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
		c := cfg.(*Config)
		return newPilot(set.TelemetrySettings, c, func() (Bus, error) { return dial(set.Logger, c) })
	}, component.StabilityLevelAlpha)
}

// Bus is what the extension needs of NATS. None of its methods may wait for the server to be there, but for the two that say so.
type Bus interface {
	// HandleCommands answers commands until ctx ends.
	HandleCommands(ctx context.Context, node string, handlers map[string]func(context.Context, bus.Command) (bus.Reply, error)) error
	// Beat says every so often that node's agent is there, until ctx ends.
	Beat(ctx context.Context, node string, every time.Duration) error
	// WatchAttempts waits for the server, calls handle with each present attempt, then current, then handle with each
	// change, until ctx ends or the watch breaks.
	WatchAttempts(ctx context.Context, current func(), handle func(bus.Change[bus.Attempt])) error
	// WatchStatements does the same with what people said of findings, and hands to refused what can be no statement.
	WatchStatements(ctx context.Context, current func(), handle func(bus.Change[bus.Statement]), refused func(key string, err error)) error
	// Connected reports whether the server answers now.
	Connected() bool
	Close()
}
