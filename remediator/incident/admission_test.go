package incident

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// witnessed is the world, with what each incident changed and when. It judges the limits by what happened to nodes and pods, and knows
// nothing of the ledger.
type witnessed struct {
	*world
	ranks
	limit   policy.Guards
	spans   map[string][]span // by incident: from a first change to a last one, without a recorded wait in between
	actions []time.Time       // disruptive ones
	done    map[string]bool   // those that are counted
	most    map[string]int    // the greatest count of each kind
}

type span struct {
	from, to time.Time
	ended    bool
}

func newWitness(w *world, limit policy.Guards) *witnessed {
	x := &witnessed{world: w, ranks: ranks{w}, limit: limit, spans: map[string][]span{}, done: map[string]bool{}, most: map[string]int{}}
	w.incidents.stored = func(key string) { // under the world's lock
		i := w.incidents.values[key].v
		if n := len(x.spans[key]); n > 0 && (!i.Open() || i.Wait != nil && meanings[i.Wait.Reason].parks && !i.stopped()) {
			x.spans[key][n-1].ended = true
		}
	}
	return x
}

// acts notes a change before it is made, under the world's lock.
func (x *witnessed) acts(incident, action string) {
	now := time.Now()
	s := x.spans[incident]
	if n := len(s); n > 0 && !s[n-1].ended {
		s[n-1].to = now
	} else {
		x.spans[incident] = append(s, span{from: now, to: now})
	}
	if action != "" && !x.done[incident+" "+action] {
		x.done[incident+" "+action] = true
		x.actions = append(x.actions, now)
	}
	n := 0
	for _, at := range x.actions {
		if now.Sub(at) < time.Duration(x.limit.ActionBudget.Per)-20*time.Second { // an action is recorded a moment before it is done
			n++
		}
	}
	x.exceeds("actions in the budget's window", n, x.limit.ActionBudget.Count)
}

func (x *witnessed) exceeds(what string, n, limit int) {
	x.most[what] = max(x.most[what], n)
	if n > limit {
		x.t.Errorf("%s: %d, the limit is %d", what, n, limit)
	}
}

func (x *witnessed) Cordon(ctx context.Context, node, incident string) (cluster.Cordoned, error) {
	x.mu.Lock()
	if x.nodes[node].quarantined == "" {
		x.acts(incident, "cordon "+node)
	}
	x.mu.Unlock()
	out, err := x.world.Cordon(ctx, node, incident)
	x.mu.Lock()
	defer x.mu.Unlock()
	all, rack := 0, map[string]int{}
	for _, n := range x.nodes {
		if n.quarantined != "" {
			all++
			rack[n.rack]++
		}
	}
	x.exceeds("nodes cordoned", all, x.limit.MaxNodesQuarantined.Count)
	x.exceeds("nodes cordoned in one rack", rack[x.nodes[node].rack], x.limit.MaxNodesQuarantined.PerRack)
	return out, err
}

func (x *witnessed) Save(ctx context.Context, q checkpoint.Request) (bus.Save, error) {
	x.mu.Lock()
	x.acts(q.ID[:strings.LastIndex(q.ID, "-")], "")
	x.mu.Unlock()
	return x.ranks.Save(ctx, q)
}

func (x *witnessed) Reserve(ctx context.Context, r cluster.Reservation) error {
	x.mu.Lock()
	for key, node := range x.reserved {
		if node == r.Node && x.reservedBy[key] != r.Incident {
			x.t.Errorf("%s is reserved for %s and for %s", node, x.reservedBy[key], r.Incident)
		}
	}
	x.acts(r.Incident, "")
	x.mu.Unlock()
	return x.world.Reserve(ctx, r)
}

func (x *witnessed) ReplacePod(ctx context.Context, m cluster.Member, o cluster.ReplaceOptions) (cluster.Outcome, error) {
	x.mu.Lock()
	x.acts(o.Incident, "restart")
	x.mu.Unlock()
	return x.world.ReplacePod(ctx, m, o)
}

func (x *witnessed) Release(ctx context.Context, incident string) error {
	x.mu.Lock()
	if s := x.spans[incident]; len(s) > 0 {
		s[len(s)-1].to = time.Now()
	}
	x.mu.Unlock()
	return x.world.Release(ctx, incident)
}

// atOnce is how many incidents were between a first and a last change at the busiest moment.
func (x *witnessed) atOnce() (most int) {
	type edge struct {
		at time.Time
		by int
	}
	var edges []edge
	for _, all := range x.spans {
		for _, s := range all {
			edges = append(edges, edge{s.from, 1}, edge{s.to, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.by - b.by
	})
	n := 0
	for _, e := range edges {
		n += e.by
		most = max(most, n)
	}
	return most
}

// released gives Release of the Checkpointer, which the Cluster has too.
type released struct{ *witnessed }

func (r released) Release(ctx context.Context, members []checkpoint.Member, s bus.Save) error {
	return r.ranks.Release(ctx, members, s)
}

func (r released) Observe(ctx context.Context, members []checkpoint.Member) (checkpoint.Gang, map[string]error) {
	return r.ranks.Observe(ctx, members)
}

// 200 faults: of nodes alone, of gangs that can be moved, and of gangs for which no node is free. The last are more than may act at once, so
// that nothing heals if they count as acting.
const (
	heldAlone, heldMoved, heldStuck = 120, 70, 10
)

// storm sets them up and gives the faulty nodes.
func storm(s *stage) (faulty []string) {
	s.nodes, s.gangs = map[string]*node{}, map[string]*gang{}
	for k := range 320 {
		s.nodes[fmt.Sprintf("n%03d", k)] = &node{rack: fmt.Sprintf("r%02d", k/10)}
	}
	next := 0
	node := func() string {
		next++
		return fmt.Sprintf("n%03d", next-1)
	}
	for range heldAlone {
		faulty = append(faulty, node())
	}
	for k := range heldMoved {
		n := node()
		s.gang(fmt.Sprintf("j%03d", k), n)
		faulty = append(faulty, n)
	}
	for k := range heldStuck {
		n := fmt.Sprintf("n%03d", 200+10*k) // each in a rack of its own
		s.nodes[n].product = "rare"
		s.gang(fmt.Sprintf("stuck%d", k), n)
		faulty = append(faulty, n)
	}
	return faulty
}

func TestLimitsHoldAtEveryMomentWhile200HeldIncidentsAreResumedAtOnceAndAllThatCanHealDo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	seeds := histories(1, 20)
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { resumeAll(t, uint64(seed)) })
		})
	}
}

// histories is how many random histories a test runs: all if PITCREW_HISTORIES asks for as many.
func histories(few, all int) int {
	if n, err := strconv.Atoi(os.Getenv("PITCREW_HISTORIES")); err == nil {
		return min(n, all)
	}
	return few
}

func resumeAll(t *testing.T, seed uint64) {
	s := &stage{world: newWorld(t)}
	faulty := storm(s)
	rnd := rand.New(rand.NewPCG(seed, 1))
	slow := func() { // called without the world's lock
		s.mu.Lock()
		d := time.Duration(1+rnd.IntN(20)) * time.Millisecond
		s.mu.Unlock()
		time.Sleep(d)
	}
	s.incidents.put = func(string, Incident) error { slow(); return nil }
	s.attempts.put = func(string, bus.Attempt) error { slow(); return nil }
	s.books.put = func(string, ledger.Book) error { slow(); return nil }

	g := policy.DefaultGuards()
	g.MaxConcurrentIncidents = 6 + int(seed%4)
	g.MaxNodesQuarantined = policy.Share{Count: 32, PerRack: 3}
	g.ActionBudget = policy.Budget{Count: 60, Per: policy.Duration(10 * time.Minute)}
	real := &realGuards{world: s.world, policy: policy.Policy{Metadata: policy.Metadata{Name: "gpu"}, Spec: policy.Spec{Mode: policy.Enforce, Guards: g}}}
	seen := newWitness(s.world, g)
	lead := func(term int64) {
		s.lead(term, func(e *Engine) { e.Judge, e.Cluster, e.Checkpoint = real, seen, released{seen} })
	}
	hold := func(on bool) {
		if seed%2 == 0 {
			real.pause(on)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range faulty {
			if s.nodes[n].held = ""; on {
				s.nodes[n].held = "maintenance"
			}
		}
	}
	lead(1)
	defer func() { s.stop() }()
	hold(true)
	for _, n := range faulty {
		s.says(at("xid/79", n, func(e *event.Event) { e.Data.Severity = event.Critical }))
	}
	time.Sleep(2 * time.Minute)
	if open, _ := s.e.Incidents(); len(open) != len(faulty) || len(s.did) > 0 {
		t.Fatalf("seed %d: %d incidents are held, did %q", seed, len(open), s.did)
	}
	hold(false)
	s.e.Wake()
	time.Sleep(time.Duration(500+rnd.IntN(20000)) * time.Millisecond)
	s.stop() // midway
	lead(2)

	for end := time.Now().Add(3 * time.Hour); time.Now().Before(end); time.Sleep(20 * time.Second) {
		synctest.Wait()
		if repaired := s.repair(t); repaired == 0 && len(s.open()) == heldStuck {
			break
		}
	}
	healed := 0
	for _, i := range s.all() {
		switch stuck := i.Job != nil && strings.HasPrefix(i.Job.Name, "stuck"); {
		case stuck && (!i.Open() || i.Wait == nil || i.Wait.Reason != ReasonNode || !i.NeedsPerson() || i.stopped()):
			t.Errorf("seed %d: %s has no free node and is %s, waiting %q, needs a person: %v", seed, i.ID, i.State, i.Waiting, i.NeedsPerson())
		case stuck:
		case i.Outcome != Recovered && i.Outcome != Quarantined:
			t.Errorf("seed %d: %s on %s is %s %s (%s), waiting %q", seed, i.ID, i.Faults[0].Node, i.State, i.Outcome, i.Reason, i.Waiting)
		default:
			healed++
		}
	}
	if want := heldAlone + heldMoved; healed != want {
		t.Errorf("seed %d: %d healed, want %d", seed, healed, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen.exceeds("incidents acting at once", seen.atOnce(), g.MaxConcurrentIncidents)
	for what, least := range map[string]int{"nodes cordoned": 30, "nodes cordoned in one rack": 3, "actions in the budget's window": 50, "incidents acting at once": 3} {
		if seen.most[what] < least {
			t.Errorf("seed %d: at most %d %s: the test does not come near the limit", seed, seen.most[what], what)
		}
	}
}

// repair lets a person repair and uncordon the nodes of closed incidents. It counts them.
func (s *stage) repair(t *testing.T) (n int) {
	for _, i := range s.all() {
		for _, node := range i.Cordons {
			s.mu.Lock()
			mine := !i.Open() && s.nodes[node].quarantined == i.ID
			if mine {
				s.nodes[node].quarantined, s.stands[i.Faults[0].Signal+" "+node] = "", Ended
			}
			s.mu.Unlock()
			if mine {
				n++
				if err := s.e.Uncordoned(context.Background(), node, time.Now()); err != nil {
					t.Error(err)
				}
			}
		}
	}
	return n
}

// open are the incidents that are open.
func (s *stage) open() []*Incident {
	open, _ := s.e.Incidents()
	return open
}
