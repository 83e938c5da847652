package promrules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/detector/finding"
)

// Options of a runner. The zero value of a limit means its default.
type Options struct {
	Files     []string                     // rule files as Prometheus reads them
	Cluster   string                       // of findings whose labels name none
	Component string                       // who speaks: the last part of an event's source; default promrules
	Speaker   string                       // the node, or gateway, that publishes what a rule finds
	Window    time.Duration                // how far back samples are kept, default 15 min
	Interval  time.Duration                // of groups that say none, default 15 s
	Lookback  time.Duration                // age at which an instant value is stale, default 5 min, at most Window
	MaxSeries int                          // default 50,000
	PerSeries int                          // samples, default 1,024
	Warn      func(rule string, err error) // told of a rule that failed, and of an alert of which no finding can be made
}

// Limits of one query.
const (
	maxSamples = 5_000_000
	timeout    = 3 * time.Second // a slow rule must not hold up the others for long
)

func (o *Options) fill() {
	set(&o.Component, "promrules")
	set(&o.Window, 15*time.Minute)
	set(&o.Interval, 15*time.Second)
	set(&o.Lookback, 5*time.Minute)
	set(&o.MaxSeries, 50_000)
	set(&o.PerSeries, 1024)
	o.Lookback = min(o.Lookback, o.Window)
	if o.Warn == nil {
		o.Warn = func(string, error) {}
	}
}

func set[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Counts of what a runner did.
type Counts struct {
	Rules, Groups int
	Evaluations   int64
	Failures      int64 // evaluations of a rule that gave an error; the rule keeps its state
	Homeless      int64 // alerts that fired for something which names no node: no finding can be made of them
	Firing        int
}

// Runner evaluates rules. Append may be called at any time; the other methods by one goroutine at a time.
type Runner struct {
	o      Options
	window *Window
	engine *promql.Engine
	expand *expander
	groups []*group
	asked  map[string]bool // names of metrics; nil: any
	open   map[string]*Open
	counts Counts
}

// New reads the rule files. An error names each rule that Prometheus would refuse or that the window cannot answer.
func New(o Options) (*Runner, error) {
	o.fill()
	r := &Runner{o: o, window: NewWindow(o.Window+o.Lookback, o.MaxSeries, o.PerSeries), open: map[string]*Open{}}
	r.engine = promql.NewEngine(promql.EngineOpts{
		Logger: slog.New(slog.DiscardHandler), MaxSamples: maxSamples, Timeout: timeout, LookbackDelta: o.Lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return o.Interval.Milliseconds() },
		Parser:                   parser.NewParser(parser.Options{}),
	})
	r.expand = newExpander(r.query)
	var err error
	if r.groups, err = load(o.Files, o); err != nil {
		return nil, err
	}
	r.asked = asked(r.groups)
	for _, g := range r.groups {
		r.counts.Groups++
		r.counts.Rules += len(g.rules)
	}
	return r, r.check(context.Background(), time.Unix(0, 0))
}

// Close ends the query engine.
func (r *Runner) Close() error { return r.engine.Close() }

// Append takes one sample, t in milliseconds since 1970; see Window.Append.
func (r *Runner) Append(l labels.Labels, t int64, v float64) { r.window.Append(l, t, v) }

// Put is Append for labels given as names and values in turn, the metric's name as __name__. An empty value is no label; of a name
// that comes twice the last value counts.
func (r *Runner) Put(pairs []string, t time.Time, v float64) {
	b := labels.NewBuilder(labels.EmptyLabels())
	for i := 0; i+1 < len(pairs); i += 2 {
		b.Set(pairs[i], pairs[i+1])
	}
	r.window.Append(b.Labels(), t.UnixMilli(), v)
}

// Wants reports whether any rule asks for the metric of this name: what none asks for needs no place in the window. It may be
// called at any time.
func (r *Runner) Wants(name string) bool { return r.asked == nil || r.asked[name] }

// Counts reports what happened so far, and the state of the window.
func (r *Runner) Counts() (Counts, WindowCounts) {
	c := r.counts
	for _, g := range r.groups {
		for _, u := range g.rules {
			for _, a := range u.active {
				if a.firing {
					c.Firing++
				}
			}
		}
	}
	return c, r.window.Counts()
}

// Evaluate evaluates the groups that are due and gives what began and what ended. A rule that fails keeps its state, is counted and
// logged; the others go on.
func (r *Runner) Evaluate(ctx context.Context, now time.Time) []finding.Finding {
	var out []finding.Finding
	for _, g := range r.groups {
		if since := now.Sub(g.last); since >= 0 && since < g.interval && !g.last.IsZero() {
			continue
		}
		g.last = now
		for _, u := range g.rules {
			r.counts.Evaluations++
			changes, err := r.evaluate(ctx, g, u, now)
			if err != nil {
				if errors.Is(err, context.Canceled) {
					return out
				}
				r.counts.Failures++
				r.o.Warn(u.name(), fmt.Errorf("rule file %s: group %s: %w", g.file, g.name, err))
				continue
			}
			for _, c := range changes {
				out = append(out, r.findings(c, now)...)
			}
		}
	}
	out = append(out, r.lapsed(now)...)
	r.window.Sweep(now)
	return out
}

func (r *Runner) evaluate(ctx context.Context, g *group, u *rule, now time.Time) ([]change, error) {
	at := now.Add(-g.offset)
	result, err := r.query(ctx, u.expr, at)
	if err != nil {
		return nil, err
	}
	if u.record != "" {
		return nil, r.record(u, result, at, g.limit)
	}
	changes, err := u.judge(ctx, now, result, g.limit, r.expand)
	slices.SortFunc(changes, func(a, b change) int { return labels.Compare(a.alert.labels, b.alert.labels) })
	r.tellAlerts(u, at)
	return changes, err
}

func (r *Runner) query(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
	q, err := r.engine.NewInstantQuery(ctx, r.window, nil, expr, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	res := q.Exec(ctx)
	if res.Err != nil {
		return nil, res.Err
	}
	switch v := res.Value.(type) {
	case promql.Vector:
		return slices.Clone(v), nil
	case promql.Scalar:
		return promql.Vector{{T: v.T, F: v.V, Metric: labels.EmptyLabels()}}, nil
	default:
		return nil, fmt.Errorf("gives a %s, not a vector", res.Value.Type())
	}
}

// record puts a recording rule's result into the window, and ends the series that it gives no more.
func (r *Runner) record(u *rule, result promql.Vector, at time.Time, limit int) error {
	if limit > 0 && len(result) > limit {
		return fmt.Errorf("recording rule %s: %d results, the group's limit is %d", u.record, len(result), limit)
	}
	now := map[uint64]labels.Labels{}
	for _, s := range result {
		b := labels.NewBuilder(s.Metric)
		u.labels.Range(func(l labels.Label) { b.Set(l.Name, l.Value) })
		b.Set(model.MetricNameLabel, u.record)
		l := b.Labels()
		if _, twice := now[l.Hash()]; twice {
			return fmt.Errorf("recording rule %s: two results have the same labels %s", u.record, l)
		}
		now[l.Hash()] = l
		r.window.Append(l, at.UnixMilli(), s.F)
	}
	r.end(u, now, at)
	return nil
}

// tellAlerts gives the series ALERTS, which rules may ask for.
func (r *Runner) tellAlerts(u *rule, at time.Time) {
	now := map[uint64]labels.Labels{}
	for _, a := range u.active {
		b := labels.NewBuilder(a.labels)
		b.Set(model.MetricNameLabel, "ALERTS")
		b.Set("alertstate", map[bool]string{true: "firing", false: "pending"}[a.firing])
		l := b.Labels()
		now[l.Hash()] = l
		r.window.Append(l, at.UnixMilli(), 1)
	}
	r.end(u, now, at)
}

func (r *Runner) end(u *rule, now map[uint64]labels.Labels, at time.Time) {
	for h, l := range u.recorded {
		if _, still := now[h]; !still {
			r.window.Append(l, at.UnixMilli(), math.Float64frombits(value.StaleNaN))
		}
	}
	u.recorded = now
}
