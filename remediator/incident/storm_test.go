package incident

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// slowNodes is a cluster on which each cordon takes a second.
type slowNodes struct {
	*world
	lock      sync.Mutex
	now, most int
}

func (c *slowNodes) Cordon(ctx context.Context, node, incident string) (cluster.Cordoned, error) {
	c.lock.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.lock.Unlock()
	time.Sleep(time.Second)
	defer func() { c.lock.Lock(); c.now--; c.lock.Unlock() }()
	return c.world.Cordon(ctx, node, incident)
}

// joins lets a fault of another node join at a moment of the first round.
func joins(s *stage, when State, node string, more func(*Engine)) {
	s.stop()
	once := sync.Once{}
	s.startAs(func(e *Engine) {
		e.AfterStep = func(st State) {
			if st == when {
				once.Do(func() { s.says(at("gpu/row-remap", node)) })
			}
		}
		more(e)
	})
}

func TestNodesOfOneIncidentAreCordonedTogether(t *testing.T) {
	on(t, func(s *stage) {
		slow := &slowNodes{world: s.world}
		joins(s, Correlated, "n2", func(e *Engine) { e.Cluster = slow })
		s.says(at("gpu/row-remap", "n1"))
		s.passes(Cordoned)
		if i := s.only(); slow.most != 2 || len(i.Cordons) != 2 {
			t.Errorf("%d cordons at a time, cordoned %v", slow.most, i.Cordons)
		}
		s.closes(time.Minute, Recovered)
		s.wantOnce()
	})
}

// The grant covers the first node alone, and the second one may need another rule, a person or a place that is not free.
func TestANodeThatWasGrantedIsCordonedBeforeAFaultThatJoinedIsPlanned(t *testing.T) {
	for _, when := range []State{Planned, Approved} {
		t.Run(string(when), func(t *testing.T) {
			on(t, func(s *stage) {
				joins(s, when, "n2", func(*Engine) {})
				var first *Incident
				var granted []string
				s.e.Stepped = func(i *Incident) {
					if i.State == Cordoned && first == nil {
						first = i
						book := s.e.Ledger.Book()
						for _, n := range book.Grant(i.ID).Nodes {
							granted = append(granted, n.Node)
						}
					}
				}
				s.says(at("gpu/row-remap", "n1"))
				i := s.closes(time.Minute, Recovered)
				if first == nil || first.Round != 1 || !slices.Equal(first.Cordons, []string{"n1"}) || !slices.Equal(granted, []string{"n1"}) {
					t.Errorf("first cordoned %v in round %d with a grant for %v", first.Cordons, first.Round, granted)
				}
				if i.Round != 2 || !slices.Equal(i.Cordons, []string{"n1", "n2"}) {
					t.Errorf("cordoned %v in %d rounds", i.Cordons, i.Round)
				}
				s.wantOnce()
			})
		})
	}
}

// Whoever agrees to a plan has seen it: one that a fault joined is shown anew.
func TestAPlanThatAPersonAgreesToIsNotActedOnOnceAFaultJoined(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		joins(s, Approved, "n2", func(*Engine) {})
		s.says(at("gpu/row-remap", "n1"))
		s.reaches(time.Minute, Planned)
		s.answer("approved by ann")
		i := s.until(time.Minute, "planned again", func(i Incident) bool { return i.Round == 2 && i.State == Planned })
		if len(s.did) != 0 || i.Approval != "" {
			t.Errorf("did %q by the answer %q", s.did, i.Approval)
		}
	})
}

// helping keeps the last question whether a node helps.
type helping struct {
	*world
	lock  sync.Mutex
	helps func(*fleet.Node) bool
}

func (h *helping) Wakes(job string, helps func(*fleet.Node) bool) (<-chan struct{}, func()) {
	h.lock.Lock()
	h.helps = helps
	h.lock.Unlock()
	return h.world.Wakes(job, helps)
}

func TestOnlyANodeThatCouldTakeThePodWakesWhoWaitsForOne(t *testing.T) {
	on(t, func(s *stage) {
		h := &helping{world: s.world}
		s.stop()
		s.mu.Lock()
		for name, n := range s.nodes {
			if name != "n1" && name != "n2" {
				n.held = "maintenance"
			}
		}
		s.mu.Unlock()
		s.startAs(func(e *Engine) { e.Cluster = h })
		s.says(at("gpu/row-remap", "n1"))
		i := s.until(time.Minute, "waiting for a node", func(i Incident) bool { return i.Wait != nil && i.Wait.Reason == ReasonNode })
		time.Sleep(10 * time.Second)
		h.lock.Lock()
		defer h.lock.Unlock()
		if h.helps == nil {
			t.Fatal("no node wakes it")
		}
		for what, c := range map[string]struct {
			change func(*fleet.Node)
			want   bool
		}{
			"as it should be":               {func(*fleet.Node) {}, true},
			"reserved for this incident":    {func(n *fleet.Node) { n.Reserved = i.ID }, true},
			"reserved for another":          {func(n *fleet.Node) { n.Reserved = "inc-2" }, false},
			"cordoned":                      {func(n *fleet.Node) { n.Unschedulable = true }, false},
			"full":                          {func(n *fleet.Node) { n.Free = map[string]int64{"gpu": 0} }, false},
			"with a condition that is open": {func(n *fleet.Node) { n.Condition = "gpu/ecc" }, false},
		} {
			n := &fleet.Node{Name: "n9", Ready: true, Free: map[string]int64{"gpu": 1}}
			if c.change(n); h.helps(n) != c.want {
				t.Errorf("a node %s: %v", what, !c.want)
			}
		}
	})
}

// questions looks, while an event is looked up, whether another event of the job could be dealt with.
type questions struct {
	*world
	e       func() *Engine
	blocked bool
}

func (q *questions) Known(ctx context.Context, id string) (bool, error) {
	keys := &q.e().keys
	keys.mu.Lock()
	q.blocked = q.blocked || keys.held["job/job-train"] != nil
	keys.mu.Unlock()
	return q.world.Known(ctx, id)
}

func TestAnEventIsLookedUpBeforeItsJobIsLocked(t *testing.T) {
	on(t, func(s *stage) {
		q := &questions{world: s.world, e: func() *Engine { return s.e }}
		asks(s)
		s.says(at("gpu/row-remap", "n1"))
		s.reaches(time.Minute, Planned)
		s.e.Seen = q
		s.says(at("gpu/row-remap", "n2"))
		if i := s.only(); q.blocked || len(i.Faults) != 2 {
			t.Errorf("the job was locked: %v; %d faults", q.blocked, len(i.Faults))
		}
	})
}

func TestOnlyAnAnswerWakesAnIncident(t *testing.T) {
	d := &driver{wake: make(chan struct{}, 1)}
	d.now.Store(&Incident{ID: "inc-1"})
	e := &Engine{drivers: map[string]*driver{"inc-1": d}}
	for _, c := range []struct {
		a    Approval
		want int
	}{{Approval{ID: "inc-1"}, 0}, {Approval{ID: "inc-2", Text: "approved by ann"}, 0}, {Approval{ID: "inc-1", Text: "approved by ann"}, 1}} {
		if e.Answered(c.a); len(d.wake) != c.want {
			t.Errorf("%+v: %d wakes, want %d", c.a, len(d.wake), c.want)
		}
	}
}

func TestEachNodeOfALargeGangThatFailsIsCordonedAndARepetitionAddsNothing(t *testing.T) {
	i := Incident{ID: "inc-1", State: Detected}
	take := func(f Fault) bool {
		if !i.matters(&f) {
			return false
		}
		i.Faults = append(i.Faults, f)
		return true
	}
	for k := range maxNodes {
		if !take(Fault{Node: fmt.Sprint("n", k), Signal: "xid/79", Moves: true}) {
			t.Fatalf("node %d is left out", k)
		}
	}
	for what, f := range map[string]Fault{
		"a node beyond the bound": {Node: "more", Signal: "xid/79", Moves: true},
		"another fault of a node": {Node: "n1", Signal: "gpu/lost", Moves: true},
		"a rank's fault":          {Node: "n1", Signal: "rank/dead"},
	} {
		if take(f) {
			t.Errorf("%s was taken in", what)
		}
	}
	small := Incident{ID: "inc-2", State: Detected, Faults: i.Faults[:maxFaults]}
	if small.matters(&Fault{Node: "n1", Signal: "gpu/lost", Moves: true}) {
		t.Error("another fault of a known node was taken in beyond maxFaults")
	}
}

func TestWordsForPeopleWaitForTheCordonsOfOtherIncidentsAndNotForLong(t *testing.T) {
	for name, c := range map[string]struct {
		id    string
		lasts time.Duration
		want  time.Duration // until they are said, at least; at most tellLook more
	}{
		"nobody else cordons":       {"inc-1", 10 * time.Second, 0},
		"another one is done":       {"inc-2", 0, rushFor},
		"others cordon for 2 s":     {"inc-2", 2 * time.Second, 2*time.Second + rushFor},
		"others cordon without end": {"inc-2", time.Minute, tellWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, began := &Engine{Now: time.Now}, time.Now()
				d := &driver{e: e}
				d.now.Store(&Incident{ID: "inc-1"})
				e.rush.cordons(c.id, e.Now())
				go func() {
					for time.Since(began) < c.lasts {
						time.Sleep(tellLook)
						e.rush.cordons(c.id, e.Now())
					}
				}()
				defer time.Sleep(2 * time.Minute) // until the other one has ended
				if !d.calm(t.Context()) {
					t.Fatal("nothing was said")
				}
				if took := time.Since(began); took < c.want || took > c.want+2*tellLook {
					t.Errorf("said after %s, want %s", took, c.want)
				}
			})
		})
	}
}

func TestANodeThatWasGivenBackMeanwhileIsNotReportedAsQuarantined(t *testing.T) {
	on(t, func(s *stage) {
		s.budget = func() error { return errBudget } // it waits after the cordon
		stop := time.AfterFunc(0, func() {
			for range 60 {
				s.e.rush.cordons("another", s.e.Now())
				time.Sleep(tellLook)
			}
		})
		defer stop.Stop()
		s.e.rush.cordons("another", s.e.Now())
		s.says(at("gpu/row-remap", "n1"))
		s.until(time.Minute, "waiting", func(i Incident) bool { return i.Wait != nil && i.Wait.Reason == ReasonBudget })
		s.stand("gpu/row-remap", "n1", Ended)
		s.e.Wake()
		i := s.closes(tellWait, Resolved)
		time.Sleep(time.Minute)
		if n := s.count("condition n1"); n > 0 || len(i.Cordons) > 0 {
			t.Errorf("%d conditions, cordoned %v, did %q", n, i.Cordons, s.did)
		}
	})
}
