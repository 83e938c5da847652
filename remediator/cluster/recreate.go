package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
// only the queue may suspend it.
func (c *Cluster) RecreateGang(ctx context.Context, g Gang, o RecreateOptions) (Recreation, error) {
	op := fmt.Sprintf("recreate %s %s/%s", g.Job.Kind, g.Job.Namespace, g.Job.Name)
	if o.GraceSeconds == 0 {
		o.GraceSeconds = 1
	}
	if o.Force == nil {
		o.Force = func(Member) bool { return false }
	}
	done := Recreation{Way: g.way(o), Outcomes: map[string]Outcome{}, Backoff: g.backoff(c.opts.Now())}
	if done.Way == BySuspend && g.Queued {
		return done, fmt.Errorf("%s: %w: Kueue admits it and would undo a suspension; allow fastReplace", op, ErrUnsupported)
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

// replaceAll makes the pods go at once; each of them may fail alone.
func (c *Cluster) replaceAll(ctx context.Context, pods []Member, o RecreateOptions, done *Recreation) error {
	var wait sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, m := range pods {
		wait.Go(func() {
			outcome, err := c.ReplacePod(ctx, m, ReplaceOptions{Incident: o.Incident, FastReplace: true, GraceSeconds: o.GraceSeconds, Force: o.Force(m)})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			done.Outcomes[m.PodUID] = outcome
		})
	}
	wait.Wait()
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

// suspendAndResume lets the Job controller take all pods away, which counts as no failure, and make them anew. The controller deletes
// them with the grace of their own, which may be long, so it is shortened; not before the controller has let go of a pod, or it would
// count our deletion as a failure. When this is left halfway, the gang stays suspended until RecreateGang is called again.
func (c *Cluster) suspendAndResume(ctx context.Context, g Gang, o RecreateOptions, done *Recreation) error {
	if err := c.setSuspend(ctx, g, o.Incident, true); err != nil {
		return err
	}
	err := c.awaitGang(ctx, g, func(now Gang) (bool, error) {
		left := false
		for _, m := range append(now.Members, now.Leaving...) {
			if m.terminal() && !m.Deleting {
				continue // it had ended before
			}
			left = true
			if _, told := done.Outcomes[m.PodUID]; told || !m.Deleting || m.tracked {
				continue
			}
			grace := o.GraceSeconds
			if o.Force(m) {
				grace = 0
			}
			if m.grace > grace || o.Force(m) {
				if err := c.DeleteByUID(ctx, m, o.Incident, grace); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrStale) {
					return false, err
				}
			}
			done.Outcomes[m.PodUID] = Evicted
		}
		return !left, nil
	})
	if err != nil {
		return fmt.Errorf("end its pods; it is suspended and has to be resumed: %w", err)
	}
	return c.setSuspend(ctx, g, o.Incident, false)
}

// setSuspend suspends or resumes the top object; a JobSet passes it on to its Jobs.
func (c *Cluster) setSuspend(ctx context.Context, g Gang, incident string, suspend bool) error {
	what := map[bool]string{true: "suspend", false: "resume"}[suspend]
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": g.Job.UID}, "spec": map[string]any{"suspend": suspend}})
	if err != nil {
		return err
	}
	w := Write{Verb: "patch", Kind: g.Job.Kind, Namespace: g.Job.Namespace, Name: g.Job.Name, UID: g.Job.UID, Incident: incident, What: what}
	err = c.write(ctx, w, func(ctx context.Context) error {
		opts := metav1.PatchOptions{FieldManager: fieldManager}
		if g.Kind == KindJobSet {
			_, err := c.dyn.Resource(jobsetResource).Namespace(g.Job.Namespace).Patch(ctx, g.Job.Name, types.MergePatchType, body, opts)
			return err
		}
		_, err := c.kube.BatchV1().Jobs(g.Job.Namespace).Patch(ctx, g.Job.Name, types.MergePatchType, body, opts)
		return err
	})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("%s: %w: %w", what, ErrStale, err) // the only precondition is the UID
	}
	return wrap(what, err)
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
