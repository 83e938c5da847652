package xidreceiver

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
	"github.com/pitcrew/pitcrew/semconv"
)

// telemetry is what the receiver says of itself. Lines are counted on the hot
// path, so theirs is an atomic that the meter reads.
type telemetry struct {
	lines                                                          atomic.Int64
	lost, malformed, clipped, events, reopened, wasRefused, forged metric.Int64Counter
	eventAttrs                                                     map[eventKey][]metric.AddOption
}

type eventKey struct {
	kind kernel.Kind
	code int
}

func newTelemetry(meter metric.Meter) (*telemetry, error) {
	t := &telemetry{eventAttrs: make(map[eventKey][]metric.AddOption)}
	var errs []error
	counter := func(name, unit, what string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	_, err := meter.Int64ObservableCounter(semconv.KernelLines, metric.WithUnit("{line}"),
		metric.WithDescription("Kernel log records read."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(t.lines.Load())
			return nil
		}))
	errs = append(errs, err)
	t.lost = counter(semconv.KernelLinesLost, "{line}", "Kernel log records that were lost before they were read, by reason.")
	t.malformed = counter(semconv.KernelLinesMalformed, "{line}", "Lines that are no kernel record, or begin like an Xid and cannot be read.")
	t.clipped = counter(semconv.KernelLinesClipped, "{line}", "Lines that were cut because they were too long.")
	t.events = counter(semconv.KernelEvents, "{event}", "Events seen in the kernel log, repeats included, by kind and code.")
	t.reopened = counter(semconv.KernelLogReopened, "{time}", "Times the kernel log was opened again after a failure, or began anew.")
	t.forged = counter(semconv.KernelLinesForged, "{line}", "Lines that look like the driver's and were written by a process, so passed over.")
	t.wasRefused = counter(semconv.KernelRecordsRefused, "{record}", "Log records that a consumer refused. They are not sent again.")
	return t, errors.Join(errs...)
}

// maxCodes bounds the series of the events' metric. The codes beyond it, which no driver has, are one.
const maxCodes = 1024

func (t *telemetry) event(e *kernel.Event) {
	key := eventKey{e.Kind, e.Code}
	with, ok := t.eventAttrs[key]
	if !ok && len(t.eventAttrs) >= maxCodes {
		key.code = -1
		with, ok = t.eventAttrs[key]
	}
	if !ok {
		text := ""
		switch {
		case key.code < 0:
			text = "unknown"
		case e.Kind == kernel.Xid || e.Kind == kernel.SXid:
			text = strconv.Itoa(e.Code)
		}
		with = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(
			attribute.String("kind", string(e.Kind)), attribute.String("code", text)))}
		t.eventAttrs[key] = with
	}
	t.events.Add(context.Background(), 1, with...)
}

func (t *telemetry) lose(n uint64, reason string) {
	t.lost.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("reason", reason)))
}
