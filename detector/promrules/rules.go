package promrules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// group is evaluated in order, so that an alert sees what a recording rule before it gave.
type group struct {
	file, name string
	interval   time.Duration
	offset     time.Duration // rules are asked as of so long ago
	limit      int
	rules      []*rule
	last       time.Time // of its evaluation
}

// rule is an alert, or with record set a recording rule.
type rule struct {
	alert, record string
	expr          string
	hold, keep    time.Duration
	labels        labels.Labels
	annotations   labels.Labels
	asks          []string                 // names of metrics; an empty one: any
	active        map[uint64]*alert        // of an alert, by its labels
	recorded      map[uint64]labels.Labels // of a recording rule, by the last evaluation
}

func (r *rule) name() string {
	if r.alert != "" {
		return r.alert
	}
	return r.record
}

// maxFile bounds a rule file, in bytes.
const maxFile = 4 << 20

// load reads rule files and refuses, all faults at once, what Prometheus would refuse and what a window of this reach cannot answer.
func load(files []string, o Options) ([]*group, error) {
	var all []*group
	var errs []error
	for _, f := range files {
		raw, err := readBounded(f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		groups, bad := parse(f, raw, o)
		all, errs = append(all, groups...), append(errs, bad...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("rule file: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("rule file %s: %w", name, err)
	}
	if len(raw) > maxFile {
		return nil, fmt.Errorf("rule file %s: larger than %d MiB", name, maxFile>>20)
	}
	return raw, nil
}

func parse(file string, raw []byte, o Options) (out []*group, errs []error) {
	defer func() { // the YAML of a rule file may be anybody's
		if p := recover(); p != nil {
			out, errs = nil, []error{fmt.Errorf("rule file %s: cannot be read: %v", file, p)}
		}
	}()
	p := parser.NewParser(parser.Options{})
	parsed, bad := rulefmt.Parse(raw, false, model.UTF8Validation, p, slog.New(slog.DiscardHandler))
	for _, err := range bad {
		errs = append(errs, fmt.Errorf("rule file %s: %w", file, err))
	}
	if len(errs) > 0 {
		return nil, errs
	}
	for _, g := range parsed.Groups {
		to := &group{file: file, name: g.Name, interval: time.Duration(g.Interval), limit: g.Limit}
		if to.interval == 0 {
			to.interval = o.Interval
		}
		if g.QueryOffset != nil {
			to.offset = time.Duration(*g.QueryOffset)
		}
		for _, r := range g.Rules {
			made, err := newRule(p, r, g.Labels, o, to.offset)
			if err != nil {
				errs = append(errs, fmt.Errorf("rule file %s: group %s: %w", file, g.Name, err))
				continue
			}
			to.rules = append(to.rules, made)
		}
		out = append(out, to)
	}
	return out, errs
}

func newRule(p parser.Parser, r rulefmt.Rule, common map[string]string, o Options, offset time.Duration) (*rule, error) {
	made := &rule{
		alert: r.Alert, record: r.Record, expr: r.Expr, hold: time.Duration(r.For), keep: time.Duration(r.KeepFiringFor),
		annotations: labels.FromMap(r.Annotations), active: map[uint64]*alert{},
	}
	b := labels.NewBuilder(labels.FromMap(common))
	for k, v := range r.Labels {
		b.Set(k, v)
	}
	made.labels = b.Labels()
	expr, err := p.ParseExpr(r.Expr)
	if err != nil {
		return nil, fmt.Errorf("rule %s: %w", made.name(), err)
	}
	if t := expr.Type(); t != parser.ValueTypeVector && t != parser.ValueTypeScalar {
		return nil, fmt.Errorf("rule %s: gives a %s, not a vector", made.name(), parser.DocumentedType(t))
	}
	made.asks = names(expr)
	if far := reach(expr) + offset; far > o.Window {
		return nil, fmt.Errorf("rule %s: looks back %s, and the window keeps %s (raise the window, or run this rule in Prometheus)", made.name(), far, o.Window)
	}
	return made, nil
}

// reach is how far back an expression looks: ranges, subqueries around them, and offsets.
func reach(expr parser.Expr) (far time.Duration) {
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		s, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		d := max(s.OriginalOffset, 0)
		for _, above := range path {
			switch n := above.(type) {
			case *parser.MatrixSelector:
				d += n.Range
			case *parser.SubqueryExpr:
				d += n.Range + max(n.OriginalOffset, 0)
			}
		}
		far = max(far, d)
		return nil
	})
	return far
}

// check asks each rule once of an empty window: what the engine refuses (@, negative offsets) is an error now.
func (r *Runner) check(ctx context.Context, now time.Time) error {
	var errs []error
	for _, g := range r.groups {
		for _, u := range g.rules {
			if _, err := r.query(ctx, u.expr, now); err != nil {
				errs = append(errs, fmt.Errorf("rule file %s: group %s: rule %s: %w", g.file, g.name, u.name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// names lists the metrics that an expression asks for, an empty one for a selector that may match any name. What templates of an
// alert ask for beside it is theirs to have from a rule.
func names(expr parser.Expr) (out []string) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			name := ""
			for _, m := range s.LabelMatchers {
				if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
					name = m.Value
				}
			}
			out = append(out, name)
		}
		return nil
	})
	return out
}

func asked(groups []*group) map[string]bool {
	all := map[string]bool{}
	for _, g := range groups {
		for _, u := range g.rules {
			for _, name := range u.asks {
				if name == "" {
					return nil
				}
				all[name] = true
			}
		}
	}
	return all
}
