package policy_test

import (
	"math/rand/v2"
	"testing"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// What Reach excludes no facts may bring about: it is asked before any fact is collected.
func TestReachBoundsEveryDecision(t *testing.T) {
	books := map[string][]policy.Policy{
		"by signal": load(t, doc("a", "enforce", "1", "signal: [xid/79, gpu/lost], severity: critical")+doc("b", "observe", "2", "signal: xid/13")),
		"by pattern": load(t, doc("a", "approve", "1", "signal: xid/9*, severity: warning")+doc("b", "enforce", "2", "signal: rank/*, expr: node.ready")+
			doc("c", "off", "3", "signal: \"*\"")),
		"ignoring": load(t, doc("a", "enforce", "1", "signal: xid/79", "  default: ignore")),
	}
	shipped, err := policy.Load("../../deploy/policies")
	if err != nil {
		t.Fatal(err)
	}
	books["shipped"] = shipped
	signals := [][2]string{{"xid", "79"}, {"xid", "94"}, {"xid", "13"}, {"gpu", "lost"}, {"rank", "dead"}, {"rank", "straggler"}, {"agent", "lines-lost"}, {"train", "slow-step"}}
	types := []event.Type{event.Fault, event.Anomaly, event.Recovery, event.Incident}
	severities := []event.Severity{event.Info, event.Warning, event.Critical, event.Fatal}
	nodes := []policy.Node{{}, node, {Name: "a2", Quarantined: true}}
	jobs := []policy.Job{{}, job}
	for name, ps := range books {
		b := policy.NewBook(ps)
		acted, idle := 0, 0
		r := rand.New(rand.NewPCG(1, 2))
		for range 4000 {
			s := signals[r.IntN(len(signals))]
			e := fault(s[0], s[1], severities[r.IntN(len(severities))])
			e.Type = types[r.IntN(len(types))]
			reach := b.Reach(e)
			d := b.Decide(e, nodes[r.IntN(len(nodes))], jobs[r.IntN(len(jobs))], policy.Incident{})
			switch acts := d.Outcome == policy.Act || d.Outcome == policy.Ask || d.Outcome == policy.Record; {
			case acts && !reach.Acts:
				t.Fatalf("%s: %s acts: %s", name, e.Data.Cause.Signal(), d)
			case d.Outcome == policy.Tell && d.Rule != "" && !reach.Notifies && !reach.Acts:
				t.Fatalf("%s: %s is told by a rule: %s", name, e.Data.Cause.Signal(), d)
			case d.Outcome == policy.Tell && d.Rule == "" && !reach.Default:
				t.Fatalf("%s: %s is told by default: %s", name, e.Data.Cause.Signal(), d)
			case acts:
				acted++
			case !reach.Acts && !reach.Notifies:
				idle++
			}
		}
		if acted == 0 || idle == 0 {
			t.Errorf("%s: %d acted and %d were excluded: nothing was tested", name, acted, idle)
		}
	}
}

func BenchmarkReach(b *testing.B) {
	e, _, _ := busy()
	book := policy.NewBook(manyRules(b, false))
	b.ReportAllocs()
	for b.Loop() {
		book.Reach(e)
	}
}
