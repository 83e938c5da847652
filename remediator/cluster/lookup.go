package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// GangsAt finds the gangs that a target touches, by the most specific part that it names: pod, job, else every gang with a pod on the
// node. What cannot be restarted, or is no gang, is left out. Gangs come in the order of their UIDs.
func (c *Cluster) GangsAt(ctx context.Context, t event.Target) ([]Gang, error) {
	one := func(g Gang, err error) ([]Gang, error) {
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrUnsupported), errors.Is(err, ErrStale):
			return nil, nil
		case err != nil:
			return nil, err
		case g.Finished != "":
			return nil, nil
		}
		return []Gang{g}, nil
	}
	switch {
	case t.PodUID != "":
		return one(c.GangOfPodUID(ctx, t.PodUID))
	case t.Pod != "":
		return one(c.GangOfPod(ctx, t.Namespace, t.Pod))
	case t.Job != nil:
		return one(c.Gang(ctx, *t.Job))
	}
	found := map[string]Gang{}
	for _, p := range indexed[*corev1.Pod](c.pods, byNode, t.Node) {
		if t.Node == "" || ended(p) {
			continue
		}
		gs, err := one(c.gangOf(ctx, p))
		if err != nil {
			return nil, err
		}
		for _, g := range gs {
			found[g.Job.UID] = g
		}
	}
	var out []Gang
	for _, uid := range slices.Sorted(maps.Keys(found)) {
		out = append(out, found[uid])
	}
	return out, nil
}

// Changes is Wakes for callers that any node can help.
func (c *Cluster) Changes(jobUID string) (woken <-chan struct{}, cancel func()) {
	return c.Wakes(jobUID, func(*fleet.Node) bool { return true })
}

// Wakes signals each change of a job and its pods, and each node that became more usable and helps: it is new, or became ready, uncordoned,
// unreserved, free of a taint, a hold or a condition, or has more of a resource free than before. helps is called on the watch's goroutine with
// the node as it is now; it must be fast and must not call Cluster. nil: no node helps. Several changes are one signal. Call cancel when done.
func (c *Cluster) Wakes(jobUID string, helps func(*fleet.Node) bool) (woken <-chan struct{}, cancel func()) {
	woken, stop := c.changes.subscribe(jobUID)
	if helps == nil {
		return woken, stop
	}
	return woken, c.views.onUsable(func(n *fleet.Node) {
		if helps(n) {
			c.changes.notifyOne(jobUID, woken)
		}
	}, stop)
}

// Member is the pod that stands for an index; without a PodUID where there is none now.
func (g Gang) Member(index int) Member {
	for _, m := range g.Members {
		if m.Index == index {
			return m
		}
	}
	return Member{Index: index}
}
