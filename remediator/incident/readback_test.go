package incident

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// eachWay plays it for a gang that its launcher brings back, and for one that is recreated.
func eachWay(t *testing.T, f func(s *stage, way string)) {
	for way, launcher := range map[string]bool{"launcher": true, "recreate": false} {
		t.Run(way, func(t *testing.T) {
			on(t, func(s *stage) {
				s.gangs["job-train"].Launcher = launcher
				f(s, way)
			})
		})
	}
}

// slip lets the next replacements be made without a reservation and come down on n6, whose GPUs are others if foreign.
func (s *stage) slip(n int, foreign bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for signal, p := range s.plans {
		p.fast(true)
		s.plans[signal] = p
	}
	if s.slips, s.slipsTo = n, "n6"; foreign {
		s.nodes["n6"].product = "other"
	}
}

func TestAReplacementThatSlippedToANodeThatWouldNotDoIsSentAway(t *testing.T) {
	eachWay(t, func(s *stage, _ string) {
		s.slip(1, true)
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Minute, Recovered)
		s.wantOnce()
		if n := s.gangs["job-train"].Member(0).Node; n != "n3" || len(i.Strays) != 1 || s.count("evict "+i.Strays[0]) != 1 || i.Restarts != 1 {
			t.Errorf("pod 0 on %s, strays %v, %d restarts, did %q", n, i.Strays, i.Restarts, s.did)
		}
		if !strings.Contains(i.story(), "is not for its reserved node n3 but for n6, which would not do; sent away") {
			t.Errorf("the story does not say so:\n%s", i.story())
		}
	})
}

func TestAReplacementThatSlippedToANodeAsGoodStaysAndTheReservationGoes(t *testing.T) {
	eachWay(t, func(s *stage, way string) {
		s.slip(1, false)
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Minute, Recovered) // which looks for reservations left
		s.wantOnce()
		if n := s.gangs["job-train"].Member(0).Node; n == "n1" || way == "launcher" && n != "n6" || len(i.Strays) != 0 || i.Moves[0].To != "n6" || s.count("release") != 1 {
			t.Errorf("pod 0 on %s, strays %v, moves %+v, did %q", n, i.Strays, i.Moves, s.did)
		}
		if strings.Count(i.story(), "is not on its reserved node n3 but on n6, which does as well") != 1 {
			t.Errorf("the story does not say so:\n%s", i.story())
		}
	})
}

// One that has no node yet may come down anywhere, so it is not waited for: here it never would.
func TestAReplacementThatSlippedAndFindsNoNodeIsSentAway(t *testing.T) {
	eachWay(t, func(s *stage, _ string) {
		s.slip(1, true)
		s.nodes["n6"].quarantined = "inc-of-old"
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(time.Minute, Recovered)
		if n := s.gangs["job-train"].Member(0).Node; n != "n3" || len(i.Strays) != 1 {
			t.Errorf("pod 0 on %s, strays %v, did %q", n, i.Strays, s.did)
		}
	})
}

// One of several API servers says that it steers, and another one makes the pods.
func TestStraysAreSentAwayAFewTimesOnly(t *testing.T) {
	eachWay(t, func(s *stage, _ string) {
		s.slip(1000, true)
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(20*time.Minute, Failed)
		evictions := slices.DeleteFunc(slices.Clone(s.did), func(d string) bool { return !strings.HasPrefix(d, "evict") && !strings.HasPrefix(d, "recreate") })
		if i.Restarts != 3 || len(i.Strays) != maxStrays || len(evictions) > 2*3+maxStrays {
			t.Errorf("%d restarts, strays %v, did %q", i.Restarts, i.Strays, s.did)
		}
	})
}

func TestStraysThatNobodyCanSteerAreLeftToTheScheduler(t *testing.T) {
	eachWay(t, func(s *stage, way string) {
		s.slip(1000, true)
		s.e.Stepped = func(i *Incident) {
			s.mu.Lock()
			s.steered = s.steered && len(i.Strays) == 0
			s.mu.Unlock()
		}
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(5*time.Minute, Recovered)
		if n := s.gangs["job-train"].Member(0).Node; n == "n1" || way == "launcher" && n != "n6" || len(i.Strays) != maxStrays || !strings.Contains(i.story(), "the scheduler's choice") {
			t.Errorf("pod 0 on %s, strays %v\n%s", n, i.Strays, i.story())
		}
	})
}

func TestWithoutFastReplaceAStrayOfARecreatedGangIsNotLetToCountAsAFailure(t *testing.T) {
	on(t, func(s *stage) {
		s.gangs["job-train"].Launcher = false
		s.slip(1, true)
		p := s.plans["gpu/row-remap"]
		p.fast(false)
		s.plans["gpu/row-remap"] = p
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(2*time.Minute, Recovered)
		if n := s.gangs["job-train"].Member(0).Node; n != "n3" || i.Restarts != 2 || len(i.Strays) != 0 || strings.Contains(strings.Join(s.did, " "), "evict") {
			t.Errorf("pod 0 on %s, %d restarts, did %q", n, i.Restarts, s.did)
		}
	})
}

// A fault joins just when the stray has come down: the new plan moves it on, and does not take it for one that stands where it should.
func TestAStrayIsNotForgottenWhenThePlanIsMadeAnew(t *testing.T) {
	eachWay(t, func(s *stage, _ string) {
		s.slip(1, true)
		once := false
		s.e.Stepped = func(i *Incident) {
			if once || len(i.Strays) == 0 {
				return
			}
			once = true
			ev := at("xid/79", "n2")
			ev.Data.Target.Job = i.Job
			go func() { s.says(ev) }()
		}
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(2*time.Minute, Recovered)
		for _, m := range s.gangs["job-train"].Members {
			if m.Node == "n1" || m.Node == "n2" || m.Node == "n6" {
				t.Errorf("pod %d on %s\n%s", m.Index, m.Node, i.story())
			}
		}
		s.wantOnce()
	})
}
