package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
)

// steps says what brings an incident from a state to the next.
var steps map[State]func(*driver, context.Context) error

func init() { // the table refers to methods that refer to it
	steps = map[State]func(*driver, context.Context) error{
		Detected:     (*driver).correlate,
		Correlated:   (*driver).plan,
		Planned:      (*driver).approve,
		Approved:     (*driver).cordon,
		Cordoned:     (*driver).checkpoint,
		Checkpointed: (*driver).place,
		Placed:       (*driver).restart,
		Restarted:    (*driver).resume,
		Resumed:      (*driver).verify,
		Verified:     (*driver).finish,
	}
}

const (
	waitForever = 365 * 24 * time.Hour
	watchEvery  = 2 * time.Second // beside the watch, in case one is missed
)

// gang reads the job's live state. A job that is gone closes the incident.
func (d *driver) gang(ctx context.Context) (*cluster.Gang, bool, error) {
	i := d.snapshot()
	if i.Job == nil {
		return nil, true, nil
	}
	g, err := d.e.Cluster.Gang(ctx, *i.Job)
	if errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrStale) {
		return nil, false, d.closes(ctx, Gone, fmt.Sprintf("%s %s/%s does not exist any more", i.Job.Kind, i.Job.Namespace, i.Job.Name))
	}
	if err != nil {
		return nil, false, err
	}
	if g.Finished != "" {
		return nil, false, d.closes(ctx, Gone, fmt.Sprintf("%s %s/%s has ended", i.Job.Kind, i.Job.Namespace, i.Job.Name))
	}
	return &g, true, nil
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

// correlate looks once at the live state: what the gang is, how far it is, and whether the event still holds.
func (d *driver) correlate(ctx context.Context) error {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	i := d.snapshot()
	if g == nil {
		return d.to(ctx, Correlated, "no job runs on "+i.Faults[0].Node, nil)
	}
	live, missing := d.e.Checkpoint.Observe(ctx, members(g, nil))
	if ok, why := confirmed(i.Faults[0], g, live, missing); !ok {
		return d.closes(ctx, NotConfirmed, why)
	}
	text := fmt.Sprintf("%s %s/%s: %d pods, %d ranks, attempt %d at step %d", i.Job.Kind, i.Job.Namespace, i.Job.Name, len(g.Members), live.World, live.Attempt, live.MaxStep)
	return d.to(ctx, Correlated, text, func(i *Incident) {
		i.WorldSize, i.MaxStep, i.NProc = live.World, live.MaxStep, max(1, live.World/max(1, g.Size))
		i.Attempt = max(i.Attempt, live.Attempt)
		i.Path = "recreate"
		if g.Launcher {
			i.Path = "launcher"
		}
	})
}

// confirmed asks for a second witness before a rank's fault acts: rings, processes and peers as they are now. Faults of
// hardware come from the driver and need none; a lost node is confirmed again right before its pod is replaced.
func confirmed(f Fault, g *cluster.Gang, live checkpoint.Gang, missing map[string]error) (bool, string) {
	if f.Rank == nil || !strings.HasPrefix(f.Signal, "rank/") {
		return true, ""
	}
	r, there := live.Ranks[*f.Rank]
	pod := slices.IndexFunc(g.Members, func(m cluster.Member) bool { return m.PodUID == f.PodUID })
	switch {
	case pod < 0:
		return false, fmt.Sprintf("the pod of rank %d has been replaced already", *f.Rank)
	case missing[f.PodUID] != nil || !there:
		return true, "" // nothing speaks against it
	case f.Attempt != nil && r.Attempt > *f.Attempt:
		return false, fmt.Sprintf("rank %d runs in attempt %d by now, the event is about attempt %d", *f.Rank, r.Attempt, *f.Attempt)
	}
	if f.Signal == "rank/dead" {
		if r.Connected && r.Exit == "running" {
			return false, fmt.Sprintf("rank %d answers and runs", *f.Rank)
		}
		return true, ""
	}
	if strings.ContainsAny(r.ProcState, "TtZX") { // stopped, traced or dead: the kernel is the second witness
		return true, ""
	}
	for n, peer := range live.Ranks {
		if n != *f.Rank && peer.StepAgeS > 3*max(peer.P99StepS, 0.1) {
			return r.HeartbeatAgeS > 1, fmt.Sprintf("rank %d beats again", *f.Rank)
		}
	}
	return len(live.Ranks) == 1 && r.HeartbeatAgeS > 2, fmt.Sprintf("rank %d seems hung but no peer waits for it", *f.Rank)
}

// plan judges every fault of the incident by policy, the strongest plan wins, and asks the guards.
func (d *driver) plan(ctx context.Context) error {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	i := d.snapshot()
	if g != nil && i.Round > 1 { // a replacement that is not made yet cannot be sent elsewhere
		if g, err = d.whole(ctx, g); err != nil {
			return err
		}
	}
	var chosen *Plan
	var facts Facts
	for _, f := range i.Faults {
		node, err := d.e.Cluster.NodeState(f.Node)
		if err != nil && f.Node != "" && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
		fx := Facts{Now: d.e.Now(), Node: node, Gang: g, Incident: &i, Nodes: d.e.Cluster.Nodes(), Seen: f.Seen}
		p, _ := d.e.Judge.Plan(f.Event, fx)
		if p != nil && (chosen == nil || p.Cordon && !chosen.Cordon) {
			chosen, facts = p, fx
		}
	}
	if chosen == nil {
		return d.closes(ctx, Refused, "no policy rule acts on it any more")
	}
	if g == nil {
		chosen.Checkpoint, chosen.Restart = false, false
	}
	verdicts, err := d.guards(chosen, facts, i)
	if err != nil {
		return err
	}
	if chosen.MaxPerJob > 0 && i.Restarts >= chosen.MaxPerJob {
		return d.closes(ctx, Failed, fmt.Sprintf("%d restarts in this incident did not bring the job back; a person is needed", i.Restarts))
	}
	preview := d.preview(g, chosen, i)
	record := func(i *Incident) { i.Plan, i.Guards, i.Moves = chosen, verdicts, preview }
	for _, v := range verdicts {
		if !v.Allowed {
			if err := d.change(ctx, record); err != nil {
				return err
			}
			return d.closes(ctx, Refused, "guard "+v.String())
		}
	}
	if chosen.Mode == "observe" {
		if err := d.change(ctx, record); err != nil {
			return err
		}
		return d.closes(ctx, Observed, fmt.Sprintf("policy %s observes: rule %s would have acted", chosen.Policy, chosen.Rule))
	}
	return d.to(ctx, Planned, fmt.Sprintf("policy %s, rule %s", chosen.Policy, chosen.Rule), record)
}

// whole waits until every member of the gang has a pod again, after an earlier round of this incident took some away.
func (d *driver) whole(ctx context.Context, g *cluster.Gang) (*cluster.Gang, error) {
	i := d.snapshot()
	faulty := i.FaultyNodes()
	return g, d.until(ctx, appearWithin, watchEvery, func() (bool, error) {
		now, ok, err := d.gang(ctx)
		if err != nil || !ok {
			return true, errors.Join(err, errReplan)
		}
		*g = *now
		leaving := func(m cluster.Member) bool { return m.Deleting && !slices.Contains(faulty, m.Node) } // on a faulty one the plan sees to it
		if len(g.Members) == g.Size && !slices.ContainsFunc(g.Members, leaving) {
			return true, nil
		}
		d.waits(ctx, "the gang's pods are being made anew")
		return false, nil
	})
}

// approve waits for a person where the policy wants one.
func (d *driver) approve(ctx context.Context) error {
	i := d.snapshot()
	if !i.Plan.NeedsApproval {
		return d.to(ctx, Approved, "by policy, no person needed", nil)
	}
	d.waits(ctx, fmt.Sprintf(waitApproval+"pitcrew incident approve %s", i.ID))
	err := d.until(ctx, waitForever, watchEvery, func() (bool, error) {
		stored, rev, err := d.e.Store.Get(ctx, i.ID)
		if err == nil && stored.Approval != "" {
			d.mu.Lock()
			d.inc.Approval, d.rev = stored.Approval, rev
			d.mu.Unlock()
		}
		return stored.Approval != "", err
	})
	if err != nil {
		return err
	}
	if a := d.snapshot().Approval; !strings.HasPrefix(a, "approved") {
		return d.closes(ctx, Refused, a)
	}
	return d.to(ctx, Approved, d.snapshot().Approval, nil)
}

// cordon takes the faulty nodes out of scheduling. First of all actions, so that nothing lands there any more.
func (d *driver) cordon(ctx context.Context) error {
	i := d.snapshot()
	if !i.Plan.Cordon {
		return d.to(ctx, Cordoned, "the rule does not cordon", nil)
	}
	if err := d.stillAllowed(ctx, i); err != nil {
		return err
	}
	nodes := i.FaultyNodes()
	for _, n := range nodes {
		if _, err := d.e.Cluster.Cordon(ctx, n, i.ID); err != nil && !errors.Is(err, cluster.ErrNotFound) && !errors.Is(err, cluster.ErrQuarantined) {
			return err
		}
	}
	err := d.to(ctx, Cordoned, strings.Join(nodes, ", "), func(i *Incident) { i.Cordons = nodes })
	for _, n := range nodes { // words for people; the job does not wait for them
		go d.tellNode(ctx, n, i)
	}
	return err
}

// stillAllowed asks the guards again right before an action, and waits while one refuses: a kill switch or a hold is obeyed at
// once, also by an incident under way, and the incident goes on when it is lifted.
func (d *driver) stillAllowed(ctx context.Context, i Incident) error {
	for {
		g, ok, err := d.gang(ctx)
		if err != nil || !ok {
			return errors.Join(err, errReplan)
		}
		verdicts, err := d.guards(i.Plan, Facts{Now: d.e.Now(), Gang: g, Incident: &i, Seen: i.Faults[0].Seen}, i)
		if err != nil {
			return err
		}
		refused := guard.Blocking(verdicts)
		if len(refused) == 0 {
			return nil
		}
		d.waits(ctx, waitGuard+refused[0].String())
		t := time.NewTimer(watchEvery)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-d.wake:
			t.Stop()
			if d.mustReplan() {
				return errReplan
			}
		case <-t.C:
		}
	}
}

// guards asks for each node that the plan would take, or for the fault's node when it takes none: all verdicts of the first that
// is refused, else of the last.
func (d *driver) guards(p *Plan, f Facts, i Incident) ([]guard.Verdict, error) {
	nodes := i.FaultyNodes()
	if !p.Cordon || len(nodes) == 0 {
		nodes = []string{i.Faults[0].Node}
	}
	_, all := d.e.Incidents()
	var verdicts []guard.Verdict
	for _, name := range nodes {
		node, err := d.e.Cluster.NodeState(name)
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return nil, err
		}
		f.Node = node
		verdicts = d.e.Judge.Guards(p, f, all)
		if len(guard.Blocking(verdicts)) > 0 {
			break
		}
	}
	return verdicts, nil
}

func (d *driver) tellNode(ctx context.Context, node string, i Incident) {
	why := fmt.Sprintf("%s, incident %s", i.Faults[0].Signal, i.ID)
	if err := d.e.Cluster.SetCondition(ctx, node, false, "Quarantined", why); err != nil && ctx.Err() == nil {
		d.log.Warn("node condition", "node", node, "error", err)
	}
	d.tell(ctx, d.e.Cluster.NodeRef(node), "Warning", "PitcrewQuarantined", why)
}

// tell writes a Kubernetes Event: words for people, whose failure fails nothing.
func (d *driver) tell(ctx context.Context, about cluster.Ref, level, reason, text string) {
	if err := d.e.Cluster.Event(ctx, about, level, reason, text); err != nil && ctx.Err() == nil {
		d.log.Warn("kubernetes event", "about", about.Name, "error", err)
	}
}

// checkpoint saves the gang together if every rank can, and otherwise says why the newest checkpoint on disk has to serve.
func (d *driver) checkpoint(ctx context.Context) error {
	i := d.snapshot()
	if !i.Plan.Restart {
		return d.to(ctx, Checkpointed, "no job to save", nil)
	}
	if len(i.Moves) == 0 && i.Plan.Cordon {
		if err := d.waitForNode(ctx); err != nil {
			return err
		}
		i = d.snapshot()
	}
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	c := Checkpoint{}
	if c.Why = d.cannotSave(i); c.Why == "" {
		q := d.saveRequest(i, g)
		q.Admit = func(ctx context.Context, s bus.Save) error { // the compare-and-swap that makes a checkpoint exist
			return d.change(ctx, func(i *Incident) { i.note(d.e.Now(), fmt.Sprintf("admitted checkpoint of step %d", s.Step)) })
		}
		save, err := d.e.Checkpoint.Save(ctx, q)
		switch {
		case errors.Is(err, errLost) || ctx.Err() != nil:
			return err
		case err != nil:
			c.Why = err.Error()
		default:
			c.Taken, c.Save = true, &save
		}
	}
	text := "none taken: " + c.Why
	if c.Taken {
		text = fmt.Sprintf("step %d, %d bytes in %.2f s", c.Save.Step, c.Save.Bytes, c.Save.Seconds)
	}
	return d.to(ctx, Checkpointed, text, func(i *Incident) {
		i.Checkpoint = &c
		if c.Taken {
			i.MaxStep = max(i.MaxStep, c.Save.Step)
		}
	})
}

func (d *driver) saveRequest(i Incident, g *cluster.Gang) checkpoint.Request {
	q := checkpoint.Request{ID: fmt.Sprintf("%s-%d", i.ID, i.Round), Members: members(g, nil)}
	for _, f := range i.Faults {
		for _, m := range g.Members {
			if f.Moves && m.Node == f.Node { // a faulty GPU is never the writer
				for r := range i.NProc {
					q.Exclude = append(q.Exclude, m.Index*i.NProc+r)
				}
			}
		}
	}
	return q
}

// cannotSave is why no round is begun, or empty.
func (d *driver) cannotSave(i Incident) string {
	if !i.Plan.Checkpoint {
		return "the rule asks for none"
	}
	for _, f := range i.Faults {
		if !f.Usable {
			return fmt.Sprintf("%s leaves rank state on %s unusable", f.Signal, f.Node)
		}
	}
	return ""
}

// waitForNode holds the incident, and kills nothing, until an equivalent node is free.
func (d *driver) waitForNode(ctx context.Context) error {
	return d.until(ctx, waitForever, watchEvery, func() (bool, error) {
		g, ok, err := d.gang(ctx)
		if err != nil || !ok {
			return true, err
		}
		i := d.snapshot()
		moves := d.preview(g, i.Plan, i)
		if free(moves) {
			return true, d.change(ctx, func(i *Incident) { i.Moves = moves })
		}
		d.waits(ctx, waitNode+"; nothing is stopped. "+refusal(moves))
		return false, nil
	})
}
