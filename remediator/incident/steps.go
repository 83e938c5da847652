package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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

// gang reads the job's live state. Without a job there is none to read; false says that the incident has closed by that.
func (d *driver) gang(ctx context.Context) (*cluster.Gang, bool, error) {
	i := d.snapshot()
	if i.Job == nil {
		return nil, true, nil
	}
	g, err := d.e.Cluster.Gang(ctx, *i.Job)
	name := fmt.Sprintf("%s %s/%s", i.Job.Kind, i.Job.Namespace, i.Job.Name)
	switch {
	case errors.Is(err, cluster.ErrNotFound), errors.Is(err, cluster.ErrStale):
		if err := d.e.forget(ctx, i.Job.UID); err != nil {
			d.log.Warn("delete the attempts of a job that is no more", "job", name, "error", err)
		}
		return d.jobOver(ctx, name+" does not exist any more")
	case errors.Is(err, cluster.ErrUnsupported):
		return nil, false, d.closes(ctx, Failed, err.Error())
	case err != nil:
		return nil, false, err
	case g.Finished != "":
		return d.jobOver(ctx, name+" has ended")
	case g.Size == 0:
		return d.jobOver(ctx, name+" is scaled to nothing")
	case g.Suspended && !i.reached(Placed): // a person or a queue wants it so; there is nothing to bring back
		return d.jobOver(ctx, name+" is suspended")
	}
	return &g, true, nil
}

// jobOver deals with a job that is no more: there is nothing to bring back. A node outlasts its job: one that is still to be cordoned is,
// as if no job had run there.
func (d *driver) jobOver(ctx context.Context, why string) (*cluster.Gang, bool, error) {
	i := d.snapshot()
	waits := slices.ContainsFunc(i.FaultyNodes(), func(n string) bool { return !slices.Contains(i.Cordons, n) })
	restarts := i.Plan != nil && (i.Plan.Checkpoint || i.Plan.Restart)
	switch {
	case len(i.FaultyNodes()) > 0 && !restarts:
		return nil, true, nil
	case waits && order[i.State] < order[Cordoned]:
		err := d.change(ctx, func(i *Incident) {
			only := *i.Plan
			only.Checkpoint, only.Restart = false, false
			i.Plan, i.Moves = &only, nil
			i.note(d.e.Now(), why+"; its node is cordoned all the same")
		})
		return nil, err == nil, err
	case waits && i.Replan && !i.Suspended: // it joined just now
		return nil, false, errReplan
	}
	return nil, false, d.closes(ctx, Gone, why)
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

// plan judges every fault of the incident by policy, the strongest plan wins, and asks the guards.
func (d *driver) plan(ctx context.Context) error {
	g, ok, err := d.gang(ctx)
	if !ok || err != nil {
		return err
	}
	if open, err := d.freshen(ctx); !open || err != nil {
		return err
	}
	i := d.snapshot()
	if g != nil && i.inTheMaking(g) {
		return d.standsBy(ctx, "", "the gang's pods are being made anew", retryWait)
	}
	chosen, facts, err := d.judge(&i, g)
	if err != nil {
		return err
	}
	switch {
	case chosen == nil && i.acted():
		chosen, facts = i.Plan, Facts{Now: d.e.Now(), Gang: g, Incident: &i, Nodes: d.e.Cluster.Nodes(), Seen: i.Faults[0].Seen}
	case chosen == nil:
		return d.closes(ctx, Refused, "no policy rule acts on it any more")
	case chosen.Mode == observes && i.acted():
		return d.standsBy(ctx, waitGuard, fmt.Sprintf("policy: %s only observes now; nothing more is changed", chosen.Policy), watchEvery)
	case g == nil, d.left(g, i):
		chosen.Checkpoint, chosen.Restart = false, false
	}
	if chosen.MaxPerJob > 0 && i.Restarts >= chosen.MaxPerJob {
		return d.closes(ctx, Failed, fmt.Sprintf("%s in this incident did not bring the job back; a person is needed", count(i.Restarts, "restart")))
	}
	verdicts, err := d.guards(chosen, facts, i)
	if err != nil {
		return err
	}
	record := func(now *Incident) {
		now.Plan, now.Guards, now.Moves = chosen, verdicts, d.preview(g, chosen, i)
		for k, f := range i.Faults {
			now.Faults[k].Moves = f.Moves
		}
		now.Replan = len(now.Faults) > len(i.Faults)
	}
	if refused := guard.Blocking(verdicts); len(refused) > 0 {
		if i.acted() { // half a remediation does more harm than a late one
			return d.standsBy(ctx, waitGuard+string(refused[0].Guard), strings.TrimPrefix(refused[0].String(), string(refused[0].Guard)), watchEvery)
		}
		return d.held(ctx, i, chosen, refused, record)
	}
	if chosen.Mode == observes {
		if err := d.change(ctx, record); err != nil {
			return err
		}
		return d.closes(ctx, Observed, chosen.wouldHave())
	}
	text := fmt.Sprintf("policy %s, rule %s", chosen.Policy, chosen.Rule)
	if i.HeldAt.IsZero() || i.acted() {
		return d.to(ctx, Planned, text, record)
	}
	if same, err := d.lets(ctx, i, g); !same || err != nil {
		return err
	}
	now := d.e.Now()
	text += fmt.Sprintf("; taken up %s after a guard held it back, and it still holds", now.Sub(i.HeldAt).Round(time.Second))
	return d.to(ctx, Planned, text, func(i *Incident) {
		record(i)
		i.TakenUp = now
	})
}

// observes is the mode of a plan that is only written down.
const observes = "observe"

// judge asks policy about every fault. The plan that does most wins, the earliest among equals; a person is asked if any of them wants
// one. A node whose own rule does not take it is not taken along with another's. What was begun before is not taken back.
func (d *driver) judge(i *Incident, g *cluster.Gang) (chosen *Plan, facts Facts, err error) {
	plans := make([]*Plan, len(i.Faults))
	for k, f := range i.Faults {
		node, err := d.e.Cluster.NodeState(f.Node)
		if err != nil && f.Node != "" && !errors.Is(err, cluster.ErrNotFound) {
			return nil, Facts{}, err
		}
		fx := Facts{Now: d.e.Now(), Node: node, Gang: g, Incident: i, Nodes: d.e.Cluster.Nodes(), Seen: d.seen(f)}
		plans[k], _ = d.e.Judge.Plan(f.Event, fx)
		if plans[k].weight() > chosen.weight() {
			chosen, facts = plans[k], fx
		}
	}
	asks := false
	for k, p := range plans {
		acts := p != nil && (p.Mode != observes || chosen.Mode == observes)
		if !slices.Contains(i.Cordons, i.Faults[k].Node) {
			i.Faults[k].Moves = acts && p.Cordon
		}
		asks = asks || acts && p.NeedsApproval
	}
	if chosen != nil {
		own := *chosen
		own.NeedsApproval, chosen = asks, &own
	}
	return chosen, facts, nil
}

// weight orders plans by how much they do.
func (p *Plan) weight() int {
	switch {
	case p == nil:
		return 0
	case p.Mode == observes:
		return 1
	case !p.Cordon:
		return 2
	}
	return 3
}

// left reports that the job has left the faulty nodes by itself before anything was done: there is nothing to bring back, and its
// ranks are not to be disturbed. A fault of a rank is one wherever its pod is.
func (d *driver) left(g *cluster.Gang, i Incident) bool {
	if i.Round > 1 || i.acted() || slices.ContainsFunc(i.Faults, func(f Fault) bool { return !f.Moves }) {
		return false
	}
	there := func(m cluster.Member) bool { return m.Node == "" || slices.Contains(i.FaultyNodes(), m.Node) }
	return len(g.Members) == g.Size && !slices.ContainsFunc(g.Members, there) && !slices.ContainsFunc(g.Leaving, there)
}

// approve waits for a person where the policy wants one.
func (d *driver) approve(ctx context.Context) error {
	i := d.snapshot()
	if !i.Plan.NeedsApproval {
		return d.to(ctx, Approved, "by policy, no person needed", nil)
	}
	if i.Approval == "" {
		if err := d.waits(ctx, waitApproval, "pitcrew incident approve "+i.ID); err != nil {
			return err
		}
		err := d.until(ctx, waitForever, watchEvery, func() (bool, error) {
			if _, ok, err := d.gang(ctx); err != nil || !ok {
				return !ok, err
			}
			err := d.absorb(ctx)
			return d.now.Load().Approval != "", err
		})
		if now := d.snapshot(); err != nil || !now.Open() {
			return err
		}
	}
	yes := d.snapshot().Approval
	if !strings.HasPrefix(yes, "approved") {
		return d.closes(ctx, Refused, yes)
	}
	confirmed := false
	if d.e.Now().Sub(i.StateAt) > d.e.Judge.MaxEventAge() { // much may have happened while the person thought
		if g, ok, err := d.gang(ctx); err != nil || !ok {
			return err
		} else if g != nil {
			record, err := d.attempt(ctx, g)
			if err != nil {
				return err
			}
			holding, _, why := d.confirm(ctx, i, g, record)
			if len(holding) == 0 {
				return d.closes(ctx, NotConfirmed, why)
			}
			confirmed = true
		}
	}
	return d.to(ctx, Approved, yes, func(i *Incident) {
		for k := range i.Faults { // or their age would stand against what the person has just agreed to
			if confirmed {
				i.Faults[k].Seen = d.e.Now()
			}
		}
	})
}

// cordon takes the faulty nodes out of scheduling. First of all actions, so that nothing lands there any more. A node that this
// incident had cordoned before is left as it is: if it is schedulable by now, a person wants it so.
func (d *driver) cordon(ctx context.Context) error {
	i := d.snapshot()
	if !i.Plan.Cordon {
		return d.to(ctx, Cordoned, "the rule does not cordon", nil)
	}
	if ok, err := d.mayAct(ctx, i); !ok || err != nil {
		return err
	}
	nodes := slices.DeleteFunc(i.FaultyNodes(), func(n string) bool { return slices.Contains(i.Cordons, n) })
	for _, n := range nodes {
		if _, err := d.e.Cluster.Cordon(ctx, n, i.ID); err != nil && !errors.Is(err, cluster.ErrNotFound) && !errors.Is(err, cluster.ErrQuarantined) {
			return err
		}
	}
	err := d.to(ctx, Cordoned, strings.Join(nodes, ", "), func(i *Incident) { i.Cordons = append(i.Cordons, nodes...) })
	for _, n := range nodes { // words for people; the job does not wait for them
		d.e.wg.Go(func() { d.tellNode(ctx, n, i) })
	}
	return err
}

// mayAct asks the guards again right before an action. While one refuses, the incident stands where it is: a kill switch or a hold is
// obeyed at once, also by an incident under way, and it goes on when that is lifted. Ranks that hold are let go meanwhile, and asked
// again later.
func (d *driver) mayAct(ctx context.Context, i Incident) (bool, error) {
	g, ok, err := d.gang(ctx)
	if err != nil || !ok {
		return false, err
	}
	verdicts, err := d.guards(i.Plan, Facts{Now: d.e.Now(), Gang: g, Incident: &i, Seen: d.seen(i.Faults[0])}, i)
	if err != nil {
		return false, err
	}
	refused := guard.Blocking(verdicts)
	if len(refused) == 0 {
		return true, nil
	}
	if i.holds() {
		d.letGo(ctx, i)
		return false, d.again(ctx, "guard "+refused[0].String(), 0)
	}
	return false, d.standsBy(ctx, waitGuard+string(refused[0].Guard), strings.TrimPrefix(refused[0].String(), string(refused[0].Guard)), watchEvery)
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
