package incident

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// view is what a step works on: the record as stored, the job as it is now, and the time. A step reads and acts through it, and gives a Result.
type view struct {
	Incident
	e    *Engine
	d    *driver
	now  time.Time
	gang *cluster.Gang // nil: no job runs
}

// step is one row of the machine: what brings an incident on from a state.
type step struct {
	do   func(context.Context, *view) Result
	live bool // the job is looked at first
}

// steps is the machine.
var steps map[State]step

func init() { // the table refers to functions that refer to it
	steps = map[State]step{
		Detected:     {correlate, true},
		Correlated:   {plan, true},
		Planned:      {approve, true},
		Approved:     {cordon, true},
		Cordoned:     {save, true},
		Checkpointed: {place, true},
		Placed:       {restartJob, true},
		Restarted:    {resume, true},
		Resumed:      {verify, true},
		Verified:     {finish, false},
		Grouped:      {gather, false},
	}
}

// begin does a step on a record.
func (d *driver) begin(ctx context.Context, s step, i Incident) Result {
	v := &view{Incident: i, d: d, e: d.e, now: d.e.Now()}
	if s.live {
		if r := v.look(ctx); r != nil {
			return *r
		}
	}
	return s.do(ctx, v)
}

const watchEvery = 2 * time.Second // beside the watch, in case one is missed

// look reads the job's live state and what people did since. A result means that the step is not to be begun.
func (v *view) look(ctx context.Context) *Result {
	if r := cmp.Or(v.rejected(), v.undone()); r != nil {
		return r
	}
	if v.Job == nil {
		return nil
	}
	g, err := v.e.Cluster.Gang(ctx, *v.Job)
	name := fmt.Sprintf("%s %s/%s", v.Job.Kind, v.Job.Namespace, v.Job.Name)
	switch {
	case errors.Is(err, cluster.ErrNotFound), errors.Is(err, cluster.ErrStale):
		if err := v.e.forget(ctx, v.Job.UID); err != nil {
			v.d.log.Warn("delete the attempts of a job that is no more", "job", name, "error", err)
		}
		return v.jobOver(name + " does not exist any more")
	case errors.Is(err, cluster.ErrUnsupported):
		return result(Close(Failed, err.Error()))
	case err != nil:
		return result(failed(err))
	case g.Finished != "":
		return v.jobOver(name + " has ended")
	case g.Size == 0:
		return v.jobOver(name + " is scaled to nothing")
	case g.Suspended && !v.reached(Placed): // a person or a queue wants it so; there is nothing to bring back
		return v.jobOver(name + " is suspended")
	}
	v.gang = &g
	return nil
}

func result(r Result) *Result { return &r }

// jobOver deals with a job that is no more: there is nothing to bring back. A node outlasts its job: one that is still to be cordoned is,
// as if no job had run there. nil: the step goes on without a job.
func (v *view) jobOver(why string) *Result {
	waits := slices.ContainsFunc(v.FaultyNodes(), func(n string) bool { return !slices.Contains(v.Cordons, n) })
	switch {
	case len(v.FaultyNodes()) > 0 && !v.Plan.bringsBack():
		return nil
	case waits && order[v.State] < order[Cordoned]:
		return result(Again(why+"; its node is cordoned all the same", func(i *Incident) {
			i.Plan, i.Moves = i.Plan.onlyNode(), nil
		}))
	case waits && v.Replan && !v.Suspended: // it joined just now
		return result(PlanAgain("", 0))
	}
	return result(Close(Gone, why))
}

// undone looks whether a person uncordoned a node that this incident cordoned. Before ranks are stopped that cancels the incident; later the
// job is brought back all the same, and the node is not cordoned again.
func (v *view) undone() *Result {
	if order[v.State] < order[Cordoned] && v.Round == 1 {
		return nil
	}
	for _, n := range v.Cordons {
		s, err := v.e.Cluster.Node(n)
		switch {
		case err != nil || slices.Contains(v.Uncordoned, n):
			continue
		case s.Quarantined != "":
			v.d.marked[n] = true
			continue
		case !v.d.marked[n]:
			continue // the watch may not show it yet
		}
		if !v.stopped() && slices.Contains(v.FaultyNodes(), n) {
			return result(Close(Cancelled, "a person uncordoned "+n+" before the job was stopped, so the job stays where it is"))
		}
		return result(Again("a person uncordoned "+n+"; it is not cordoned again", func(i *Incident) { i.Uncordoned = append(i.Uncordoned, n) }))
	}
	return nil
}

// fresh drops the faults that have ended by themselves, by what their nodes report now. nil: all of them may still hold.
func (v *view) fresh() *Result {
	var holding []Fault
	var why []string
	for _, f := range v.Faults {
		if s, reason := v.e.Conditions.Standing(f.Event); s == Ended {
			why = append(why, fmt.Sprintf("%s on %s %s", f.Signal, f.Node, reason))
		} else {
			holding = append(holding, f)
		}
	}
	switch {
	case len(holding) == len(v.Faults):
		return nil
	case len(holding) == 0 && !v.acted():
		return result(Close(Resolved, strings.Join(why, "; ")+", before anything was done"))
	case len(holding) == 0:
		return result(Close(Resolved, strings.Join(why, "; ")+", before the job was stopped"))
	}
	return result(v.keepOnly(holding, strings.Join(why, "; ")))
}

// keepOnly drops faults that are no more. Those that joined since stay.
func (v *view) keepOnly(holding []Fault, why string) Result {
	judged := len(v.Faults)
	v.d.considered = len(holding)
	return Again(why, func(i *Incident) { i.Faults = append(slices.Clone(holding), i.Faults[judged:]...) })
}

// seen is when the fault was last known to hold: now, if its node says so now.
func (v *view) seen(f Fault) time.Time {
	if s, _ := v.e.Conditions.Standing(f.Event); s == Holds {
		return v.now
	}
	return f.Seen
}

// silent reports that some fault stood when its node was last heard, and that nobody can ask the node now.
func (v *view) silent() bool {
	return slices.ContainsFunc(v.Faults, func(f Fault) bool { s, _ := v.e.Conditions.Standing(f.Event); return s == Silent })
}

// attempt is the job's record in the attempts bucket, the zero value when it has none.
func (v *view) attempt(ctx context.Context) (bus.Attempt, error) {
	a, _, err := v.e.Attempts.Get(ctx, v.gang.Job.UID)
	if errors.Is(err, bus.ErrNotFound) {
		return bus.Attempt{}, nil
	}
	return a, err
}

// noteNow changes the record in the middle of a step: an intent that must be known before it is carried out.
func (v *view) noteNow(ctx context.Context, f func(*Incident)) error {
	err := v.d.change(ctx, f)
	if err == nil {
		faults := v.Faults // a fault that joined meanwhile is for the next step
		v.Incident = v.d.snapshot()
		v.Faults = faults
	}
	return err
}

func members(g *cluster.Gang, skip func(cluster.Member) bool) []checkpoint.Member {
	var out []checkpoint.Member
	for _, m := range g.Members {
		if m.PodUID != "" && m.Node != "" && (skip == nil || !skip(m)) {
			out = append(out, checkpoint.Member{Node: m.Node, PodUID: m.PodUID})
		}
	}
	return out
}
