package incident

import (
	"context"
	"errors"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Wake lets every open incident, and what was only observed, be looked at again now: a kill switch was turned, or policies changed.
func (e *Engine) Wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case e.look <- struct{}{}:
	default:
	}
	for _, d := range e.drivers {
		d.poke()
	}
}

// errObserves says that the policy still only observes what an incident was opened for.
var errObserves = errors.New("the policy only observes")

// takeUpEvery is how often closed incidents are looked at whose policy only observed.
const takeUpEvery = 30 * time.Second

// takeUps opens an incident for each fault that was only observed, once its policy acts, if the node says now that it still holds. Each is
// taken up once, whoever leads: the new event's id follows from the old incident and fault.
func (e *Engine) takeUps(ctx context.Context) {
	dealt := map[string]bool{} // by the new event's id; a help, since what is dealt with is remembered in the bus
	for t := time.NewTicker(takeUpEvery); ; {
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		case <-e.look:
		}
		_, all := e.Incidents()
		still := map[string]bool{}
		for _, i := range all {
			if i.Open() || i.Group != nil || i.Plan == nil || i.Plan.Mode != policy.Observe {
				continue
			}
			for _, f := range i.Faults {
				ev := f.Event
				ev.ID = event.NewID(i.ID, "taken up", f.EventID)
				if still[ev.ID] = dealt[ev.ID] || e.takeUp(ctx, ev, i); !still[ev.ID] {
					delete(still, ev.ID)
				}
			}
		}
		dealt = still
	}
}

// takeUp reports whether the event needs no further try.
func (e *Engine) takeUp(ctx context.Context, ev event.Event, observed *Incident) bool {
	if s, _ := e.Conditions.Standing(ev); s != Holds {
		return false
	}
	err := e.Handle(ctx, ev, Origin{Live: true, Observed: observed})
	if err != nil && !errors.Is(err, errObserves) && ctx.Err() == nil {
		e.Log.Warn("take up what was only observed; will retry", "incident", observed.ID, "error", err)
	}
	return err == nil
}
