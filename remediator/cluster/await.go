package cluster

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Stage is how far a replacement pod has come.
type Stage int

// Stages in their order.
const (
	Created Stage = iota + 1 // the pod object exists
	Bound                    // the scheduler has chosen its node
	Running                  // its containers have been started
)

var stageNames = map[Stage]string{Created: "created", Bound: "bound", Running: "running"}

func (s Stage) String() string { return stageNames[s] }

func (m Member) reached(s Stage) bool {
	switch s {
	case Created:
		return true
	case Bound:
		return m.Node != ""
	}
	return m.Phase == string(corev1.PodRunning)
}

// AwaitReplacement returns the pod that stands for an index and is none of the ones that were there before, once it has reached a stage. It
// waits by the watches alone, until ctx ends. ErrFinished: the new pod has ended already; it is returned too.
func (c *Cluster) AwaitReplacement(ctx context.Context, g Gang, index int, stage Stage, before ...string) (Member, error) {
	old := map[string]bool{}
	for _, uid := range before {
		old[uid] = true
	}
	var found Member
	err := c.awaitGang(ctx, g, func(now Gang) (bool, error) {
		for _, m := range now.Members {
			if m.Index != index || m.Deleting || old[m.PodUID] {
				continue
			}
			if found = m; m.terminal() {
				return false, fmt.Errorf("pod %s: %w: %s", m, ErrFinished, m.Phase)
			}
			return m.reached(stage), nil
		}
		return false, nil
	})
	if err != nil {
		return found, fmt.Errorf("await the replacement of index %d of %s %s/%s to be %s: %w", index, g.Job.Kind, g.Job.Namespace, g.Job.Name, stage, err)
	}
	return found, nil
}

// awaitGang looks at the gang at each change of its jobs and pods.
func (c *Cluster) awaitGang(ctx context.Context, g Gang, look func(Gang) (bool, error)) error {
	return c.changes.await(ctx, g.Job.UID, func() (bool, error) {
		now, err := c.Gang(ctx, g.Job)
		if Retriable(err) {
			c.log.Warn("read a gang", "job", g.Job.Name, "error", err)
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return look(now)
	})
}

// Landing is where a replacement pod has come down.
type Landing struct {
	Node       string // empty: not bound yet
	Stamped    bool   // it was created with the reservation's node selector
	Reserved   bool   // it is, or can only be, on the reserved node
	Equivalent bool   // it is on another node that is as good
	Sent       bool   // it was not where it may be, and has been sent away
}

// Good reports whether the replacement may stay.
func (l Landing) Good() bool { return l.Reserved || l.Equivalent }

// Landed says where a replacement has come down and changes nothing. Where a pod is bound, or may only be bound, never changes: what the watch
// shows to be good is not read again, and anything else is read live. equivalent judges a node other than the reserved one; reserved is empty where the
// scheduler was left to choose.
func (c *Cluster) Landed(ctx context.Context, m Member, reserved string, equivalent func(node string) bool) (Landing, error) {
	if p, ok := cached[*corev1.Pod](c.pods, m.Namespace+"/"+m.Pod); ok && string(p.UID) == m.PodUID && p.DeletionTimestamp == nil {
		if l := c.landing(p, reserved, equivalent); l.Good() {
			return l, nil
		}
	}
	pod, err := c.getPod(ctx, m.Namespace, m.Pod)
	switch {
	case apierrors.IsNotFound(err):
		return Landing{}, fmt.Errorf("read back pod %s: %w", m, ErrNotFound)
	case err != nil:
		return Landing{}, wrap("read back pod "+m.String(), err)
	case string(pod.UID) != m.PodUID:
		return Landing{}, staleUID("read back pod "+m.String(), m.PodUID, string(pod.UID))
	}
	return c.landing(pod, reserved, equivalent), nil
}

func (c *Cluster) landing(pod *corev1.Pod, reserved string, equivalent func(node string) bool) Landing {
	l := Landing{Node: pod.Spec.NodeName}
	if reserved != "" {
		l.Stamped = pod.Spec.NodeSelector[hostnameLabel] == c.hostnameOf(reserved)
		l.Reserved = l.Node == reserved || (l.Node == "" && l.Stamped)
	}
	l.Equivalent = !l.Reserved && l.Node != "" && equivalent(l.Node)
	return l
}

// ReadBack is Landed, and sends the replacement away, by its UID, if it may not stay: it slipped past its reservation, or the scheduler chose
// a node that is not equivalent. A pod that is not bound and not stamped may still land anywhere, so it is sent away as well. o.Intent is
// called once, right before that.
func (c *Cluster) ReadBack(ctx context.Context, m Member, reserved string, equivalent func(node string) bool, o ReplaceOptions) (Landing, error) {
	l, err := c.Landed(ctx, m, reserved, equivalent)
	if err != nil || l.Good() {
		return l, err
	}
	o.Intent = once(o.Intent)
	_, err = c.ReplacePod(ctx, m, o)
	if errors.Is(err, ErrBudget) { // a budget protects a pod that does its work; this one must not begin
		if err = o.Intent(ctx); err == nil {
			err = c.DeleteByUID(ctx, m, o.Incident, o.GraceSeconds)
		}
	}
	l.Sent = err == nil
	return l, err
}

// once calls f until it has succeeded.
func once(f func(context.Context) error) func(context.Context) error {
	done := f == nil
	return func(ctx context.Context) error {
		if done {
			return nil
		}
		err := f(ctx)
		done = err == nil
		return err
	}
}
