package policy

import (
	"errors"
	"fmt"
	"reflect"
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
		Signal: d.Cause.Signal(), Severity: string(d.Severity), Advice: d.Advice, Count: max(1, d.Count),
		Target: EventTarget{t.Cluster, t.Node, t.GPU, t.PCI, t.MIG, t.Namespace, t.Pod, or(t.Rank, -1), or(t.LocalRank, -1), t.WorldSize, or(t.Attempt, -1)},
		Cause:  EventCause{d.Cause.Kind, d.Cause.Code, d.Cause.Name},
		Evidence: EventEvidence{v.Signal, v.Unit, or(v.Value, 0), or(v.Expected, 0), or(v.Lower, 0), or(v.Upper, 0), or(v.Score, 0),
			v.WindowS, v.Baseline, v.Raw},
	}
}

// program is a compiled expression.
type program struct{ p cel.Program }

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

// compile checks an expression against the types, so that a misspelt field is a load error and not a rule that never matches.
func compile(expr string) (*program, error) {
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("expression environment: %w", err)
	}
	tree, issues := env.Compile(expr)
	if issues != nil && issues.Err() != nil {
		var msgs []string
		for _, e := range issues.Errors() {
			msgs = append(msgs, fmt.Sprintf("%s (at %d:%d of the expression)", e.Message, e.Location.Line(), e.Location.Column()+1))
		}
		return nil, errors.New(strings.Join(msgs, "; "))
	}
	if tree.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("must be true or false, but gives %s", tree.OutputType())
	}
	p, err := env.Program(tree, cel.CostLimit(maxExprCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, err
	}
	return &program{p}, nil
}

// eval runs the expression. An error means that it did not match, and why.
func (w When) eval(vars map[string]any) (bool, error) {
	prog := w.program
	if prog == nil {
		var err error
		if prog, err = compile(w.Expr); err != nil {
			return false, err
		}
	}
	v, _, err := prog.p.Eval(vars)
	if err != nil {
		return false, err
	}
	return v == types.True, nil
}
