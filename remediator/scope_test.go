package remediator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// changing is a fleet that a test changes: a new list, and a new view of each node that changed.
type changing struct{ all []*fleet.Node }

func (l *changing) Node(name string) (*fleet.Node, error) { return fleet.Find(l.all, name), nil }
func (l *changing) Fleet() []*fleet.Node                  { return l.all }

func (l *changing) change(k int, f func(*fleet.Node)) {
	n := *l.all[k]
	f(&n)
	l.all = slices.Clone(l.all)
	l.all[k] = &n
}

func nodesOfPools(n int) *changing {
	l := &changing{}
	for k := range n {
		l.all = append(l.all, &fleet.Node{Name: fmt.Sprintf("n%05d", k), Pool: "train", Labels: map[string]string{"team": "a"}})
	}
	return l
}

func ofTeam(team string) policy.Policy {
	p := policy.Policy{}
	p.Metadata.Name, p.Spec.AppliesTo.Nodes = "p", map[string]string{"team": team}
	return p
}

func TestAScopeThatFollowsChangesIsTheOneCountedAnew(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := nodesOfPools(30)
		follows := &judge{nodes: l}
		for step := range 300 {
			k := r.IntN(len(l.all))
			switch r.IntN(8) {
			case 0:
				l.all = slices.Delete(slices.Clone(l.all), k, k+1)
			case 1:
				l.all = append(slices.Clone(l.all), &fleet.Node{Name: fmt.Sprintf("x%05d", step), Quarantined: "i", Labels: map[string]string{"team": "a"}})
			case 2:
				l.change(k, func(n *fleet.Node) { n.Labels = map[string]string{"team": "b"} })
			case 3:
				l.change(k, func(n *fleet.Node) { n.Labels = map[string]string{"team": "a"} })
			case 4, 5:
				l.change(k, func(n *fleet.Node) { n.Quarantined = "i" })
			default:
				l.change(k, func(n *fleet.Node) { n.Quarantined = "" })
			}
			team := "a"
			if r.IntN(20) == 0 { // the policy is edited and put back
				team = "b"
			}
			got, want := follows.scope(ofTeam(team)), (&judge{nodes: l}).scope(ofTeam(team))
			byName := func(a, b guard.Place) bool { return a.Node == b.Node }
			if got.total != want.total || !slices.EqualFunc(got.quarantined, want.quarantined, byName) {
				t.Fatalf("seed %d, step %d: %d nodes, want %d: %s", seed, step, got.total, want.total, cmp.Diff(want.quarantined, got.quarantined))
			}
		}
	}
}

// A judgement in a storm: it looks at the node that changed, and copies none of the others.
func TestAJudgementOfAFleetOf5000NodesCopiesNoNode(t *testing.T) {
	l, p := nodesOfPools(5000), ofTeam("a")
	p.Spec.Guards = policy.DefaultGuards()
	j := &judge{nodes: l, policies: only{policy.NewBook([]policy.Policy{p})}, kill: func() guard.Kill { return guard.Kill{} }}
	plan := &incident.Plan{Policy: "p", Mode: policy.Enforce, Steps: []policy.PlannedStep{{Step: policy.Step{Do: policy.Cordon}}}}
	n := 0
	allocs := testing.AllocsPerRun(50, func() {
		n++
		l.change(n, func(n *fleet.Node) { n.Quarantined = "i" })
		f := incident.Facts{Now: time.Now(), Node: l.all[7], Incident: &incident.Incident{ID: "i"}, Wants: []guard.Place{{Node: l.all[7].Name}}, Seen: time.Now()}
		if v := j.Guards(plan, f, &ledger.Book{}); len(v) == 0 {
			t.Fatal("no verdicts")
		}
	})
	t.Logf("%.0f allocations", allocs)
	if allocs > 500 {
		t.Errorf("%.0f allocations for a judgement; 5,000 nodes are copied or looked at anew", allocs)
	}
}

// only is a book that does not change.
type only struct{ b *policy.Book }

func (o only) current() *policy.Book { return o.b }

// One node changes before each judgement, as in a storm.
func BenchmarkScopeOfAFleetInWhichOneNodeChanged(b *testing.B) {
	l := nodesOfPools(5000)
	j, p := &judge{nodes: l}, ofTeam("a")
	j.scope(p)
	for n := 0; b.Loop(); n++ {
		l.change(n%50*100, func(n *fleet.Node) { n.Quarantined = "i" })
		j.scope(p)
	}
}
