package incident

import (
	"context"
	"strings"
	"testing"
	"time"
)

const remap = "gpu/row-remap.pending gpu/GPU-9, critical"

// sick lets a node's agent say that its hardware is ill, or with "" that it is well.
func (s *stage) sick(node, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ill[node] = what
}

func TestANodeWhoseAgentSaysThatItIsIllIsNotChosen(t *testing.T) {
	on(t, func(s *stage) {
		s.sick("n3", remap)
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Minute, Recovered)
		var b strings.Builder
		i.Write(&b)
		if s.gangs["job-train"].Member(0).Node != "n4" || !strings.Contains(b.String(), "n3         open-condition distance") || !strings.Contains(b.String(), remap) {
			t.Errorf("pod 0 on %s\n%s", s.gangs["job-train"].Member(0).Node, b.String())
		}
	})
}

func TestWhereEveryNodeIsIllNothingIsStoppedUntilOneIsWell(t *testing.T) {
	on(t, func(s *stage) {
		for _, n := range []string{"n3", "n4", "n5", "n6"} {
			s.sick(n, remap)
		}
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(5 * time.Minute)
		i := s.only()
		if !i.NeedsPerson() || !strings.Contains(i.Waiting, "4 open-condition, 1 holds-peer; mend n3 ("+remap) || s.count("evict train-0-1") != 0 || len(s.holding) != 0 {
			t.Fatalf("%s waiting %q, did %q", i.State, i.Waiting, s.did)
		}
		s.sick("n5", "")
		s.closes(time.Minute, Recovered)
		if n := s.gangs["job-train"].Member(0).Node; n != "n5" {
			t.Errorf("pod 0 on %s; did %q\n%s", n, s.did, s.only().story())
		}
	})
}

func TestANodeThatFallsIllBetweenChoosingAndUsingIsNotUsed(t *testing.T) {
	for _, state := range []State{Planned, Cordoned, Checkpointed, Placed} {
		for name, launcher := range map[string]bool{"launcher": true, "recreate": false} {
			t.Run(string(state)+"/"+name, func(t *testing.T) {
				on(t, func(s *stage) {
					s.gangs["job-train"].Launcher = launcher
					s.e.Stepped = func(i *Incident) {
						if i.State == state && i.Round == 1 {
							s.sick("n3", remap)
						}
					}
					s.says(at("gpu/row-remap", "n1"))
					i := s.closes(2*time.Minute, Recovered)
					s.wantOnce()
					if n := s.gangs["job-train"].Member(0).Node; n != "n4" || *i.LostSteps != 0 || i.Restarts != 1 {
						t.Errorf("pod 0 on %s, %d steps lost, %d restarts", n, *i.LostSteps, i.Restarts)
					}
				})
			})
		}
	}
}

// The old pod was ending when its move was planned anew; the new one was made a moment before its reservation was moved.
func TestAReplacementThatWasSentToANodeThatIsFaultyByNowIsMadeAnew(t *testing.T) {
	for name, launcher := range map[string]bool{"launcher": true, "recreate": false} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.gangs["job-train"].Launcher = launcher
				made := false
				s.e.Stepped = func(i *Incident) {
					if i.State != Placed || i.Round > 2 || made {
						return
					}
					if i.Round == 1 {
						go s.e.Handle(context.Background(), at("xid/79", "n3"), Origin{})
						return
					}
					made = true
					s.mu.Lock()
					defer s.mu.Unlock()
					g := s.gangs["job-train"]
					s.remake(g, 0)
					g.Members[0].SentTo = "n3"
				}
				s.says(at("gpu/row-remap", "n1"))
				s.closes(90*time.Second, Recovered)
				if n := s.gangs["job-train"].Member(0).Node; n != "n4" {
					t.Errorf("pod 0 on %s; did %q\n%s", n, s.did, s.only().story())
				}
			})
		})
	}
}
