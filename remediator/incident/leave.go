package incident

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

// askEvery is how often the API server is asked again whether it would evict.
const askEvery = 5 * time.Second

// leave asks whether the pods that are to go may be evicted, all of them. Once something was done there is nothing to
// ask: a job that is half down is brought back, however long a budget takes.
func (v *view) leave(ctx context.Context) error {
	if v.Begun {
		return nil
	}
	if v.Path != launcherPath {
		if v.gang.Suspended || slices.ContainsFunc(v.Moves, func(mv Move) bool { return mv.OldUID != "" && v.gang.Member(mv.Index).PodUID != mv.OldUID }) {
			return nil
		}
		return v.e.Cluster.MayRecreate(ctx, *v.gang, v.recreation(ctx))
	}
	if a, err := v.attempt(ctx); err != nil || a.Incident == v.tag() {
		return err
	}
	var leaving []cluster.Member
	for _, mv := range v.Moves {
		if m := v.gang.Member(mv.Index); mv.OldUID != "" && m.PodUID == mv.OldUID && !m.Deleting && !ended(m) {
			leaving = append(leaving, m)
		}
	}
	return v.e.Cluster.MayReplace(ctx, leaving, v.recreation(ctx))
}

// forbidden are the refusals that a person can end, with the reason of a wait before anything is stopped, and of one midway.
type forbidden struct {
	by        error
	all, rest Reason
}

var forbiddens = []forbidden{{cluster.ErrBudget, ReasonBudget, ReasonRest}, {cluster.ErrFails, ReasonFails, ReasonFailsRest}, {cluster.ErrHeld, ReasonHeldNode, ReasonHeldNode}}

func forbids(err error) *forbidden {
	k := slices.IndexFunc(forbiddens, func(f forbidden) bool { return errors.Is(err, f.by) })
	if k < 0 {
		return nil
	}
	return &forbiddens[k]
}

// halfway waits where a budget, or a Job that other pods failed of meanwhile, changed its mind when the first pods had gone: each pod that
// it lets go is one more that can come back, and what it does not let go is not taken.
func halfway(err error) Result {
	var g *guarded
	if errors.As(err, &g) {
		return refusal(g.Verdict)
	}
	if what := forbids(err); what != nil {
		return WaitFor(what.rest, err.Error(), 4*retryWait)
	}
	return failed(err)
}

// lossUnproven waits for proof that the processes on a lost node do not run any more. Silence of its agent and its kubelet is none: behind a
// cut of the front-end network training goes on over RDMA, and a second attempt would be a second writer. nil: it is proved, or no pod of
// the job is on a lost node.
func (v *view) lossUnproven(ctx context.Context) *Result {
	for _, node := range v.lostNodes() {
		if v.LossProof[node] != "" {
			continue
		}
		proof, why := v.lossProof(ctx, node)
		if proof == "" {
			return result(v.askLoss(ctx, node, why))
		}
		return result(Again("", func(i *Incident) {
			i.proveLoss(node, proof)
			i.note(v.now, fmt.Sprintf("%s is lost: %s", node, proof))
		}))
	}
	return nil
}

// proveLoss records the proof. The map is shared with copies of the record, so it is replaced.
func (i *Incident) proveLoss(node, proof string) {
	i.LossProof = maps.Clone(i.LossProof)
	if i.LossProof == nil {
		i.LossProof = map[string]string{}
	}
	i.LossProof[node] = proof
}

// lostNodes are the nodes found lost on which the job has pods, and that still do not answer.
func (v *view) lostNodes() (out []string) {
	for _, f := range v.Faults {
		there := func(m cluster.Member) bool { return m.Node == f.Node && f.Node != "" }
		if f.Signal == nodeLost && !slices.Contains(out, f.Node) && (slices.ContainsFunc(v.gang.Members, there) || slices.ContainsFunc(v.gang.Leaving, there)) {
			out = append(out, f.Node)
		}
	}
	return out
}

// lossProof is what proves that nothing of the job runs on a node any more; empty: nothing does, for the reason given.
func (v *view) lossProof(ctx context.Context, node string) (proof, why string) {
	n, err := v.e.Cluster.Node(node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return "its Node object is gone", ""
	case err == nil && n.OutOfService != "":
		return "it is tainted " + n.OutOfService, ""
	case v.answers(ctx, node):
		return "its kubelet answers, so it ends the pods itself", ""
	}
	others := members(v.gang, func(m cluster.Member) bool { return m.Node == node })
	live, missing := v.e.Checkpoint.Observe(ctx, others)
	if v.e.Claims != nil { // in any case: the first of two readings may be this one
		proof, why = v.e.Claims.Silent(*v.Job, live)
	}
	switch said, detail := witness.JudgePeers(live.Ranks); {
	case said == witness.PeersStill:
		return "the job makes no progress: " + detail, ""
	case said == witness.PeersStepping:
		return "", "the job goes on: " + detail
	case v.Begun && len(live.Ranks) == 0 && len(others) > len(missing):
		return "this incident has stopped the job's ranks on other nodes, so it makes no progress", ""
	}
	if proof == "" && why == "" {
		why = "no rank on another node can be read"
	}
	return proof, why
}

// askLoss asks a person, who may know that the node is off.
func (v *view) askLoss(ctx context.Context, node, why string) Result {
	if err := v.d.absorb(ctx); err != nil {
		return failed(err)
	}
	yes := v.d.now.Load().Approval
	switch {
	case strings.HasPrefix(yes, "rejected"):
		return Close(Refused, yes)
	case strings.HasPrefix(yes, "approved") && v.Wait != nil && v.Wait.Reason == ReasonEvidence && yes != v.Approval:
		return Again(yes, func(i *Incident) { i.proveLoss(node, "a person says so: "+yes) })
	}
	return WaitFor(ReasonEvidence, fmt.Sprintf("%s is silent, and %s; its ranks may still train and write checkpoints", node, why), watchEvery)
}

// answers reports whether the node's kubelet answers by now.
func (v *view) answers(ctx context.Context, node string) bool {
	probe, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	return v.e.Cluster.ProbeKubelet(probe, node) == nil
}
