package incident

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// unsteered lets the scheduler choose, which puts the next n replacements on n6; foreign: a node that is not equivalent.
func (s *stage) unsteered(n int, foreign bool, what policy.Unsteered) {
	s.slip(n, foreign)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steered = false
	for signal, p := range s.plans {
		p.Unsteered = what
		s.plans[signal] = p
	}
}

const notEquivalent = "by the scheduler's choice, which is not equivalent to n1"

func TestAnUnsteeredReplacementThatIsNotEquivalentIsReportedOnceAndStays(t *testing.T) {
	eachWay(t, func(s *stage, way string) {
		s.unsteered(1, true, policy.UnsteeredAllow)
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(2*time.Minute, Recovered)
		if len(i.Strays) != 0 || way == "launcher" && s.gangs["job-train"].Member(0).Node != "n6" {
			t.Errorf("pod 0 on %s, strays %v", s.gangs["job-train"].Member(0).Node, i.Strays)
		}
		if strings.Count(i.story(), notEquivalent) != 1 || !strings.Contains(i.story(), "it stays") {
			t.Errorf("the story does not say it once:\n%s", i.story())
		}
	})
}

func TestByPolicyAnUnsteeredReplacementThatIsNotEquivalentIsUndone(t *testing.T) {
	eachWay(t, func(s *stage, _ string) {
		s.unsteered(1, true, policy.UnsteeredUndo)
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(2*time.Minute, Recovered)
		if n := s.gangs["job-train"].Member(0).Node; n == "n6" || n == "n1" || len(i.Strays) != 1 || s.count("evict "+i.Strays[0]) != 1 || i.Restarts != 1 {
			t.Errorf("pod 0 on %s, strays %v, %d restarts, did %q", n, i.Strays, i.Restarts, s.did)
		}
		if !strings.Contains(i.story(), notEquivalent+"; sent away") {
			t.Errorf("the story does not say so:\n%s", i.story())
		}
	})
}

// The scheduler puts it there each time: a job on a worse node is better than none.
func TestAnUnsteeredReplacementIsUndoneAFewTimesOnlyAndThenStays(t *testing.T) {
	on(t, func(s *stage) {
		s.unsteered(1000, true, policy.UnsteeredUndo)
		s.says(at("gpu/row-remap", "n1"))
		i := s.closes(5*time.Minute, Recovered)
		if len(i.Strays) != maxStrays || i.Restarts != 1 || s.gangs["job-train"].Member(0).Node != "n6" {
			t.Errorf("strays %v, %d restarts, pod 0 on %s", i.Strays, i.Restarts, s.gangs["job-train"].Member(0).Node)
		}
	})
}

func TestAnUnsteeredReplacementOnAnEquivalentNodeStaysWhateverThePolicySays(t *testing.T) {
	eachWay(t, func(s *stage, _ string) {
		s.unsteered(1, false, policy.UnsteeredUndo)
		s.says(at("gpu/row-remap", "n1"))
		if i := s.closes(2*time.Minute, Recovered); len(i.Strays) != 0 || strings.Contains(i.story(), "not equivalent") {
			t.Errorf("strays %v\n%s", i.Strays, i.story())
		}
	})
}

func TestAReservationIsRenewedWhileTheIncidentWaits(t *testing.T) {
	on(t, func(s *stage) {
		g, err := s.Gang(t.Context(), s.gangs["job-train"].Job)
		if err != nil {
			t.Fatal(err)
		}
		m := g.Member(0)
		began := time.Now()
		v := &view{Incident: Incident{ID: "inc-1", Reserved: true, Moves: []Move{{Index: 0, OldPod: m.Pod, OldUID: m.PodUID, From: m.Node, To: "n3"}}},
			e: s.e, d: &driver{e: s.e, log: slog.Default(), renewed: began}, gang: &g}
		asked := func(after time.Duration) (n int) {
			t.Helper()
			s.reserved = map[string]string{} // it has run out
			v.now = began.Add(after)
			if r := v.renew(t.Context()); r != nil {
				t.Fatalf("after %s: %+v", after, r)
			}
			return len(s.reserved)
		}
		if asked(renewEvery-time.Second) != 0 || asked(renewEvery) != 1 || asked(renewEvery+time.Second) != 0 || asked(2*renewEvery) != 1 {
			t.Errorf("it is not renewed every %s", renewEvery)
		}
		if renewEvery >= cluster.ReservedFor/2 {
			t.Errorf("a reservation may run out: it is renewed every %s of %s", renewEvery, cluster.ReservedFor)
		}
		v.Moves[0].OldUID = "gone" // its replacement is there
		if asked(3*renewEvery) != 0 {
			t.Error("renewed for a replacement that is there")
		}
		v.Moves[0].OldUID, v.e = m.PodUID, &Engine{Cluster: taken{s.e.Cluster}}
		v.now = began.Add(5 * renewEvery)
		if r := v.renew(t.Context()); r == nil || !strings.Contains(r.text, "n3 is reserved for another incident") {
			t.Errorf("a node that another incident took: %+v", r)
		}
	})
}

// taken is a cluster on which another incident has every node.
type taken struct{ Cluster }

func (taken) Reserve(context.Context, cluster.Reservation) error {
	return errors.Join(errors.New("n3"), cluster.ErrReserved)
}
