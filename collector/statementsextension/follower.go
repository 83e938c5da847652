package statementsextension

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/semconv"
)

// Watch brings the bucket of statements: what is there, then current, then each change, until ctx ends or it breaks. What cannot be a
// statement is handed to refused.
type Watch func(ctx context.Context, current func(), handle func(bus.Change[bus.Statement]), refused func(key string, err error)) error

// Follower keeps what people said. Who follows is given all of it, at once and after each change.
type Follower struct {
	log     *zap.Logger
	concern func(bus.Statement, time.Time) (bool, error)
	reg     metric.Registration

	mu      sync.Mutex
	all     map[string]bus.Statement
	reading map[string]bus.Statement // while a watch begins: what is there, until it is all there
	follow  map[int]func([]bus.Statement)
	next    int
	known   bool
	refused int64
}

// NewFollower makes a follower of the statements that concern it. concern is given a statement and when the server stored it; an error
// refuses it. about names the follower in its metrics.
func NewFollower(set component.TelemetrySettings, about string, concern func(s bus.Statement, stored time.Time) (bool, error)) (*Follower, error) {
	f := &Follower{log: set.Logger, concern: concern, all: map[string]bus.Statement{}, follow: map[int]func([]bus.Statement){}}
	meter := set.MeterProvider.Meter("github.com/pitcrew/pitcrew/collector/statementsextension")
	known, err1 := meter.Int64ObservableGauge(semconv.StatementsKnown, metric.WithUnit("{statement}"), metric.WithDescription("Statements of people that hold here"))
	refused, err2 := meter.Int64ObservableCounter(semconv.StatementsRefused, metric.WithUnit("{statement}"),
		metric.WithDescription("Statements that are malformed, lie under another's key, are of the future, or are beyond the bound"))
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("statements' own metrics: %w", err)
	}
	whose := metric.WithAttributes(attribute.String(semconv.StatementAbout, about))
	var err error
	f.reg, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		o.ObserveInt64(known, int64(len(f.all)), whose)
		o.ObserveInt64(refused, f.refused, whose)
		return nil
	}, known, refused)
	if err != nil {
		return nil, fmt.Errorf("statements' own metrics: %w", err)
	}
	return f, nil
}

// Close ends the metrics.
func (f *Follower) Close() error { return f.reg.Unregister() }

// Run follows until ctx ends or the watch breaks; begun again it takes what is there then for all there is.
func (f *Follower) Run(ctx context.Context, watch Watch) error {
	f.mu.Lock()
	f.reading = map[string]bus.Statement{}
	f.mu.Unlock()
	return watch(ctx, f.current, f.change, f.refuse)
}

// current says that all that is there was brought.
func (f *Follower) current() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all, f.reading, f.known = f.reading, nil, true
	f.tell()
}

func (f *Follower) change(c bus.Change[bus.Statement]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	into := f.all
	if f.reading != nil {
		into = f.reading
	}
	ours, err := false, error(nil)
	if !c.Deleted {
		if ours, err = f.concern(c.Value, c.Stored); ours && err == nil && into[c.Key].Verb == "" && len(into) >= statement.Most {
			err = fmt.Errorf("more than %d statements hold", statement.Most)
		}
	}
	_, had := into[c.Key]
	switch {
	case err != nil:
		f.count(c.Key, err)
		delete(into, c.Key)
	case ours:
		into[c.Key] = c.Value
	default:
		delete(into, c.Key)
	}
	if f.reading == nil && (had || ours) {
		f.tell()
	}
}

func (f *Follower) refuse(key string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(key, err)
}

// count is called with mu held.
func (f *Follower) count(key string, err error) {
	f.refused++
	f.log.Warn("statement refused", zap.String("key", key), zap.Error(err))
}

// tell is called with mu held.
func (f *Follower) tell() {
	list := f.list()
	for _, handle := range f.follow {
		handle(list)
	}
}

func (f *Follower) list() []bus.Statement {
	out := make([]bus.Statement, 0, len(f.all))
	for _, k := range slices.Sorted(maps.Keys(f.all)) {
		out = append(out, f.all[k])
	}
	return out
}

// FollowStatements calls handle with all that people said: when that is first known, and after each change, until stop is called. handle
// must not block and must not call back.
func (f *Follower) FollowStatements(handle func([]bus.Statement)) (stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.next
	f.next++
	f.follow[id] = handle
	if f.known {
		handle(f.list())
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.follow, id)
	}
}
