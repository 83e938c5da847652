package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Undone says what Undo took away.
type Undone struct {
	Nodes        []string // that bore something of ours
	Uncordoned   []string // of these, the ones that we had cordoned and that take pods again
	Reservations int      // ConfigMaps
	Pods         []string // that have the Job controller's finalizer back
}

// Undo takes away what Pitcrew wrote on the cluster's objects: on nodes its taints, annotations, condition and cordons (keepCordons leaves
// those), its reservations, and marks on pods. What people wrote stays: someone else's cordon, holds, opt-ins. Repeating it changes nothing.
// Nobody may lead meanwhile: call Oust before. A gang that an unfinished incident has suspended stays so, since nothing on it says whose
// doing that was.
func (c *Cluster) Undo(ctx context.Context, keepCordons bool) (Undone, error) {
	var done Undone
	var errs []error
	var err error
	done.Pods, err = c.RepairFinalizers(ctx)
	errs = append(errs, err)
	done.Reservations, err = c.dropReservations(ctx)
	errs = append(errs, err)
	for _, o := range c.nodes.GetStore().List() {
		n, ok := o.(*corev1.Node)
		if !ok {
			continue
		}
		touched, uncordoned, err := c.undoNode(ctx, n.Name, keepCordons)
		errs = append(errs, err)
		if touched {
			done.Nodes = append(done.Nodes, n.Name)
		}
		if uncordoned {
			done.Uncordoned = append(done.Uncordoned, n.Name)
		}
	}
	slices.Sort(done.Nodes)
	slices.Sort(done.Uncordoned)
	return done, errors.Join(errs...)
}

func (c *Cluster) undoNode(ctx context.Context, node string, keepCordon bool) (touched, uncordoned bool, err error) {
	err = c.patchNode(ctx, node, "", "uninstall", func(n *corev1.Node) (nodePatch, bool) {
		p := liftQuarantine(n)
		if uncordoned = p.unschedulable != nil && !keepCordon && taintValue(n, TaintQuarantine) != ""; !uncordoned {
			p.unschedulable = nil
		}
		p.taints = withoutTaint(p.taints, TaintReserved)
		if _, ours := n.Annotations[AnnotationFenced]; ours {
			p.taints = withoutTaint(p.taints, TaintOutOfService)
			p.annotations[AnnotationFenced] = nil
		}
		marked := slices.ContainsFunc([]string{AnnotationQuarantine, AnnotationSince, AnnotationCordon, AnnotationUncordoned, AnnotationFenced}, func(key string) bool {
			_, ok := n.Annotations[key]
			return ok
		})
		touched = marked || len(p.taints) != len(n.Spec.Taints)
		return p, touched
	})
	if err != nil {
		return false, false, err
	}
	said, err := c.unsetCondition(ctx, node)
	return touched || said, uncordoned, err
}

// unsetCondition removes the condition PitcrewHealthy, which nobody would keep true any more.
func (c *Cluster) unsetCondition(ctx context.Context, node string) (bool, error) {
	n, ok := cached[*corev1.Node](c.nodes, node)
	if !ok || !slices.ContainsFunc(n.Status.Conditions, func(have corev1.NodeCondition) bool { return have.Type == ConditionHealthy }) {
		return false, nil
	}
	body := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"conditions":[{"$patch":"delete","type":%q}]}}`, n.UID, ConditionHealthy)
	w := Write{Verb: "patch", Kind: "Node", Name: node, UID: string(n.UID), What: "remove condition"}
	err := c.write(ctx, w, func(ctx context.Context) error {
		_, err := c.kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager}, "status")
		return err
	})
	return err == nil, wrap("remove the condition of node "+node, err)
}

func (c *Cluster) dropReservations(ctx context.Context) (int, error) {
	maps := c.kube.CoreV1().ConfigMaps(c.opts.Namespace)
	list, err := read(ctx, c, func(ctx context.Context) (*corev1.ConfigMapList, error) {
		return maps.List(ctx, metav1.ListOptions{LabelSelector: LabelReservation + "=true"})
	})
	if err != nil {
		return 0, wrap("list reservations", err)
	}
	dropped := 0
	for _, m := range list.Items {
		w := Write{Verb: "delete", Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name, UID: string(m.UID), Incident: m.Labels[LabelIncident], What: "uninstall"}
		err := c.write(ctx, w, func(ctx context.Context) error {
			return maps.Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID}})
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return dropped, wrap("drop reservation "+m.Name, err)
		}
		dropped++
	}
	return dropped, nil
}

// Oust takes the lease from whoever leads, keeps others from it for hold, and returns when no earlier leader can act any more: at once where
// nobody leads, else after the leader's own lease has run out, for a leader that can no longer renew gives up before that.
func (c *Cluster) Oust(ctx context.Context, o LeaderOptions, hold time.Duration) error {
	if o.Identity == "" {
		return errors.New("take the lease: no identity given")
	}
	if o.Name == "" {
		o.Name = fieldManager
	}
	for {
		lock := c.lease(o)
		was, _, err := lock.Get(ctx)
		now := metav1.NewTime(c.opts.Now())
		mine := resourcelock.LeaderElectionRecord{HolderIdentity: o.Identity, LeaseDurationSeconds: int(hold.Seconds()), AcquireTime: now, RenewTime: now}
		wait := time.Duration(0)
		switch {
		case apierrors.IsNotFound(err):
			err = lock.Create(ctx, mine)
		case err == nil:
			mine.LeaderTransitions = was.LeaderTransitions + 1
			if was.HolderIdentity != "" && was.HolderIdentity != o.Identity {
				wait = time.Duration(was.LeaseDurationSeconds) * time.Second
				c.log.Info("took the lease; waiting until its holder has given up", "holder", was.HolderIdentity, "for", wait)
			}
			err = lock.Update(ctx, mine)
		}
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			continue // it was renewed meanwhile
		}
		if err != nil {
			return wrap("take the lease "+c.opts.Namespace+"/"+o.Name, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
			return nil
		}
	}
}
