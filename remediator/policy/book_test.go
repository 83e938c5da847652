package policy_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// manyRules are four policies of 50 rules each. With exprs every rule takes the signal and asks an expression that is false, which is the
// most a decision can cost.
func manyRules(t testing.TB, exprs bool) []policy.Policy {
	t.Helper()
	var b strings.Builder
	for p := range 4 {
		fmt.Fprintf(&b, "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p%d}\nspec:\n  mode: enforce\n  order: %d\n  rules:\n", p, p+1)
		for r := range 50 {
			when := fmt.Sprintf("{signal: [xid/%d, gpu/lost]}", 200+r)
			if exprs {
				when = fmt.Sprintf("{signal: xid/*, expr: \"'team' in job.labels && job.labels['team'] == 't%d' && node.ready && event.evidence.score > 0.%d1\"}", r, p)
			}
			fmt.Fprintf(&b, "  - {name: r%d, when: %s, steps: [{do: notify}]}\n", r, when)
		}
		b.WriteString("---\n")
	}
	ps, err := policy.Parse("many.yaml", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

func busy() (event.Event, policy.Node, policy.Job) {
	e := fault("xid", "79", event.Fatal)
	score := 0.99
	e.Data.Evidence.Score = &score
	labels := map[string]string{"team": "other"}
	for k := range 40 {
		labels[fmt.Sprintf("example.com/label-%d", k)] = "value"
	}
	return e, policy.Node{Name: "a2", Ready: true, Labels: labels}, policy.Job{Namespace: "ml", Name: "llm", UID: "u", Labels: labels, NamespaceLabels: labels}
}

// maxDecision is the goal for one decision over 200 rules.
const maxDecision = time.Millisecond

func TestADecisionOver200RulesTakesAtMostAMillisecond(t *testing.T) {
	for name, exprs := range map[string]bool{"by signal": false, "each with an expression": true} {
		b := policy.NewBook(manyRules(t, exprs))
		e, n, j := busy()
		best := time.Hour
		for range 50 { // the best of many: the machine may be busy
			start := time.Now()
			if d := b.Decide(e, n, j, policy.Incident{}); d.Outcome != policy.Tell || len(d.Policies) != 4 || len(d.Policies[3].Rules) != 50 {
				t.Fatalf("%s: %s", name, d)
			}
			best = min(best, time.Since(start))
		}
		allocs := testing.AllocsPerRun(20, func() { b.Decide(e, n, j, policy.Incident{}) })
		t.Logf("%s: %s, %.0f allocations", name, best, allocs)
		if best > maxDecision {
			t.Errorf("%s: %s, at most %s", name, best, maxDecision)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	e, n, j := busy()
	for name, exprs := range map[string]bool{"signals": false, "expressions": true} {
		ps := manyRules(b, exprs)
		b.Run(name, func(b *testing.B) {
			book := policy.NewBook(ps)
			b.ReportAllocs()
			for b.Loop() {
				book.Decide(e, n, j, policy.Incident{})
			}
		})
		b.Run(name+"-unprepared", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				policy.Decide(e, n, j, policy.Incident{}, ps)
			}
		})
	}
}

func TestABookDecidesAsItsPoliciesDoAndIsASnapshot(t *testing.T) {
	ps := load(t, doc("late", "enforce", "20", "signal: xid/79")+doc("early", "enforce", "10", "signal: xid/7*, expr: node.ready"))
	e := fault("xid", "79", event.Fatal)
	b := policy.NewBook(ps)
	want := policy.Decide(e, node, job, policy.Incident{}, ps)
	if want.Policy != "early" {
		t.Fatalf("%s", want)
	}
	ps[1].Spec.Mode = policy.Off
	ps[1].Spec.Rules[0].Name = "changed"
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if d := cmp.Diff(want, b.Decide(e, node, job, policy.Incident{}), ignore); d != "" {
					t.Error(d)
					return
				}
			}
		})
	}
	all.Wait()
	if got := b.Policies(); got[0].Metadata.Name != "early" || got[1].Metadata.Name != "late" {
		t.Errorf("%v", got)
	}
}

func TestADecisionFillsInWhatFollowsFromOtherFacts(t *testing.T) {
	e := fault("xid", "79", event.Fatal)
	e.Data.Target.Job, e.Data.Target.WorldSize = &event.Job{Namespace: "ml", Name: "llm", UID: "u1"}, 64
	racked := policy.Node{Labels: map[string]string{"pitcrew.dev/pool": "train", "pitcrew.dev/rack": "r1"}}
	for when, want := range map[string]bool{
		"node.pool == 'train' && node.rack == 'pitcrew.dev/rack=r1' && node.name == 'a2'": true,
		"job.worldSize == 64": true,
		"job.name == ''":      false,
	} {
		j := policy.Decide(e, racked, job, policy.Incident{}, load(t, doc("p", "enforce", "1", "signal: xid/79, expr: \""+when+"\"")))
		if got := j.Outcome == policy.Act; got != want {
			t.Errorf("%s: %v, want %v\n%s", when, got, want, j)
		}
	}
	// A job that is not there any more is none, whatever the event says of it.
	j := policy.Decide(e, racked, policy.Job{}, policy.Incident{}, load(t, doc("p", "enforce", "1", "signal: xid/79, expr: \"job.name == '' && job.worldSize == 0\"")))
	if j.Outcome != policy.Act {
		t.Errorf("%s", j)
	}
}
