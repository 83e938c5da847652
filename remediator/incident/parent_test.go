package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// racks lays nodes out in racks: rack 1 has the nodes r1-0 and so on. Every rule groups three nodes within a minute.
func (s *stage) racks(racks, nodes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.gangs = map[string]*node{}, map[string]*gang{}
	for r := range racks {
		for n := range nodes {
			s.nodes[fmt.Sprintf("r%d-%d", r+1, n)] = &node{rack: fmt.Sprint("r", r+1)}
		}
	}
	for signal, p := range s.plans {
		p.OneCause = policy.Grouping{Nodes: 3, Within: policy.Duration(time.Minute)}
		s.plans[signal] = p
	}
	s.refuses = func(_ *Plan, f Facts) []guard.Verdict {
		if f.Node != nil && f.Node.Held != "" {
			return []guard.Verdict{{Guard: guard.Hold, Asked: true, Detail: f.Node.Held}}
		}
		return nil
	}
}

// replan changes the plan of a signal.
func (s *stage) replan(signal string, change func(*Plan)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.plans[signal]
	change(&p)
	s.plans[signal] = p
}

// fail lets so many nodes of rack 1 fail at once.
func (s *stage) fail(nodes int) {
	s.t.Helper()
	for k := range nodes {
		s.says(at("xid/79", fmt.Sprint("r1-", k)))
	}
}

// family are the parents, and all other incidents, oldest first.
func (s *stage) family() (parents, children []Incident) {
	synctest.Wait()
	for _, i := range s.all() {
		if i.Group != nil {
			parents = append(parents, i)
		} else {
			children = append(children, i)
		}
	}
	slices.SortFunc(children, func(a, b Incident) int { return a.Opened.Compare(b.Opened) })
	return parents, children
}

// parent is the only one there is.
func (s *stage) parent() Incident {
	s.t.Helper()
	parents, _ := s.family()
	if len(parents) != 1 {
		s.t.Fatalf("%d parents, want 1", len(parents))
	}
	return parents[0]
}

// of is the incident of a node.
func (s *stage) of(node string) Incident {
	s.t.Helper()
	_, children := s.family()
	k := slices.IndexFunc(children, func(i Incident) bool { return i.Faults[0].Node == node })
	if k < 0 {
		s.t.Fatalf("no incident on %s", node)
	}
	return children[k]
}

// answerParent stores what the command line does.
func (s *stage) answerParent(id, words string) {
	s.t.Helper()
	i, rev, err := s.incidents.Get(context.Background(), id)
	if err == nil {
		i.Approval = words
		_, err = s.incidents.Put(context.Background(), id, i, rev)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
}

// speakers are the incidents of which people are told.
func (s *stage) speakers() (ids []string) {
	synctest.Wait()
	for _, i := range s.all() {
		if s.e.Speaks(&i) {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

func TestThreeNodesOfARackAreOneIncidentWithTheirsAsChildren(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(2, 8)
		for k := range 3 {
			s.says(at("xid/79", fmt.Sprint("r1-", k)))
			time.Sleep(5 * time.Second)
		}
		s.says(at("xid/79", "r2-0")) // of another rack
		time.Sleep(5 * time.Second)
		p := s.parent()
		if p.Group.Domain.Kind != RackDomain || !strings.HasSuffix(p.Group.Domain.Name, "=r1") || len(p.Group.Children) != 3 || p.State != Grouped || p.Group.Ended != 3 {
			t.Errorf("%+v", p.Group)
		}
		_, children := s.family()
		for _, c := range children {
			if isOf := c.Faults[0].Node != "r2-0"; isOf != (c.Parent == p.ID) || c.Outcome != Quarantined {
				t.Errorf("%s on %s is %s and has the parent %q", c.ID, c.Faults[0].Node, c.Outcome, c.Parent)
			}
		}
		s.says(at("xid/79", "r1-7")) // late, while the parent is open
		time.Sleep(5 * time.Second)
		if p = s.parent(); len(p.Group.Children) != 4 || s.of("r1-7").Parent != p.ID {
			t.Errorf("%d children after a late one", len(p.Group.Children))
		}
		time.Sleep(70 * time.Second)
		if p = s.parent(); p.Open() || p.Outcome != Quarantined || p.Reason != "all 4 incidents have ended: 4 quarantined" {
			t.Errorf("%s %s: %s", p.State, p.Outcome, p.Reason)
		}
		s.says(at("xid/79", "r1-6"))
		time.Sleep(5 * time.Second)
		if s.of("r1-6").Parent != "" {
			t.Error("it joined a parent that has ended")
		}
	})
}

func TestOnlyTheFirstIncidentAndThenItsParentSpeak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{world: newWorld(t)}
		var alone []string
		s.startAs(func(e *Engine) { e.Alone = func(i *Incident) { alone = append(alone, i.Faults[0].Node) } })
		defer func() { s.stop() }()
		s.racks(2, 8)
		s.says(at("xid/79", "r1-0"))
		time.Sleep(10 * time.Second)
		s.says(at("xid/79", "r1-1"))
		time.Sleep(100 * time.Millisecond)
		if got := s.speakers(); len(got) != 1 || got[0] != s.of("r1-0").ID {
			t.Errorf("%v speak, of two in a rack", got)
		}
		s.says(at("xid/79", "r1-2"))
		time.Sleep(3 * time.Second)
		if got := s.speakers(); len(got) != 1 || got[0] != s.parent().ID || s.parent().Group.First != s.of("r1-0").ID {
			t.Errorf("%v speak, not the parent alone", got)
		}
		s.says(at("xid/79", "r2-0"))
		time.Sleep(time.Second)
		s.says(at("xid/79", "r2-1"))
		time.Sleep(50 * time.Second)
		if len(alone) != 0 {
			t.Errorf("%v spoke before the window was over", alone)
		}
		time.Sleep(15 * time.Second)
		if !slices.Equal(alone, []string{"r2-1"}) {
			t.Errorf("%v spoke after the window", alone)
		}
		if n := len(s.speakers()); n != 3 { // the parent, and the two of the other rack
			t.Errorf("%d speak in the end", n)
		}
	})
}

func TestAStormOf500NodesIn17RacksIsAParentForEachRackOrOneForTheirPool(t *testing.T) {
	for _, pool := range []string{"", "h100"} {
		t.Run("pool "+pool, func(t *testing.T) {
			on(t, func(s *stage) {
				s.racks(17, 30)
				for _, n := range s.nodes {
					n.pool = pool
				}
				for _, name := range s.names()[:500] {
					s.says(at("xid/79", name))
				}
				time.Sleep(20 * time.Second)
				parents, children := s.family()
				want := 17
				if pool != "" {
					want = 1
				}
				if len(parents) != want || len(children) != 500 {
					t.Fatalf("%d parents of %d incidents, want %d", len(parents), len(children), want)
				}
				n := 0
				for _, p := range parents {
					n += len(p.Group.Children)
				}
				if n != 500 || len(s.speakers()) != want {
					t.Errorf("%d children; %d speak", n, len(s.speakers()))
				}
			})
		})
	}
}

func TestTheNarrowestDomainThatExplainsTheNodesIsTheOneThatFailed(t *testing.T) {
	limits := policy.Grouping{Nodes: 3, Within: policy.Duration(time.Minute)}
	for name, c := range map[string]struct {
		nodes string // rack and pool of each
		want  string
	}{
		"two nodes":                      {"a/x a/x", ""},
		"a rack":                         {"a/x a/x a/x", "rack a:3"},
		"a rack and a stray":             {"a/x a/x a/x b/x", "rack a:3"},
		"nodes of many racks":            {"a/x b/x c/x", "pool x:3"},
		"two racks":                      {"a/x a/x a/x b/x b/x b/x", "rack a:3 rack b:3"},
		"three racks are their pool":     {"a/x a/x a/x b/x b/x b/x c/x c/x c/x d/x", "pool x:10"},
		"nodes without a rack":           {"/x /x /x", "pool x:3"},
		"nodes of which nothing is said": {"/ / / /", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var all []*sibling
			for k, n := range strings.Fields(c.nodes) {
				rack, pool, _ := strings.Cut(n, "/")
				s := &sibling{id: fmt.Sprint(k), node: fmt.Sprint("n", k), rule: "p/r", limits: limits}
				for _, d := range []Domain{{RackDomain, rack}, {PoolDomain, pool}} {
					if d.Name != "" {
						s.domains = append(s.domains, d)
					}
				}
				all = append(all, s)
			}
			var got []string
			for _, g := range gatherings(all) {
				got = append(got, fmt.Sprintf("%s:%d", g.Domain, len(g.members)))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%v, want %q", got, c.want)
			}
		})
	}
}

func TestTwoIncidentsOfOneNodeAreNotTwoNodes(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(1, 8)
		s.mu.Lock()
		s.gang("a", "r1-0")
		s.gang("b", "r1-0")
		s.gang("c", "r1-0")
		s.mu.Unlock()
		s.says(at("xid/79", "r1-0"))
		time.Sleep(5 * time.Second)
		if parents, children := s.family(); len(parents) != 0 || len(children) != 3 || len(s.speakers()) != 3 {
			t.Errorf("%d parents of %d incidents of one node", len(parents), len(children))
		}
	})
}

func TestAPersonsYesToTheParentLetsInThoseThatAskedAndNoLateComer(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(1, 8)
		s.replan("xid/79", func(p *Plan) { p.NeedsApproval = true })
		s.fail(4)
		time.Sleep(5 * time.Second)
		p := s.parent()
		if p.Group.Asking != 4 || !p.Asks() || !p.NeedsPerson() || s.count("cordon r1-0") != 0 {
			t.Fatalf("%+v", p.Group)
		}
		s.answerParent(p.ID, "approved by ann")
		for k := range 4 {
			if c := s.of(fmt.Sprint("r1-", k)); c.Outcome != Quarantined || !strings.Contains(c.Approval, "approved by ann, for all of "+p.ID) {
				t.Errorf("%s: %s %s, %q", c.Faults[0].Node, c.State, c.Outcome, c.Approval)
			}
		}
		s.says(at("xid/79", "r1-7"))
		time.Sleep(5 * time.Second)
		if p = s.parent(); s.of("r1-7").State != Planned || p.Group.Asking != 1 || !p.Asks() {
			t.Errorf("a late comer was let in by an answer from before it: %+v", p.Group)
		}
		s.answerParent(p.ID, "rejected by bob")
		if c := s.of("r1-7"); c.Outcome != Refused || !strings.HasPrefix(c.Reason, "rejected by bob") {
			t.Errorf("%s %s", c.Outcome, c.Reason)
		}
	})
}

func TestAHeldParentHoldsItsChildrenAndANoEndsThoseThatHaveNotActed(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(1, 8)
		s.replan("xid/79", func(p *Plan) { p.NeedsApproval = true })
		s.fail(3)
		time.Sleep(5 * time.Second)
		p := s.parent()
		s.answerParent(p.ID, "held by ann")
		s.answerParent(p.ID, "approved by bob")
		if s.of("r1-0").State != Planned {
			t.Fatalf("%s though the parent is held", s.of("r1-0").State)
		}
		s.answerParent(p.ID, "released by ann")
		for k := range 3 {
			if c := s.of(fmt.Sprint("r1-", k)); c.Outcome != Quarantined {
				t.Errorf("%s is %s after the release: %s", c.Faults[0].Node, c.State, c.Waiting)
			}
		}
		s.replan("xid/79", func(p *Plan) { p.NeedsApproval = false })
		s.mu.Lock()
		s.nodes["r1-5"].held = "maintenance"
		s.mu.Unlock()
		s.says(at("xid/79", "r1-5"))
		time.Sleep(5 * time.Second)
		s.answerParent(p.ID, "rejected by ann")
		if c := s.of("r1-5"); c.Outcome != Refused || !strings.HasPrefix(c.Reason, "rejected by ann") {
			t.Errorf("%s %s %s", c.State, c.Outcome, c.Reason)
		}
	})
}

// A hold that nobody lifts ends, so that a parent cannot block a child for good.
func TestAPersonsHoldOfAParentLapses(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(1, 8)
		s.replan("xid/79", func(p *Plan) { p.NeedsApproval, p.TakeUpWithin, p.ApprovalWithin = true, 72*time.Hour, 72*time.Hour })
		s.fail(3)
		for k := range 3 {
			s.stands[fmt.Sprint("xid/79 r1-", k)] = Holds
		}
		time.Sleep(5 * time.Second)
		p := s.parent()
		s.answerParent(p.ID, "held by ann")
		s.answerParent(p.ID, "approved by bob")
		time.Sleep(25 * time.Hour)
		if c := s.of("r1-0"); c.Outcome != Quarantined {
			t.Errorf("%s: %s", c.State, c.Waiting)
		}
	})
}

// Whatever was stored last before the process ended, the next leader makes it whole.
func TestACrashBetweenAParentAndItsChildrenIsRepaired(t *testing.T) {
	for writes := range 10 {
		t.Run(fmt.Sprint("after write ", writes), func(t *testing.T) {
			on(t, func(s *stage) {
				s.racks(1, 8)
				s.fail(4)
				time.Sleep(500 * time.Millisecond) // they have ended; the parent is made a second after the first
				left := writes
				away := func(string, Incident) error {
					s.mu.Lock()
					defer s.mu.Unlock()
					if left--; left < 0 {
						return errors.New("the store is away")
					}
					return nil
				}
				store := func(put func(string, Incident) error) {
					s.mu.Lock()
					defer s.mu.Unlock()
					s.incidents.put = put
				}
				store(away)
				time.Sleep(2 * time.Second)
				s.stop()
				store(nil)
				s.start()
				time.Sleep(5 * time.Second)
				p := s.parent()
				for k := range 4 {
					if c := s.of(fmt.Sprint("r1-", k)); c.Parent != p.ID {
						t.Errorf("%s has the parent %q", c.Faults[0].Node, c.Parent)
					}
				}
				if len(p.Group.Children) != 4 || len(s.speakers()) != 1 {
					t.Errorf("%d children, %d speak", len(p.Group.Children), len(s.speakers()))
				}
				time.Sleep(2 * time.Minute)
				if p = s.parent(); p.Open() {
					t.Errorf("still %s: %s", p.State, p.Waiting)
				}
			})
		})
	}
}

func TestAParentEndsThoughAChildDoesNotAndTheChildSpeaksThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{world: newWorld(t)}
		var alone []string
		s.startAs(func(e *Engine) { e.Alone = func(i *Incident) { alone = append(alone, i.Faults[0].Node) } })
		defer func() { s.stop() }()
		s.racks(1, 8)
		s.replan("xid/79", func(p *Plan) { p.TakeUpWithin = 72 * time.Hour })
		s.nodes["r1-2"].held, s.stands["xid/79 r1-2"] = "maintenance", Holds
		s.fail(3)
		time.Sleep(23 * time.Hour)
		if p := s.parent(); !p.Open() || p.Group.Ended != 2 || p.Group.Stuck != 1 || !p.NeedsPerson() {
			t.Fatalf("%s %+v", p.State, p.Group)
		}
		time.Sleep(2 * time.Hour)
		if p := s.parent(); p.Open() || p.Outcome != GaveUp || !p.NeedsPerson() {
			t.Errorf("%s %s: %s", p.State, p.Outcome, p.Reason)
		}
		if !slices.Equal(alone, []string{"r1-2"}) {
			t.Errorf("%v spoke", alone)
		}
	})
}

// A node whose owner forges its rack joins the incident of that rack, and is judged by itself all the same.
func TestAForgedRackGivesANodeNothing(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(2, 8)
		s.replan("xid/79", func(p *Plan) { p.NeedsApproval = true })
		s.fail(3)
		time.Sleep(5 * time.Second)
		s.answerParent(s.parent().ID, "approved by ann")
		s.mu.Lock()
		s.nodes["r2-0"].rack = "r1"
		s.mu.Unlock()
		s.says(at("xid/79", "r2-0", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		time.Sleep(5 * time.Second)
		p := s.parent()
		if s.of("r2-0").State != Planned || p.Group.Asking != 1 || !slices.Contains(p.Group.Nodes(), "r2-0") {
			t.Errorf("%s, %+v", s.of("r2-0").State, p.Group)
		}
	})
}

func TestTwoLeadersMakeOneParent(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(1, 8)
		s.fail(4)
		time.Sleep(500 * time.Millisecond) // a parent is made a second after the first
		first := s.stop
		s.start() // the one before believes that it leads
		time.Sleep(30 * time.Second)
		first()
		if p := s.parent(); len(p.Group.Children) != 4 {
			t.Errorf("%d children", len(p.Group.Children))
		}
		s.wantOnce()
	})
}

func TestWhatAPolicyOnlyObservesIsOneIncidentToo(t *testing.T) {
	on(t, func(s *stage) {
		s.racks(1, 8)
		s.replan("xid/79", func(p *Plan) { p.Mode = policy.Observe })
		s.fail(5)
		time.Sleep(2 * time.Minute)
		p := s.parent()
		if p.Outcome != Observed || len(p.Group.Children) != 5 || len(s.speakers()) != 1 || len(s.did) > 0 {
			t.Errorf("%s: %s; %d speak, did %q", p.Outcome, p.Reason, len(s.speakers()), s.did)
		}
	})
}

func TestARecordOfAnEarlierVersionHasNoParentAndSpeaks(t *testing.T) {
	on(t, func(s *stage) {
		old := Incident{ID: "inc-old", State: Closed, Outcome: Quarantined, Opened: time.Now(), Faults: []Fault{{Node: "n1", Signal: "xid/79"}}}
		if _, err := s.incidents.Put(t.Context(), old.ID, old, 0); err != nil {
			t.Fatal(err)
		}
		s.stop()
		s.start()
		if !s.e.Speaks(&old) {
			t.Error("nobody is told of it")
		}
	})
}
