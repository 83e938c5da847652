package incident

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// tells is a world whose policy only tells of what it has no plan for.
type tells struct{ *world }

func (w tells) Plan(e event.Event, f Facts) (*Plan, policy.Judgement) {
	p, d := w.world.Plan(e, f)
	if p == nil {
		d.Outcome = policy.Tell
	}
	return p, d
}

func TestAnEventThatPeopleWereToldOfMayActOnceItHasComeOftenEnough(t *testing.T) {
	on(t, func(s *stage) {
		told := 0
		s.stop()
		s.startAs(func(e *Engine) {
			e.Judge = tells{s.world}
			e.Ignored = func(event.Event, Facts, policy.Judgement) { told++ }
		})
		ev := at("xid/63", "n1")
		s.says(ev)
		s.says(ev)
		if told != 1 || len(s.incidents.values) != 0 {
			t.Fatalf("told %d times, %d incidents", told, len(s.incidents.values))
		}
		s.mu.Lock()
		s.plans["xid/63"] = s.plans["xid/79"]
		s.mu.Unlock()
		s.says(ev) // the same event, whose count has grown
		s.closes(time.Minute, Recovered)
		s.says(ev)
		s.mu.Lock()
		delete(s.plans, "xid/63")
		s.mu.Unlock()
		s.says(ev)
		if s.only(); told != 1 || s.count("cordon n1") != 1 {
			t.Errorf("told %d times, did %q", told, s.did)
		}
	})
}
