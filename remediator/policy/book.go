package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/interpreter"

	"github.com/pitcrew/pitcrew/event"
)

// Book is a set of policies prepared for many decisions: sorted by order, hashed, indexed by signal, expressions compiled. It is a snapshot:
// later changes of the policies it was made from do not reach it. Its methods may be called concurrently.
type Book struct {
	pages []page
	// reads reports which variables any expression reads, so that no decision converts what nobody looks at.
	reads map[string]bool
}

// page is a policy and what was computed of it once.
type page struct {
	Policy
	hash  string
	exact map[string][]bool // by signal: which rules list it by name; nil for a signal that no rule lists
	globs []bool            // rules with a pattern, which every signal has to try
	// notifies are the rules that only notify.
	notifies []bool
	lists    []string // of each rule, its signals for people
}

// NewBook prepares policies, whatever their order.
func NewBook(ps []Policy) *Book {
	b := &Book{pages: make([]page, len(ps)), reads: map[string]bool{}}
	for i, p := range ps {
		b.pages[i] = newPage(p)
	}
	slices.SortStableFunc(b.pages, func(a, b page) int {
		return cmp.Or(cmp.Compare(a.Spec.Order, b.Spec.Order), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, r := range Readings(ps) {
		root, _, _ := strings.Cut(r.Fact.Path, ".")
		b.reads[root] = true
	}
	return b
}

func newPage(p Policy) page {
	p.Spec.Rules = slices.Clone(p.Spec.Rules)
	n := len(p.Spec.Rules)
	out := page{Policy: p, hash: p.Hash(), exact: map[string][]bool{}, globs: make([]bool, n), lists: make([]string, n), notifies: make([]bool, n)}
	for i := range p.Spec.Rules {
		w := &p.Spec.Rules[i].When
		if w.Expr != "" && w.program == nil { // of a policy that was built in Go; a fault shows when it runs
			w.program, _ = compile(w.Expr)
		}
		out.lists[i], out.notifies[i] = list(w.Signal), onlyNotifies(p.Spec.Rules[i])
		for _, s := range w.Signal {
			if isGlob(s) {
				out.globs[i] = true
				continue
			}
			if out.exact[s] == nil {
				out.exact[s] = make([]bool, n)
			}
			out.exact[s][i] = true
		}
	}
	return out
}

// Policies lists what the book was made from, by rising order.
func (b *Book) Policies() []Policy {
	out := make([]Policy, len(b.pages))
	for i := range b.pages {
		out[i] = b.pages[i].Policy
	}
	return out
}

// ByName gives the policy of that name.
func (b *Book) ByName(name string) (Policy, bool) {
	for i := range b.pages {
		if b.pages[i].Metadata.Name == name {
			return b.pages[i].Policy, true
		}
	}
	return Policy{}, false
}

// question is one event as the rules are asked about it.
type question struct {
	e      event.Event
	signal string
	vars   cel.Activation
	seen   func(within time.Duration) int
}

// times is how often the signal occurred within a time, as far as is known.
func (q question) times(within Duration) int {
	own := max(1, q.e.Data.Count)
	if q.seen == nil {
		return own
	}
	return max(own, q.seen(time.Duration(within)))
}

// activation gives expressions their variables. Each is converted once, and only if an expression reads it.
func (b *Book) activation(e event.Event, n Node, j Job, inc Incident) cel.Activation {
	vars := map[string]any{}
	env, err := environment()
	if err != nil {
		return interpreter.EmptyActivation()
	}
	for name, of := range map[string]func() any{
		"event": func() any { return viewOf(e) }, "node": func() any { return n }, "job": func() any { return j }, "incident": func() any { return inc },
	} {
		if b.reads[name] {
			vars[name] = env.CELTypeAdapter().NativeToValue(of())
		}
	}
	out, err := cel.NewActivation(vars)
	if err != nil {
		return interpreter.EmptyActivation()
	}
	return out
}

// look tries every rule and gives the index of the first that matches, -1 if none. Rules after it are listed, not run.
func (p *page) look(q question) (traces []RuleTrace, first int) {
	first = -1
	exact := p.exact[q.signal]
	traces = make([]RuleTrace, len(p.Spec.Rules))
	for i := range p.Spec.Rules {
		r, t := &p.Spec.Rules[i], &traces[i]
		t.Rule = r.Name
		switch {
		case first >= 0:
			t.Why, t.Detail = WhyEarlier, "rule "+p.Spec.Rules[first].Name+" matched first"
		case !p.globs[i] && (exact == nil || !exact[i]):
			t.Why, t.Detail = WhySignal, q.signal+" is none of "+p.lists[i]
		default:
			if t.Why, t.Detail = r.When.match(q, p.lists[i]); t.Why == "" {
				t.Matched, first = true, i
			}
		}
	}
	return traces, first
}

func (w *When) match(q question, signals string) (Why, string) {
	pattern, ok := w.Signal.Match(q.signal)
	if !ok {
		return WhySignal, q.signal + " is none of " + signals
	}
	severity := q.e.Data.Severity
	if w.Severity != "" && !severity.AtLeast(w.Severity) {
		return WhySeverity, "severity is " + string(severity) + ", wanted " + string(w.Severity) + " or more"
	}
	detail := "signal " + q.signal + " is " + pattern
	if pattern == q.signal {
		detail = "signal " + q.signal
	}
	if w.Severity != "" {
		detail += ", severity " + string(severity)
	}
	if w.Count > 0 {
		n := q.times(w.Within)
		if n < w.Count {
			return WhyCount, fmt.Sprintf("%d of %d within %s", n, w.Count, w.Within)
		}
		detail += fmt.Sprintf(", %d times within %s", n, w.Within)
	}
	if w.Expr == "" {
		return "", detail
	}
	switch ok, err := w.eval(q.vars); {
	case err != nil:
		return WhyExprError, w.Expr + ": " + err.Error()
	case !ok:
		return WhyExpr, w.Expr
	}
	return "", detail + ", " + w.Expr
}

// complete fills in the facts that follow from others, so that whoever decides need not: the pool and rack from the node's labels, the
// node's name and the size of the job from the event. Which job it is stays with the caller: an event may name one that has ended.
func complete(e event.Event, n *Node, j *Job) {
	t := e.Data.Target
	n.Name = cmp.Or(n.Name, t.Node)
	n.Pool = cmp.Or(n.Pool, PoolOf(n.Labels))
	n.Rack = cmp.Or(n.Rack, RackOf(n.Labels))
	if t.Job != nil && j.UID != "" && j.UID == t.Job.UID {
		j.WorldSize = cmp.Or(j.WorldSize, t.WorldSize)
		j.Attempt = cmp.Or(j.Attempt, or(t.Attempt, 0))
	}
	j.RestartCost = cmp.Or(j.RestartCost, DefaultRestart.Seconds()*float64(j.WorldSize))
}
