package incident

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// refusing is an API server that always refuses reservations, as an admission policy or a quota does.
type refusing struct{ *world }

func (refusing) Reserve(context.Context, cluster.Reservation) error {
	return fmt.Errorf("reserve: %w: admission webhook denied the request", cluster.ErrForbidden)
}

func TestAStepThatIsRefusedForGoodIsReportedAndGivenUpAndTheJobTrainsOn(t *testing.T) {
	on(t, func(s *stage) {
		s.stop()
		ctx, cancel := context.WithCancel(context.Background())
		e := s.engine()
		e.Cluster = refusing{s.world}
		if err := e.Start(ctx); err != nil {
			t.Fatal(err)
		}
		s.e, s.stop = e, func() { cancel(); e.Wait() }
		s.says(at("gpu/row-remap", "n1"))
		i := s.until(time.Minute, "reported", func(i Incident) bool { return i.NeedsPerson() })
		if i.Wait == nil || i.Wait.Reason != ReasonForbidden || !strings.Contains(i.Waiting, "admission webhook denied") {
			t.Errorf("waits for %q: %+v", i.Waiting, i.Wait)
		}
		i = s.closes(2*time.Hour, GaveUp)
		if g := e.Ledger.Book().Grants; len(g) != 1 || g[0].Open() || g[0].Active {
			t.Errorf("grants %+v", g)
		}
		if s.gangs["job-train"].attempt > 0 || i.Restarts > 0 {
			t.Error("the job was restarted")
		}
	})
}

func TestARecordThatCannotBeStoredStopsNoOtherIncident(t *testing.T) {
	on(t, func(s *stage) {
		s.incidents.put = func(_ string, i Incident) error {
			if i.Job != nil && i.State == Correlated {
				return errors.New("nats: no space left on device")
			}
			return nil
		}
		s.says(at("gpu/row-remap", "n1"))
		time.Sleep(time.Second)
		other := at("xid/79", "n6")
		for _, e := range []event.Event{at("xid/79", "n2"), other} { // the first joins the incident that cannot be stored
			done := make(chan error, 1)
			go func() { done <- s.e.Handle(context.Background(), e, Origin{}) }()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatalf("the event of %s is not dealt with", e.Data.Target.Node)
			}
		}
		time.Sleep(time.Minute)
		if s.count("cordon n6") != 1 {
			t.Errorf("did %q", s.did)
		}
		if w := s.e.Waits(); !slices.ContainsFunc(mapValues(w), func(w Wait) bool { return w.Reason == ReasonStore }) {
			t.Errorf("waits %v", w)
		}
		s.incidents.put = nil
		s.says(at("xid/79", "n2"))
	})
}

func mapValues(m map[string]Wait) (out []Wait) {
	for _, w := range m {
		out = append(out, w)
	}
	return out
}

func TestARecordThatIsTooLargeIsStoredWithoutWhatOnlyPeopleRead(t *testing.T) {
	on(t, func(s *stage) {
		s.incidents.put = func(_ string, i Incident) error {
			if i.State == Correlated && len(i.Faults[0].Event.Data.Evidence.Raw) > 0 {
				return fmt.Errorf("put: %w", bus.ErrTooLarge)
			}
			return nil
		}
		s.says(at("gpu/row-remap", "n1", func(e *event.Event) { e.Data.Evidence.Raw = "a long line" }))
		s.closes(time.Minute, Recovered)
	})
}

func TestAYesThatComesAfterTheRepairDoesNothing(t *testing.T) {
	on(t, func(s *stage) {
		p := s.plans["xid/79"]
		p.Mode, p.NeedsApproval = policy.Approve, true
		s.plans["xid/79"] = p
		s.says(at("xid/79", "n1"))
		s.reaches(time.Minute, Planned)
		time.Sleep(time.Hour)
		s.mu.Lock() // its owner moved the job, and the node was repaired
		s.gangs["job-train"].Members[0].Node = "n5"
		s.mu.Unlock()
		s.stand("xid/79", "n1", Ended)
		i, rev, _ := s.incidents.Get(context.Background(), s.only().ID)
		i.Approval = "approved by ada"
		if _, err := s.incidents.Put(context.Background(), i.ID, i, rev); err != nil {
			t.Fatal(err)
		}
		s.closes(time.Minute, Resolved)
		s.wantDid()
	})
}

func TestAnApprovalThatNobodyGivesExpires(t *testing.T) {
	on(t, func(s *stage) {
		p := s.plans["xid/79"]
		p.Mode, p.NeedsApproval, p.ApprovalWithin = policy.Approve, true, 4*time.Hour
		s.plans["xid/79"] = p
		s.says(at("xid/79", "n1"))
		i := s.closes(5*time.Hour, Refused)
		if at := i.ClosedAt.Sub(i.Opened); at < 4*time.Hour || !strings.Contains(i.Reason, "given up after 4h") {
			t.Errorf("after %s: %s", at, i.Reason)
		}
		s.wantDid()
	})
}

func TestAHungRankThatNobodyElseBearsOutIsLeftAlone(t *testing.T) {
	on(t, func(s *stage) {
		s.mu.Lock()
		s.mute = true
		m := s.gangs["job-train"].Member(0)
		s.mu.Unlock()
		rank, attempt := 1, 0
		s.says(at("rank/hung", "n1", func(e *event.Event) {
			e.Data.Target.PodUID, e.Data.Target.Rank, e.Data.Target.Attempt = m.PodUID, &rank, &attempt
		}))
		i := s.closes(3*time.Minute, NotConfirmed)
		s.wantDid()
		if i.Restarts > 0 || !strings.Contains(i.Reason, "cannot be read") {
			t.Errorf("%d restarts, %s", i.Restarts, i.Reason)
		}
	})
}

func TestAnIncidentKnowsWhatItDidHoweverLongItsStoryIs(t *testing.T) {
	now := time.Now()
	i := Incident{State: Correlated, StateAt: now, Plan: &Plan{Steps: does(policy.Cordon)}, Faults: []Fault{{Node: "n1", Moves: true}}}
	for k := range 100 {
		i.note(now, fmt.Sprint("waiting: ", k))
	}
	for _, st := range []State{Planned, Approved, Cordoned, Checkpointed} {
		i.advance(now.Add(time.Second), st, "")
	}
	restart(&i, now)
	for k := range 105 {
		i.note(now, fmt.Sprint("waiting: again ", k))
	}
	if !i.acted() || !i.reached(Cordoned) {
		t.Error("an incident that has cordoned does not know it any more")
	}
}

func TestALeaderOfAnEarlierTermBeginsNoAttemptOverItsSuccessors(t *testing.T) {
	on(t, func(s *stage) {
		s.stop()
		ctx, cancel := context.WithCancel(context.Background())
		e := s.engine()
		if err := e.Start(ctx); err != nil {
			t.Fatal(err)
		}
		s.e, s.stop = e, func() { cancel(); e.Wait() }
		s.says(s.rankDies("train", 1))
		i := s.closes(time.Minute, Recovered)
		late := s.engine() // it was stopped for a while, and stands where it was before its attempt
		late.Term = 0
		i.State, i.Outcome, i.Restarts, i.Attempt, i.Round = Placed, "", 0, 0, 2
		g, _ := s.world.Gang(ctx, *i.Job)
		v := &view{Incident: i, d: &driver{e: late, log: late.Log}, e: late, now: time.Now(), gang: &g}
		if a, err := v.beginAttempt(ctx); !errors.Is(err, errLost) {
			t.Errorf("attempt %d, %v", a, err)
		}
	})
}

func TestAPersonsUncordonBeforeRanksAreStoppedCancelsTheIncident(t *testing.T) {
	on(t, func(s *stage) {
		s.budget = func() error { return errBudget } // it waits after the cordon
		s.says(at("gpu/row-remap", "n1"))
		s.until(time.Minute, "waiting", func(i Incident) bool { return i.Wait != nil && i.Wait.Reason == ReasonBudget })
		time.Sleep(10 * time.Second) // the watch has shown the cordon
		s.mu.Lock()
		s.nodes["n1"].quarantined = ""
		s.mu.Unlock()
		i := s.closes(time.Minute, Cancelled)
		if s.gangs["job-train"].attempt > 0 || !strings.Contains(i.Reason, "a person uncordoned n1") {
			t.Errorf("attempt %d: %s", s.gangs["job-train"].attempt, i.Reason)
		}
		s.wantDid("cordon n1")
	})
}

func TestALostNodeWhosePeersGoOnSteppingIsNotTakenFromItsJobWithoutAPerson(t *testing.T) {
	on(t, func(s *stage) {
		s.mu.Lock()
		s.kubelets["n1"], s.goesOn = cluster.ErrSilent, true // only the front-end network is cut
		s.mu.Unlock()
		s.says(at("node/lost", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
		i := s.until(time.Minute, "asking", func(i Incident) bool { return i.Wait != nil && i.Wait.Reason == ReasonEvidence })
		if !i.NeedsPerson() || !i.Asks() || s.gangs["job-train"].attempt > 0 || s.count("force train-0-1") > 0 {
			t.Errorf("waits for %q, did %q", i.Waiting, s.did)
		}
		stored, rev, _ := s.incidents.Get(context.Background(), i.ID)
		stored.Approval = "approved by ada at 04:00"
		if _, err := s.incidents.Put(context.Background(), i.ID, stored, rev); err != nil {
			t.Fatal(err)
		}
		s.closes(2*time.Minute, Recovered)
	})
}

func TestTheRecordOfAGangOf4096PodsFitsIntoAMessage(t *testing.T) {
	i := Incident{ID: "inc-000000000000", Faults: []Fault{{}}, Path: recreatePath}
	for k := range 4096 {
		i.Replaced = append(i.Replaced, fmt.Sprintf("0b3c2f5e-8f0a-4c3e-9a5e-%012x", k))
	}
	raw, err := json.Marshal(i)
	if err != nil || len(raw) > 128<<10 {
		t.Errorf("%d KiB, %v", len(raw)>>10, err)
	}
	var back Incident
	if err := json.Unmarshal(raw, &back); err != nil || !slices.Equal(back.Replaced, i.Replaced) {
		t.Errorf("%d pods come back, %v", len(back.Replaced), err)
	}
	odd := UIDs{"pod-7", "0b3c2f5e-8f0a-4c3e-9a5e-2f6d7c8b9a01"}
	raw, _ = json.Marshal(odd)
	var kept UIDs
	if err := json.Unmarshal(raw, &kept); err != nil || !kept.Has("pod-7") || !kept.Has(odd[1]) || len(kept) != 2 {
		t.Errorf("%v, %v", kept, err)
	}
}

func TestARecordOfThePreviousVersionIsRead(t *testing.T) {
	raw := `{"id":"inc-1","state":"checkpointed","faults":[{"event_id":"e","signal":"xid/79","node":"n1","moves":true,"event":{}}],
		"plan":{"policy":"gpu","rule":"leave","mode":"approve","cordon":true,"checkpoint":true,"restart":true,"placement":"any","max_tier_loss":1,"max_per_job":2,"fast_replace":true,"notify":true,"recommend":["reboot-node"],"needs_approval":true,"verify_within":20000000000},
		"notes":[{"state":"detected"},{"state":"approved","took_s":1},{"state":"checkpointed","took_s":1}],"cordons":["n1"],"path":"recreate","moves":[{"index":0,"old_uid":"u0"}]}`
	var i Incident
	if err := json.Unmarshal([]byte(raw), &i); err != nil {
		t.Fatal(err)
	}
	i.migrate()
	w := i.Plan.With()
	if !slices.Equal(i.Plan.Verbs(), []policy.Verb{policy.Cordon, policy.Checkpoint, policy.RestartJob}) || !i.Plan.Has(policy.Notify) || !slices.Equal(i.Plan.Recommended(), []string{"reboot-node"}) ||
		w.Placement != policy.Any || w.MaxTierLoss != 1 || w.MaxPerJob != 2 || !w.FastReplace || !i.acted() || !i.Reserved || !i.Replaced.Has("u0") {
		t.Errorf("plan %+v, with %+v, furthest %s, replaced %v", i.Plan, w, i.Furthest, i.Replaced)
	}
	grants := grantsOf([]bus.Change[Incident]{{Value: i}}, time.Now())
	if len(grants) != 1 || !grants[0].Active || !slices.Equal(grants[0].Cordons(), []string{"n1"}) {
		t.Errorf("grants %+v", grants)
	}
}

func TestEachReasonHasAMeaning(t *testing.T) {
	for r, m := range meanings {
		if m.begins == "" {
			t.Errorf("%s has no text", r)
		}
		if m.report == 0 && m.how == "" {
			t.Errorf("%s asks a person at once and does not say for what", r)
		}
	}
	for g := range passing {
		if _, ok := meanings[guardReason(g)]; !ok {
			t.Errorf("guard %s has no reason", g)
		}
	}
}

// lagging is a watch that shows a gang as it was for a second after it was recreated.
type lagging struct {
	*world
	was   cluster.Gang
	until time.Time
}

func (l *lagging) Gang(ctx context.Context, job event.Job) (cluster.Gang, error) {
	if time.Now().Before(l.until) {
		g := l.was
		g.Suspended = true
		return g, nil
	}
	return l.world.Gang(ctx, job)
}

func (l *lagging) RecreateGang(ctx context.Context, g cluster.Gang, o cluster.RecreateOptions) (cluster.Recreation, error) {
	l.was, _ = l.world.Gang(ctx, g.Job)
	done, err := l.world.RecreateGang(ctx, g, o)
	l.until = time.Now().Add(time.Second)
	return done, err
}

func TestAGangIsRecreatedOnceThoughTheWatchShowsItsOldPodsALittleLonger(t *testing.T) {
	on(t, func(s *stage) {
		s.stop()
		s.gangs["job-train"].Launcher = false
		ctx, cancel := context.WithCancel(context.Background())
		e := s.engine()
		e.Cluster = &lagging{world: s.world}
		if err := e.Start(ctx); err != nil {
			t.Fatal(err)
		}
		s.e, s.stop = e, func() { cancel(); e.Wait() }
		s.says(at("gpu/row-remap", "n1"))
		s.closes(time.Minute, Recovered)
		if n := s.count("suspend"); n != 1 {
			t.Errorf("suspended %d times: %q", n, s.did)
		}
	})
}
