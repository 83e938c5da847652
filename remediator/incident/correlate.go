package incident

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

// correlate looks once at the live state: what the gang is, how far it is, and whether the event still holds.
func correlate(ctx context.Context, v *view) Result {
	if v.gang == nil {
		return GoOn(Correlated, "no job runs on "+v.Faults[0].Node)
	}
	record, err := v.attempt(ctx)
	if err != nil {
		return failed(err)
	}
	holding, live, no := v.confirm(ctx, record)
	if len(holding) == 0 {
		return no.result()
	}
	judged := len(v.Faults)
	world, nproc, path := layout(v.gang, live, record)
	text := fmt.Sprintf("%s %s/%s: %d pods, %d ranks, attempt %d at step %d", v.Job.Kind, v.Job.Namespace, v.Job.Name, len(v.gang.Members), world, live.Attempt, live.MaxStep)
	return GoOn(Correlated, text, func(i *Incident) {
		i.Faults = append(holding, i.Faults[judged:]...) // a refuted one is not to stand in the way of a checkpoint
		i.WorldSize, i.NProc, i.Path = world, nproc, path
		i.MaxStep, i.Attempt = max(i.MaxStep, live.MaxStep), max(i.Attempt, live.Attempt, record.Attempt)
		i.sight(v.now, live, v.e.costOf(v.gang))
	})
}

// layout is how the ranks lie on the pods: as the ranks say, else as the launchers or the last attempt's record say. A launcher's job
// of which nobody knows that begins anew as a whole, since an attempt of the wrong size never comes about. It can do so only where no
// record keeps new pods waiting; where there is one, it says the layout.
func layout(g *cluster.Gang, live checkpoint.Gang, record bus.Attempt) (world, nproc int, path string) {
	size := max(1, g.Size)
	switch {
	case live.World > 0 && live.World%size == 0:
		nproc = live.World / size
	case record.NProc > 0:
		nproc = record.NProc
	default:
		nproc = live.NProc
	}
	if world = live.World; world == 0 {
		world = nproc * size
	}
	if g.Launcher && nproc > 0 && (live.World%size == 0 || record.Attempt > 0) {
		return world, nproc, launcherPath
	}
	return world, nproc, recreatePath
}

// refuted is why a fault is not borne out by live state.
type refuted struct {
	why  string
	open bool // the evidence cannot be read now; it may be readable later
}

func (r refuted) result() Result {
	if r.open {
		return WaitFor(ReasonWitness, r.why, watchEvery)
	}
	return Close(NotConfirmed, r.why)
}

// confirm gives the incident's faults that live state bears out, and why the first of the others is not.
func (v *view) confirm(ctx context.Context, record bus.Attempt) (holding []Fault, live checkpoint.Gang, no refuted) {
	live, missing := v.e.Checkpoint.Observe(ctx, members(v.gang, nil))
	for _, f := range v.Faults {
		r := confirmed(f, v.gang, live, missing, record)
		switch {
		case r == nil:
			holding = append(holding, f)
		case no.why == "" || no.open:
			no = *r
		}
	}
	return holding, live, no
}

// confirmed asks for a second witness before a rank's fault acts: rings, processes and peers as they are now. Faults of
// hardware come from the driver and need none; a lost node is confirmed again right before its pod is replaced.
func confirmed(f Fault, g *cluster.Gang, live checkpoint.Gang, missing map[string]error, record bus.Attempt) *refuted {
	if f.Rank == nil || !strings.HasPrefix(f.Signal, "rank/") {
		return nil
	}
	r, there := live.Ranks[*f.Rank]
	pod := slices.IndexFunc(g.Members, func(m cluster.Member) bool { return m.PodUID == f.PodUID })
	dead := f.Signal == "rank/dead"
	switch {
	case f.Attempt != nil && max(live.Attempt, record.Attempt) > *f.Attempt:
		return &refuted{why: fmt.Sprintf("the job is at attempt %d by now, the event is about attempt %d", max(live.Attempt, record.Attempt), *f.Attempt)}
	case pod < 0:
		return &refuted{why: fmt.Sprintf("the pod of rank %d has been replaced already", *f.Rank)}
	case missing[f.PodUID] != nil || !there:
		if dead {
			return nil // its agent saw the process end, and nothing speaks against it
		}
		if f.statistical() {
			return &refuted{why: fmt.Sprintf("rank %d cannot be read, so nothing shows that it still runs", *f.Rank), open: true}
		}
		return &refuted{why: fmt.Sprintf("rank %d cannot be read, so only the event says that it hangs", *f.Rank), open: true}
	case f.statistical():
		if !r.Connected || r.Exit != "running" {
			return &refuted{why: fmt.Sprintf("rank %d does not run, so it is not slow", *f.Rank)}
		}
		return nil
	case dead && r.Connected && r.Exit == "running":
		return &refuted{why: fmt.Sprintf("rank %d answers and runs", *f.Rank)}
	case dead:
		return nil
	case strings.ContainsAny(r.ProcState, "TtZX"): // stopped, traced or dead: the kernel is the second witness
		return nil
	}
	peers := maps.Clone(live.Ranks)
	delete(peers, *f.Rank)
	if said, _ := witness.JudgePeers(peers); said == witness.PeersStill {
		if r.HeartbeatAgeS > 1 {
			return nil
		}
		return &refuted{why: fmt.Sprintf("rank %d beats again", *f.Rank)}
	}
	if len(live.Ranks) == 1 && r.HeartbeatAgeS > 2 {
		return nil
	}
	return &refuted{why: fmt.Sprintf("rank %d seems hung but no peer waits for it", *f.Rank)}
}
