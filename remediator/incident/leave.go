package incident

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// askEvery is how often the API server is asked again whether it would evict.
const askEvery = 5 * time.Second

// leave asks whether the pods that are to go may be evicted, all of them. Once something was done there is nothing to
// ask: a job that is half down is brought back, however long a budget takes.
func (d *driver) leave(ctx context.Context, g *cluster.Gang, i Incident) error {
	if i.Path != launcherPath {
		if g.Suspended || slices.ContainsFunc(i.Moves, func(mv Move) bool { return mv.OldUID != "" && g.Member(mv.Index).PodUID != mv.OldUID }) {
			return nil
		}
		return d.e.Cluster.MayRecreate(ctx, *g, d.recreation(ctx, i))
	}
	if a, err := d.attempt(ctx, g); err != nil || a.Incident == i.tag() {
		return err
	}
	var leaving []cluster.Member
	for _, mv := range i.Moves {
		if m := g.Member(mv.Index); mv.OldUID != "" && m.PodUID == mv.OldUID && !m.Deleting && !ended(m) {
			leaving = append(leaving, m)
		}
	}
	return d.e.Cluster.MayReplace(ctx, leaving, d.recreation(ctx, i))
}

// forbidden are the refusals that a person can end, with the words for a wait before anything is stopped, and for one midway.
type forbidden struct {
	by        error
	all, rest string
}

var forbiddens = []forbidden{{cluster.ErrBudget, waitBudget, waitRest}, {cluster.ErrFails, waitFails, waitFailRest}}

func forbids(err error) *forbidden {
	k := slices.IndexFunc(forbiddens, func(f forbidden) bool { return errors.Is(err, f.by) })
	if k < 0 {
		return nil
	}
	return &forbiddens[k]
}

// waitForLeave holds the incident, before ranks are made to save, until no budget and no Job's limit stands against the move. It is not when it has closed.
func (d *driver) waitForLeave(ctx context.Context) (bool, error) {
	err := d.until(ctx, waitForever, askEvery, func() (bool, error) {
		g, ok, err := d.gang(ctx)
		if err != nil || !ok {
			return !ok, err
		}
		err = d.leave(ctx, g, d.snapshot())
		if what := forbids(err); what != nil {
			return false, d.waits(ctx, what.all, err.Error())
		}
		return true, err
	})
	return err == nil && d.now.Load().Open(), err
}
