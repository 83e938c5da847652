package incident

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Sighting is how far a job was at a time.
type Sighting struct {
	Step int64     `json:"step"`
	At   time.Time `json:"at"`
}

// Pace is how long a job's steps take, in seconds, before a move for a statistical finding and after it.
type Pace struct {
	Before float64 `json:"before"` // while the finding stood
	// Expected is what is left of Before without the loss that the finding reports: the pace of the culprit's class or peers.
	Expected float64 `json:"expected"`
	After    float64 `json:"after,omitempty"`
}

// back reports whether at least half of the loss is gone. Less may be chance: a few steps are compared with a few others.
func (p Pace) back(after float64) bool { return after <= (p.Before+p.Expected)/2 }

// Cost is how long a restart of a job keeps its ranks from stepping, in seconds.
type Cost struct {
	SaveS    float64 `json:"save_s"`
	RestartS float64 `json:"restart_s"`
	Shown    bool    `json:"shown,omitempty"` // by a restart that Pitcrew made; else RestartS is not known
}

// GPUSeconds is what the restart costs a job of so many ranks; a restart that is not known is taken to last as long as assumed.
func (c Cost) GPUSeconds(ranks int, assumed time.Duration) float64 {
	if c.Shown {
		return (c.SaveS + c.RestartS) * float64(ranks)
	}
	return (c.SaveS + assumed.Seconds()) * float64(ranks)
}

const (
	paceSteps = 5               // that a pace is measured over, at least
	paceFor   = 2 * time.Second // the same in time: steps may be very short
)

func (f Fault) statistical() bool { return policy.Statistical(f.Event) }

// statistical reports whether the plan is for a finding whose terms all must hold. A nil plan is for none.
func (p *Plan) statistical() bool { return p != nil && p.Terms != nil && p.Terms.Statistical }

// finding is the statistical fault that the incident acts on: the first.
func (i *Incident) finding() Fault {
	if k := slices.IndexFunc(i.Faults, Fault.statistical); k >= 0 {
		return i.Faults[k]
	}
	return i.Faults[0]
}

// sight keeps where the job was when the incident first looked, and what its ranks say of their saves.
func (i *Incident) sight(now time.Time, live checkpoint.Gang, known Cost) {
	if i.Sighted == nil && len(live.Ranks) > 0 {
		i.Sighted = &Sighting{Step: live.MaxStep, At: now}
	}
	c := known
	if !c.Shown {
		for _, r := range live.Ranks {
			c.SaveS = max(c.SaveS, r.SaveS)
		}
	}
	if i.Cost == nil {
		i.Cost = &c
	}
}

// cost is what a restart of the incident's job costs.
func (v *view) cost() Cost {
	if v.Cost != nil {
		return *v.Cost
	}
	return v.e.costOf(v.gang)
}

// costOf is what restarts of the gang's job took, the zero value if it was not restarted lately.
func (e *Engine) costOf(g *cluster.Gang) Cost {
	if g == nil {
		return Cost{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.costs[g.Job.UID]
}

// shown is what this incident's own restart took: from the start of the save to the step that every rank has finished.
func (i *Incident) shown() (c Cost, ok bool) {
	if i.FirstStep == nil || i.Restarts != 1 || i.Job == nil {
		return c, false
	}
	var began, saved time.Time
	for _, n := range i.Notes {
		if n.TookS > 0 && n.State == Cordoned {
			began = n.At
		}
		if n.TookS > 0 && n.State == Checkpointed {
			saved = n.At
		}
	}
	if began.IsZero() || saved.Before(began) || !i.FirstStep.After(saved) {
		return c, false
	}
	return Cost{SaveS: saved.Sub(began).Seconds(), RestartS: i.FirstStep.Sub(saved).Seconds(), Shown: true}, true
}

// paceNow measures the job's steps while the finding stands; nil where the plan does not ask, or too few steps were seen.
func (v *view) paceNow(ctx context.Context) *Pace {
	if v.Pace != nil || !v.Plan.ByPace || v.gang == nil || v.Sighted == nil {
		return nil
	}
	live, _ := v.e.Checkpoint.Observe(ctx, members(v.gang, nil))
	steps, took := live.MaxStep-v.Sighted.Step, v.e.Now().Sub(v.Sighted.At)
	p := &Pace{}
	if steps >= paceSteps && took >= paceFor {
		p.Before = took.Seconds() / float64(steps)
	} else {
		for _, r := range live.Ranks {
			p.Before = max(p.Before, r.MedianStepS)
		}
	}
	share := policy.LossPerHour(v.finding().Event) / time.Hour.Seconds() / float64(max(1, v.WorldSize))
	if p.Before == 0 || share <= 0 || share >= 1 {
		return nil
	}
	p.Expected = p.Before * (1 - share)
	return p
}

// verifyPace waits until the steps are as short as those of the class or the peers. Only the pace tells whether the node was the cause.
func (v *view) verifyPace(ctx context.Context, live checkpoint.Gang) Result {
	now := v.e.Now()
	if v.FirstStep == nil {
		v.d.pacedFrom, v.d.pacedSince = Sighting{}, time.Time{}
		return Again("", func(i *Incident) { i.FirstStep = &now })
	}
	if v.d.pacedSince.IsZero() {
		v.d.pacedSince = now
	}
	from := v.d.pacedFrom
	if from.At.IsZero() || live.MaxStep < from.Step {
		v.d.pacedFrom = Sighting{live.MaxStep, now}
		return WaitFor(ReasonStepping, "", stepEvery)
	}
	steps, took := live.MaxStep-from.Step, now.Sub(from.At)
	within := max(v.Plan.within(), time.Duration(4*paceSteps*v.Pace.Before*float64(time.Second)))
	looked := now.Sub(v.d.pacedSince) // by this leader: one window, after a time without a leader, may be slow by chance
	over := looked >= within
	if steps < paceSteps || took < paceFor {
		if looked >= 2*within {
			return GoOn(Verified, "all ranks stepped, but too few steps were seen to measure how long one takes")
		}
		return WaitFor(ReasonStepping, "", stepEvery)
	}
	after := took.Seconds() / float64(steps)
	set := func(i *Incident) { p := *i.Pace; p.After = after; i.Pace = &p }
	said := fmt.Sprintf("%.4g s a step, %.4g s before, %.4g s expected", after, v.Pace.Before, v.Pace.Expected)
	book := v.e.Ledger.Book()
	g := book.Grant(v.ID)
	switch {
	case g != nil && g.Vain: // an earlier leader came to that, and the ledger remembers it; one move is not told as both
		return v.inVain(ctx, said).with(set)
	case g != nil && g.Helped: // the same
		return GoOn(Verified, said, set)
	case v.Pace.back(after):
		if err := v.e.Ledger.Helped(ctx, v.ID); err != nil {
			return failed(asStore(err))
		}
		return GoOn(Verified, said, set)
	case over:
		return v.inVain(ctx, said).with(set)
	}
	v.d.pacedFrom = Sighting{live.MaxStep, now} // the first steps of an attempt are slow
	return WaitFor(ReasonStepping, "", stepEvery)
}

// inVain records that the move did not help. The ledger remembers it first: a crash after it repeats the rest. After the second such move in a
// row the job is put on hold.
func (v *view) inVain(ctx context.Context, said string) Result {
	if err := v.e.Ledger.Vain(ctx, v.ID); err != nil {
		return failed(asStore(err))
	}
	why := fmt.Sprintf("the move did not help: %s; %s was not the cause", said, v.finding().Node)
	book := v.e.Ledger.Book()
	if n, _ := guard.Vain(book.Grants, v.jobUID(), ""); n >= guard.VainMoves {
		hold := fmt.Sprintf("Pitcrew moved the job %d times for statistical findings, and that did not help (incident %s)", n, v.ID)
		if err := v.e.Cluster.HoldJob(ctx, *v.gang, v.ID, hold); err != nil {
			return failed(err)
		}
		why += fmt.Sprintf("; %d moves in a row did not help, so the job is on hold", n)
	}
	return Close(NotTheCause, why)
}
