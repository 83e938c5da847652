package cluster

import (
	"context"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// Commands of people, which a process carries out whether it leads or not: what they change is their will and not the leader's decision, so
// the leader's lease does not bound them. Each write names the version that it was decided on.

// LiftQuarantine does what LiftQuarantine of the package does, with the rights of this process, and audits it.
func (c *Cluster) LiftQuarantine(ctx context.Context, node string, l Lift) error {
	w := Write{Verb: "patch", Kind: "Node", Name: node, Incident: l.Incident, What: "lift quarantine for " + bounded(l.By)}
	return c.commanded(ctx, w, func(ctx context.Context) error { return LiftQuarantine(ctx, c.kube.CoreV1().Nodes(), node, l) })
}

// HoldNode does what HoldNode of the package does, with the rights of this process, and audits it.
func (c *Cluster) HoldNode(ctx context.Context, node, why string) error {
	w := Write{Verb: "patch", Kind: "Node", Name: node, What: "hold"}
	return c.commanded(ctx, w, func(ctx context.Context) error { return HoldNode(ctx, c.kube.CoreV1().Nodes(), node, why) })
}

// ReleaseNode does what ReleaseNode of the package does, with the rights of this process, and audits it.
func (c *Cluster) ReleaseNode(ctx context.Context, node string) error {
	w := Write{Verb: "patch", Kind: "Node", Name: node, What: "release"}
	return c.commanded(ctx, w, func(ctx context.Context) error { return ReleaseNode(ctx, c.kube.CoreV1().Nodes(), node) })
}

func (c *Cluster) commanded(ctx context.Context, w Write, do func(context.Context) error) error {
	began := time.Now()
	audit := func() {
		if c.opts.Audit != nil {
			c.opts.Audit(ctx, w)
		}
	}
	audit()
	call, cancel := context.WithTimeout(ctx, c.opts.CallTimeout)
	defer cancel()
	w.Err = do(call)
	w.Done, w.Latency = true, time.Since(began)
	audit()
	return w.Err
}

// Jobs are the workloads that run as the watch shows them, by namespace and name: a Job of a JobSet counts as its JobSet.
func (c *Cluster) Jobs() (out []event.Job) {
	seen := map[event.Job]bool{}
	for _, o := range c.jobs.GetStore().List() {
		j, ok := o.(*batchv1.Job)
		if !ok || slices.ContainsFunc(j.Status.Conditions, func(s batchv1.JobCondition) bool {
			return s.Status == corev1.ConditionTrue && (s.Type == batchv1.JobComplete || s.Type == batchv1.JobFailed)
		}) {
			continue
		}
		one := event.Job{Kind: "Job", Namespace: j.Namespace, Name: j.Name}
		if ref := metav1.GetControllerOf(j); ref != nil {
			one.Kind, one.Name = ref.Kind, ref.Name
		}
		seen[one] = true
	}
	for j := range seen {
		out = append(out, j)
	}
	slices.SortFunc(out, func(a, b event.Job) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+a.Kind, b.Namespace+"/"+b.Name+"/"+b.Kind)
	})
	return out
}

// gpuResources are how device plugins name whole GPUs.
var gpuResources = []string{"nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910", "gpu.intel.com/i915", "gpu.intel.com/xe"}

// gpusOf counts the GPUs that a node offers.
func gpusOf(alloc map[string]int64) fleet.GPUs {
	for _, r := range gpuResources {
		if n := alloc[r]; n > 0 {
			return fleet.GPUs{Resource: r, Total: n}
		}
	}
	return fleet.GPUs{}
}
