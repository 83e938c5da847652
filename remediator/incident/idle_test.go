package incident

import (
	"context"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// costly counts what an event costs beyond the pre-check.
type costly struct {
	*world
	gangs, plans, known int
	acts, tells         bool
}

func (c *costly) GangsAt(ctx context.Context, t event.Target) ([]cluster.Gang, error) {
	c.gangs++
	return c.world.GangsAt(ctx, t)
}

func (c *costly) Plan(e event.Event, f Facts) (*Plan, policy.Judgement) {
	c.plans++
	p, _ := c.world.Plan(e, f)
	return p, policy.Judgement{Outcome: policy.Tell}
}

func (c *costly) Known(ctx context.Context, id string) (bool, error) {
	c.known++
	return c.world.Known(ctx, id)
}

func (c *costly) Reach(event.Event) (acts, tells bool) { return c.acts, c.tells }

func TestAnEventThatNoRuleMayTakeCostsNoFactAndNoQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		acts, tells, hears bool
		full               bool
	}{
		"no rule may take it":                          {},
		"policy notifies, but nobody listens":          {tells: true},
		"policy notifies, and somebody listens":        {tells: true, hears: true, full: true},
		"policy does not notify, and somebody listens": {hears: true},
		"a rule may take it":                           {acts: true, full: true},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				seen := &costly{world: s.world, acts: c.acts, tells: c.tells}
				told := 0
				s.stop()
				s.startAs(func(e *Engine) {
					e.Judge, e.Cluster, e.Seen = seen, seen, seen
					if c.hears {
						e.Ignored = func(event.Event, Facts, policy.Judgement) { told++ }
					}
				})
				s.says(at("xid/13", "n1"))
				if full := seen.gangs > 0 && seen.plans > 0; full != c.full || !c.full && seen.gangs+seen.plans+seen.known > 0 || seen.known > 0 != c.hears && c.full {
					t.Errorf("%d gangs, %d plans, %d questions whether it was seen", seen.gangs, seen.plans, seen.known)
				}
				if told > 0 != (c.hears && c.full) {
					t.Errorf("told %d times", told)
				}
				if n := s.e.Noted()["no rule acts"]; n != 1 {
					t.Errorf("counted %d times", n)
				}
			})
		})
	}
}

func TestAnEchoThatNoRuleTakesJoinsTheOpenIncidentOfItsNodeAndJob(t *testing.T) {
	on(t, func(s *stage) {
		asks(s)
		s.says(at("xid/79", "n1"))
		s.reaches(time.Minute, Planned)
		s.says(at("xid/13", "n1"))
		s.says(at("xid/13", "n2")) // another node of the job
		s.says(at("xid/13", "elsewhere"))
		if i := s.only(); len(i.Joined) != 2 {
			t.Errorf("%d joined, want 2", len(i.Joined))
		}
	})
}
