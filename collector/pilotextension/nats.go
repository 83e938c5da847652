package pilotextension

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pitcrew/pitcrew/bus"
)

// natsBus is the Bus of production.
type natsBus struct{ *bus.Bus }

func dial(log *zap.Logger, c *Config) (Bus, error) {
	b, err := bus.Connect(bus.Options{
		URL: c.URL, Cluster: c.Cluster, Name: "pitcrew-pilot/" + c.Node, Creds: c.Creds, Token: string(c.Token), TokenFile: c.TokenFile, Replicas: c.Replicas,
		Logger: slog.New(zapHandler{log: log}),
	})
	if err != nil {
		return nil, err
	}
	return natsBus{b}, nil
}

// WatchAttempts implements Bus.
func (b natsBus) WatchAttempts(ctx context.Context, current func(), handle func(bus.Change[bus.Attempt])) error {
	if err := b.Wait(ctx); err != nil {
		return err
	}
	return b.Attempts().Watch(ctx, current, handle)
}

// WatchStatements implements Bus.
func (b natsBus) WatchStatements(ctx context.Context, current func(), handle func(bus.Change[bus.Statement]), refused func(string, error)) error {
	if err := b.Wait(ctx); err != nil {
		return err
	}
	return b.Bus.WatchStatements(ctx, current, handle, refused)
}

// zapHandler lets the bus, which logs by slog, write to the collector's logger.
type zapHandler struct {
	log    *zap.Logger
	fields []zap.Field
}

func level(l slog.Level) zapcore.Level {
	return max(min(zapcore.Level(l/4), zapcore.ErrorLevel), zapcore.DebugLevel) // both count from info, slog in steps of four
}

// Enabled implements slog.Handler.
func (h zapHandler) Enabled(_ context.Context, l slog.Level) bool {
	return h.log.Core().Enabled(level(l))
}

// Handle implements slog.Handler.
func (h zapHandler) Handle(_ context.Context, r slog.Record) error {
	fields := append([]zap.Field(nil), h.fields...)
	r.Attrs(func(a slog.Attr) bool {
		fields = append(fields, zap.Any(a.Key, a.Value.Resolve().Any()))
		return true
	})
	h.log.Log(level(r.Level), r.Message, fields...)
	return nil
}

// WithAttrs implements slog.Handler.
func (h zapHandler) WithAttrs(as []slog.Attr) slog.Handler {
	h.fields = append([]zap.Field(nil), h.fields...)
	for _, a := range as {
		h.fields = append(h.fields, zap.Any(a.Key, a.Value.Resolve().Any()))
	}
	return h
}

// WithGroup implements slog.Handler; groups are not used.
func (h zapHandler) WithGroup(string) slog.Handler { return h }
