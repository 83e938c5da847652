package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew/pitcrew/event"
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

// Changes wakes at each change of a job, its pods or any node. Call cancel when done.
func (c *Cluster) Changes(jobUID string) (woken <-chan struct{}, cancel func()) {
	job, stop1 := c.changes.subscribe(jobUID)
	nodes, stop2 := c.changes.subscribe(anyNode)
	out, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-job:
			case <-nodes:
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, func() { close(done); stop1(); stop2() }
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
