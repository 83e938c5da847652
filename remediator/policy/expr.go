package policy

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"

	"github.com/pitcrew/pitcrew/event"
)

// maxExprCost bounds one evaluation; a comparison costs a few units, a macro over a hundred labels a few hundred.
const maxExprCost = 100_000

// Event is how an expression sees an event: the wire's names, with the signal spelled as in a rule. What is not known is zero,
// save rank, local_rank and attempt, which are then -1.
type Event struct {
	ID       string        `json:"id"`
	Source   string        `json:"source"`
	Type     string        `json:"type"` // fault, anomaly
	Time     time.Time     `json:"time"`
	Onset    time.Time     `json:"onset"`
	Signal   string        `json:"signal"`
	Severity string        `json:"severity"`
	Advice   string        `json:"advice"`
	Count    int           `json:"count"`
	Loss     float64       `json:"lossPerHour"`
	Target   EventTarget   `json:"target"`
	Cause    EventCause    `json:"cause"`
	Evidence EventEvidence `json:"evidence"`
}

// EventTarget is an event's target as an expression sees it.
type EventTarget struct {
	Cluster   string `json:"cluster"`
	Node      string `json:"node"`
	GPU       string `json:"gpu_uuid"`
	PCI       string `json:"pci"`
	MIG       string `json:"mig"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Rank      int    `json:"rank"`
	LocalRank int    `json:"local_rank"`
	WorldSize int    `json:"world_size"`
	Attempt   int    `json:"attempt"`
}

// EventCause is an event's cause as an expression sees it.
type EventCause struct {
	Kind string `json:"kind"`
	Code string `json:"code"`
	Name string `json:"name"`
}

// EventEvidence is an event's evidence as an expression sees it.
type EventEvidence struct {
	Signal   string  `json:"signal"`
	Unit     string  `json:"unit"`
	Value    float64 `json:"value"`
	Expected float64 `json:"expected"`
	Lower    float64 `json:"lower"`
	Upper    float64 `json:"upper"`
	Score    float64 `json:"score"`
	WindowS  float64 `json:"window_s"`
	Baseline string  `json:"baseline"`
	Raw      string  `json:"raw"`
}

func or[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

func viewOf(e event.Event) Event {
	d, t, v := e.Data, e.Data.Target, e.Data.Evidence
	return Event{
		ID: e.ID, Source: e.Source, Type: e.Type.Kind(), Time: e.Time, Onset: d.Onset,
		Signal: d.Cause.Signal(), Severity: string(d.Severity), Advice: d.Advice, Count: max(1, d.Count), Loss: LossPerHour(e),
		Target: EventTarget{t.Cluster, t.Node, t.GPU, t.PCI, t.MIG, t.Namespace, t.Pod, or(t.Rank, -1), or(t.LocalRank, -1), t.WorldSize, or(t.Attempt, -1)},
		Cause:  EventCause{d.Cause.Kind, d.Cause.Code, d.Cause.Name},
		Evidence: EventEvidence{v.Signal, v.Unit, or(v.Value, 0), or(v.Expected, 0), or(v.Lower, 0), or(v.Upper, 0), or(v.Score, 0),
			v.WindowS, v.Baseline, v.Raw},
	}
}

// program is a compiled expression and the facts it reads.
type program struct {
	p     cel.Program
	reads []string
}

var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		ext.NativeTypes(ext.ParseStructTag("json"),
			reflect.TypeFor[Event](), reflect.TypeFor[Node](), reflect.TypeFor[Job](), reflect.TypeFor[Incident]()),
		cel.Variable("event", cel.ObjectType("policy.Event")),
		cel.Variable("node", cel.ObjectType("policy.Node")),
		cel.Variable("job", cel.ObjectType("policy.Job")),
		cel.Variable("incident", cel.ObjectType("policy.Incident")),
		cel.ParserRecursionLimit(maxDepth),
		cel.ParserExpressionSizeLimit(4096),
	)
})

// compile checks an expression against the types and the table of facts, so that a misspelt or unfilled field is a load error and not a
// rule that never matches.
func compile(expr string) (*program, []exprFault) {
	return compileWith(expr, func(f Fact) bool { return f.Decide != "" })
}

func compileWith(expr string, filled func(Fact) bool) (*program, []exprFault) {
	env, err := environment()
	if err != nil {
		return nil, []exprFault{{"expression environment: " + err.Error(), 1, 1}}
	}
	parsed, issues := env.Parse(expr)
	if issues != nil && issues.Err() != nil {
		return nil, faultsOf(issues, nil)
	}
	r := &reader{source: parsed.NativeRep().SourceInfo(), filled: filled, reads: map[string]bool{}}
	r.visit(parsed.NativeRep().Expr(), nil)
	tree, issues := env.Check(parsed)
	if issues != nil && issues.Err() != nil {
		return nil, faultsOf(issues, r.faults)
	}
	if len(r.faults) > 0 {
		return nil, r.faults
	}
	if tree.OutputType() != cel.BoolType {
		return nil, []exprFault{{fmt.Sprintf("must be true or false, but gives %s", tree.OutputType()), 1, 1}}
	}
	p, err := env.Program(tree, cel.CostLimit(maxExprCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, []exprFault{{err.Error(), 1, 1}}
	}
	return &program{p, slices.Sorted(maps.Keys(r.reads))}, nil
}

// faultsOf adds CEL's own faults to those found by the table of facts, which already name undefined fields and better.
func faultsOf(issues *cel.Issues, found []exprFault) []exprFault {
	for _, e := range issues.Errors() {
		if len(found) > 0 && strings.HasPrefix(e.Message, "undefined field") {
			continue
		}
		found = append(found, exprFault{e.Message, e.Location.Line(), e.Location.Column() + 1})
	}
	return found
}

// eval runs the expression. An error means that it did not match, and why.
func (w When) eval(vars cel.Activation) (bool, error) {
	prog := w.program
	if prog == nil {
		var faults []exprFault
		if prog, faults = compile(w.Expr); len(faults) > 0 {
			return false, errors.New(faults[0].msg)
		}
	}
	v, _, err := prog.p.Eval(vars)
	if err != nil {
		return false, err
	}
	return v == types.True, nil
}
