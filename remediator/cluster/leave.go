package cluster

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// MayReplace asks whether all of these pods could be evicted now, one right after the other, and changes nothing: each by an eviction that is
// a dry run, and all together by what their budgets have left, since dry runs do not add up. ErrBudget: a PodDisruptionBudget forbids it, and
// the error says which. ErrFails: without FastReplace one of their Jobs would end by it. A pod that has gone or is going needs nobody's leave,
// and one that is to be deleted by force only that of its Job. ErrHeld: one of them is on a node that is on hold.
func (c *Cluster) MayReplace(ctx context.Context, pods []Member, o RecreateOptions) error {
	if err := c.untouchable(pods); err != nil {
		return err
	}
	asked := make([]*leaver, len(pods))
	running, each := errgroup.WithContext(ctx)
	running.SetLimit(atOnce)
	for i, m := range pods {
		running.Go(func() (err error) {
			asked[i], err = c.mayLeave(each, m, o)
			return err
		})
	}
	if err := running.Wait(); err != nil {
		return err
	}
	var healthy []*corev1.Pod
	var gone []leaver
	for _, l := range asked {
		if l == nil {
			continue
		}
		gone = append(gone, *l)
		if !l.forced && isReady(l.Pod) { // the eviction of any other takes nothing from a budget
			healthy = append(healthy, l.Pod)
		}
	}
	if !o.FastReplace {
		if err := c.outlives(ctx, gone); err != nil {
			return err
		}
	}
	if len(healthy) < 2 {
		return nil
	}
	return c.budgetsLast(ctx, healthy)
}

// mayLeave asks about one pod; nil: it needs nobody's leave.
func (c *Cluster) mayLeave(ctx context.Context, m Member, o RecreateOptions) (*leaver, error) {
	if o.Force == nil || !o.Force(m) {
		pod, err := c.mayEvict(ctx, m, ReplaceOptions{Incident: o.Incident, GraceSeconds: o.GraceSeconds, FastReplace: o.FastReplace})
		if pod == nil || err != nil {
			return nil, err
		}
		return &leaver{pod, false}, nil
	}
	pod, err := c.getPod(ctx, m.Namespace, m.Pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && (string(pod.UID) != m.PodUID || ended(pod)):
		return nil, nil
	case err != nil:
		return nil, wrap("ask whether pod "+m.String()+" may go", err)
	}
	return &leaver{pod, true}, nil
}

// MayRecreate asks MayReplace about every pod that RecreateGang would evict. A suspension evicts none: the Job controller, which asks no
// budget, deletes them; but no gang begins anew that has a pod on a node that is on hold.
func (c *Cluster) MayRecreate(ctx context.Context, g Gang, o RecreateOptions) error {
	if err := c.untouchable(g.Members); err != nil {
		return fmt.Errorf("recreate %s %s/%s: %w", g.Job.Kind, g.Job.Namespace, g.Job.Name, err)
	}
	switch g.way(o) {
	case ByFastReplace:
		return c.MayReplace(ctx, g.Members, o)
	case ByRestart:
		return c.MayReplace(ctx, g.Members[:min(1, len(g.Members))], o)
	}
	return nil
}

// mayEvict tries an eviction and returns the pod as it was tried; nil where none is needed.
func (c *Cluster) mayEvict(ctx context.Context, m Member, o ReplaceOptions) (*corev1.Pod, error) {
	r := &replacement{Cluster: c, m: m, o: o, op: "ask whether pod " + m.String() + " may be evicted"}
	for n := range podTries {
		pod, err := r.pod(ctx, n > 0)
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, wrap(r.op, err)
		case string(pod.UID) != m.PodUID || pod.DeletionTimestamp != nil || ended(pod):
			return nil, nil
		}
		err = r.dryRun(ctx, pod)
		switch {
		case err == nil:
			return pod, nil
		case apierrors.IsNotFound(err):
			return nil, nil
		case !apierrors.IsConflict(err):
			return nil, wrap(r.op, r.refusal(err))
		}
	}
	return nil, fmt.Errorf("%s: %w", r.op, ErrConflict)
}

// budgetsLast compares how many of the pods each budget of their namespace protects with how many it lets go.
func (c *Cluster) budgetsLast(ctx context.Context, pods []*corev1.Pod) error {
	namespace := pods[0].Namespace // a gang has one
	op := fmt.Sprintf("ask whether %d pods of namespace %s may be evicted together", len(pods), namespace)
	budgets, err := read(ctx, c, func(ctx context.Context) (*policyv1.PodDisruptionBudgetList, error) {
		return c.kube.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
	})
	if err != nil {
		return wrap(op, err)
	}
	for _, b := range budgets.Items {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // it protects nobody, and the API server refuses such a one
		}
		wanted := 0
		for _, p := range pods {
			if selector.Matches(labels.Set(p.Labels)) {
				wanted++
			}
		}
		if wanted > int(b.Status.DisruptionsAllowed) {
			return fmt.Errorf("%s: %w: namespace %s: the disruption budget %s allows %d more disruptions, and %d are wanted at once", op, ErrBudget,
				namespace, b.Name, b.Status.DisruptionsAllowed, wanted)
		}
	}
	return nil
}

func isReady(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}
