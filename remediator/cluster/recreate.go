package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Way is how a whole gang was made to begin anew.
type Way string

// The ways, with what was measured from the call to the last replacement pod Running on two cores (grace 1 s).
const (
	ByFastReplace Way = "fast-replace" // every pod by ReplacePod with FastReplace: about 1.2 s, no failure counted
	BySuspend     Way = "suspend"      // suspended until every pod has gone, then resumed: no failure counted
	ByRestart     Way = "restart"      // one eviction fails a Job of the JobSet, which then makes all of them anew: 2.2 s, one restart counted
)

// RecreateOptions say how a gang is to begin anew.
type RecreateOptions struct {
	Incident     string
	FastReplace  bool                             // as the policy allows it
	GraceSeconds int64                            // default 1
	Force        func(Member) bool                // pods on lost nodes, which no kubelet will end
	Intent       func(context.Context, Way) error // called once, before anything is changed
	Within       time.Duration                    // bounds a suspension, counted from its beginning also after a crash; default 5 min
	May          func() error                     // asked before each pod and every second of a wait; its error stops the recreation
}

func (o *RecreateOptions) defaults() {
	if o.GraceSeconds == 0 {
		o.GraceSeconds = 1
	}
	if o.Force == nil {
		o.Force = func(Member) bool { return false }
	}
	if o.Within == 0 {
		o.Within = 5 * time.Minute
	}
	if o.May == nil {
		o.May = func() error { return nil }
	}
}

// Recreation is what was done to a gang.
type Recreation struct {
	Way      Way
	Outcomes map[string]Outcome // by pod UID
	// Backoff is how long the Job controller will wait before it replaces pods that had failed before anybody looked: 10 s, doubled by
	// each failure since the last success, at most 10 minutes, from the end of the last one.
	Backoff time.Duration
}

// RecreateGang makes every pod of a gang go, so that all are made anew. It may be repeated: it goes on where it was left.
//
// Where FastReplace is allowed and every pod runs, each is replaced so. Otherwise a JobSet whose Jobs fail at their first lost pod and which
// has restarts left is made to restart by evicting one; everything else is suspended and resumed. ErrUnsupported: a queue admits it, so
// only the queue may suspend it. ErrSuspended: someone else suspended it. ErrHeld: a pod is on a node that is on hold; nothing was changed.
// ErrStuck, as a *StuckError: pods did not end in time, and the gang is still suspended; repeat the call once they have gone, or Unsuspend.
func (c *Cluster) RecreateGang(ctx context.Context, g Gang, o RecreateOptions) (Recreation, error) {
	op := fmt.Sprintf("recreate %s %s/%s", g.Job.Kind, g.Job.Namespace, g.Job.Name)
	o.defaults()
	done := Recreation{Way: g.way(o), Outcomes: map[string]Outcome{}, Backoff: g.backoff(c.opts.Now())}
	if done.Way == BySuspend && g.Queued {
		return done, fmt.Errorf("%s: %w: Kueue admits it and would undo a suspension; allow fastReplace", op, ErrUnsupported)
	}
	if err := c.untouchable(g.Members); err != nil {
		return done, fmt.Errorf("%s: %w", op, err)
	}
	if err := o.May(); err != nil {
		return done, fmt.Errorf("%s: %w", op, err)
	}
	if o.Intent != nil {
		if err := o.Intent(ctx, done.Way); err != nil {
			return done, fmt.Errorf("%s: record the intent: %w", op, err)
		}
	}
	var err error
	switch done.Way {
	case ByFastReplace:
		err = c.replaceAll(ctx, g.Members, o, &done)
	case ByRestart:
		err = c.restartJobSet(ctx, g, o, &done)
	case BySuspend:
		err = c.suspendAndResume(ctx, g, o, &done)
	}
	if err != nil {
		return done, fmt.Errorf("%s: %w", op, err)
	}
	return done, nil
}

func (g Gang) way(o RecreateOptions) Way {
	running := len(g.Members) > 0 && !g.Suspended
	for _, m := range g.Members {
		running = running && !m.terminal()
	}
	if o.FastReplace && running {
		return ByFastReplace
	}
	if g.Kind == KindJobSet && g.Restarts < g.RestartsMax && len(g.jobs) > 0 && !g.Suspended {
		for _, j := range g.jobs {
			if j.Spec.BackoffLimit == nil || *j.Spec.BackoffLimit > 0 {
				return BySuspend
			}
		}
		return ByRestart
	}
	return BySuspend
}

// backoff reckons as the Job controller does, from what can be seen of it: the pods that failed and are still there.
func (g Gang) backoff(now time.Time) time.Duration {
	var longest time.Duration
	for _, j := range g.jobs {
		var failed int
		var last time.Time
		for _, m := range append(append([]Member{}, g.Members...), g.Leaving...) {
			if m.OwnerUID == string(j.UID) && m.Phase == "Failed" {
				if failed++; m.Ended.After(last) {
					last = m.Ended
				}
			}
		}
		if failed = max(failed, int(j.Status.Failed)); failed == 0 || last.IsZero() {
			continue
		}
		wait := 10 * time.Minute
		if failed <= 6 { // 10 s · 2^6 is more than the limit
			wait = 10 * time.Second << (failed - 1)
		}
		longest = max(longest, last.Add(wait).Sub(now))
	}
	return longest
}

// untouchable is ErrHeld if one of the pods is on a node that is on hold.
func (c *Cluster) untouchable(pods []Member) error {
	for _, m := range pods {
		if n := c.views.get(m.Node); n != nil && n.Held != "" && !m.terminal() {
			return fmt.Errorf("pod %s: %w: node %s: %s", m, ErrHeld, n.Name, n.Held)
		}
	}
	return nil
}

// atOnce bounds how many pods are asked about or replaced at the same time.
const atOnce = 16

// replaceAll makes the pods go; each of them may fail alone.
func (c *Cluster) replaceAll(ctx context.Context, pods []Member, o RecreateOptions, done *Recreation) error {
	var running errgroup.Group
	running.SetLimit(atOnce)
	var mu sync.Mutex
	var errs []error
	for _, m := range pods {
		running.Go(func() error {
			var outcome Outcome
			err := cmp.Or(ctx.Err(), o.May())
			if err == nil {
				outcome, err = c.ReplacePod(ctx, m, ReplaceOptions{Incident: o.Incident, FastReplace: true, GraceSeconds: o.GraceSeconds, Force: o.Force(m)})
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return nil
			}
			done.Outcomes[m.PodUID] = outcome
			return nil
		})
	}
	_ = running.Wait()
	return errors.Join(errs...)
}

// restartJobSet evicts the first pod that still stands. The JobSet's controller does the rest, also when another pod fails meanwhile.
func (c *Cluster) restartJobSet(ctx context.Context, g Gang, o RecreateOptions, done *Recreation) error {
	for _, m := range g.Members {
		if m.Deleting || m.terminal() {
			return nil // its Job fails by that, or already has
		}
	}
	if len(g.Members) == 0 {
		return nil
	}
	m := g.Members[0] // any one will do
	outcome, err := c.ReplacePod(ctx, m, ReplaceOptions{Incident: o.Incident, GraceSeconds: o.GraceSeconds, Force: o.Force(m)})
	if errors.Is(err, ErrFinished) {
		return nil
	}
	if err == nil {
		done.Outcomes[m.PodUID] = outcome
	}
	return err
}

// DeleteByUID deletes exactly this pod. A pod that is being deleted gets the shorter of the two graces.
func (c *Cluster) DeleteByUID(ctx context.Context, m Member, incident string, graceSeconds int64) error {
	uid := uidOf(m.PodUID)
	w := Write{Verb: "delete", Kind: "Pod", Namespace: m.Namespace, Name: m.Pod, UID: m.PodUID, Incident: incident, What: "delete"}
	err := c.write(ctx, w, func(ctx context.Context) error {
		return c.kube.CoreV1().Pods(m.Namespace).Delete(ctx, m.Pod, metav1.DeleteOptions{GracePeriodSeconds: &graceSeconds, Preconditions: &metav1.Preconditions{UID: &uid}})
	})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s: %w: %w", m, ErrStale, err)
	}
	return wrap("delete pod "+m.String(), err)
}
