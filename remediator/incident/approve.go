package incident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// approve waits for a person where the policy wants one, looks whether everything is still as it was, and takes the grant without which
// nothing is changed.
func approve(ctx context.Context, v *view) Result {
	text := "by policy, no person needed"
	if v.Plan.NeedsApproval {
		if v.Approval == "" {
			if err := v.d.absorb(ctx); err != nil {
				return failed(err)
			}
			v.Approval = v.d.now.Load().Approval
		}
		switch text = v.Approval; {
		case text == "":
			return v.askPerson()
		case !strings.HasPrefix(text, "approved"):
			return Close(Refused, text)
		}
	}
	late := v.now.Sub(v.StateAt) > v.e.Judge.MaxEventAge() || v.Wait != nil
	if late && !v.stopped() { // much may have happened meanwhile
		if r := v.reconfirm(ctx); r != nil {
			return *r
		}
		if v.gang != nil && v.Plan.bringsBack() && v.left() {
			if !v.Plan.Has(policy.Cordon) {
				return Close(NotConfirmed, "the job has left the node by itself")
			}
			return Again("the job has left "+strings.Join(v.FaultyNodes(), ", ")+" by itself; only the node is cordoned", func(i *Incident) {
				i.Plan, i.Moves = i.Plan.onlyNode(), nil
			})
		}
		if !v.HeldAt.IsZero() && !v.Plan.NeedsApproval && !v.acted() {
			if r := v.rejudged(); r != nil {
				return *r
			}
		}
		for k := range v.Faults { // or their age would stand against what the person has just agreed to
			if v.Approval != "" {
				v.Faults[k].Seen = v.now
			}
		}
	}
	pace := v.paceNow(ctx)
	verdicts, err := v.admit(ctx, v.Plan)
	if err != nil {
		return failed(asStore(err))
	}
	if refused := guard.Blocking(verdicts); len(refused) > 0 {
		if v.acted() {
			return refusal(refused[0])
		}
		return v.heldBack(v.Plan, refused, func(i *Incident) { i.Guards = verdicts })
	}
	seen := v.now
	if !v.HeldAt.IsZero() && v.TakenUp.Before(v.HeldAt) {
		text += fmt.Sprintf("; taken up %s after a guard held it back, and it still holds", v.now.Sub(v.HeldAt).Round(time.Second))
	}
	return GoOn(Approved, text, func(i *Incident) {
		i.Guards = verdicts
		if i.Pace == nil {
			i.Pace = pace
		}
		if !v.HeldAt.IsZero() && i.TakenUp.Before(v.HeldAt) {
			i.TakenUp = v.now
		}
		for k := range i.Faults {
			if late && v.Approval != "" {
				i.Faults[k].Seen = seen
			}
		}
	})
}

// askPerson waits for a yes or a no, as long as an answer can still mean what is now.
func (v *view) askPerson() Result {
	return WaitFor(ReasonApproval, "pitcrew incident approve "+v.ID, watchEvery)
}

// cordon takes the faulty nodes out of scheduling. First of all actions, so that nothing lands there any more. A node that this
// incident had cordoned before is left as it is: if it is schedulable by now, a person wants it so.
func cordon(ctx context.Context, v *view) Result {
	if !v.Plan.Has(policy.Cordon) {
		return GoOn(Cordoned, "the rule does not cordon")
	}
	if r := v.mayAct(ctx); r != nil {
		return *r
	}
	nodes := slices.DeleteFunc(v.FaultyNodes(), func(n string) bool { return slices.Contains(v.Cordons, n) })
	if err := v.did(ctx, policy.Cordon, nodes...); err != nil {
		return failed(err)
	}
	if err := v.cordonAll(ctx, nodes); err != nil {
		return failed(err)
	}
	r := GoOn(Cordoned, strings.Join(nodes, ", "), func(i *Incident) { i.Cordons = append(i.Cordons, nodes...) })
	return r.tells(func(ctx context.Context) {
		if !v.d.calm(ctx) {
			return
		}
		for _, n := range nodes {
			if slices.Contains(v.d.now.Load().Cordons, n) { // not given back meanwhile
				v.tellNode(ctx, n)
			}
		}
	})
}

// cordonsAtOnce bounds how many nodes an incident cordons at the same time: a storm takes many nodes of one job, and none waits for another.
const cordonsAtOnce = 16

// cordonAll cordons each of the nodes, also where another one fails. It returns the first error.
func (v *view) cordonAll(ctx context.Context, nodes []string) error {
	var all errgroup.Group
	all.SetLimit(cordonsAtOnce)
	for _, n := range nodes {
		all.Go(func() error {
			defer func() { v.e.rush.cordons(v.ID, v.e.Now()) }()
			v.e.rush.cordons(v.ID, v.e.Now())
			_, err := v.e.Cluster.Cordon(ctx, n, v.ID)
			if errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrQuarantined) {
				return nil
			}
			return err
		})
	}
	return all.Wait()
}

// did records an action in the ledger before it is done.
func (v *view) did(ctx context.Context, verb policy.Verb, nodes ...string) error {
	if len(nodes) == 0 {
		return nil
	}
	return asStore(v.e.Ledger.Did(ctx, v.ID, guard.Done{Verb: verb, At: v.now, Round: v.Round}, nodes...))
}

func (v *view) tellNode(ctx context.Context, node string) {
	why := fmt.Sprintf("%s, incident %s", v.Faults[0].Signal, v.ID)
	if err := v.e.Cluster.SetCondition(ctx, node, false, "Quarantined", why); err != nil && ctx.Err() == nil {
		v.d.log.Warn("node condition", "node", node, "error", err)
	}
	v.tell(ctx, v.e.Cluster.NodeRef(node), "Warning", "PitcrewQuarantined", why)
}

// tell writes a Kubernetes Event: words for people, whose failure fails nothing.
func (v *view) tell(ctx context.Context, about cluster.Ref, level, reason, text string) {
	if err := v.e.Cluster.Event(ctx, about, level, reason, text); err != nil && ctx.Err() == nil {
		v.d.log.Warn("kubernetes event", "about", about.Name, "error", err)
	}
}
