package natsexporter

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// zapHandler lets the bus, which logs by slog, write to the collector's logger.
type zapHandler struct {
	log    *zap.Logger
	fields []zap.Field
}

func level(l slog.Level) zapcore.Level {
	switch {
	case l >= slog.LevelError:
		return zapcore.ErrorLevel
	case l >= slog.LevelWarn:
		return zapcore.WarnLevel
	case l >= slog.LevelInfo:
		return zapcore.InfoLevel
	default:
		return zapcore.DebugLevel
	}
}

func (h zapHandler) Enabled(_ context.Context, l slog.Level) bool {
	return h.log.Core().Enabled(level(l))
}

func (h zapHandler) Handle(_ context.Context, r slog.Record) error {
	fields := append([]zap.Field(nil), h.fields...)
	r.Attrs(func(a slog.Attr) bool {
		fields = append(fields, field(a))
		return true
	})
	h.log.Log(level(r.Level), r.Message, fields...)
	return nil
}

func (h zapHandler) WithAttrs(as []slog.Attr) slog.Handler {
	h.fields = append([]zap.Field(nil), h.fields...)
	for _, a := range as {
		h.fields = append(h.fields, field(a))
	}
	return h
}

func (h zapHandler) WithGroup(string) slog.Handler { return h }

func field(a slog.Attr) zap.Field { return zap.Any(a.Key, a.Value.Resolve().Any()) }
