package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StuckError says which pods of a suspended gang did not end in time. It is an ErrStuck.
type StuckError struct {
	Pods   []Member // still there, by index
	Within time.Duration
}

func (e *StuckError) Error() string {
	var pods []string
	for i, m := range e.Pods {
		if i == 5 {
			pods = append(pods, fmt.Sprintf("and %d more", len(e.Pods)-i))
			break
		}
		pods = append(pods, fmt.Sprintf("%s on node %s", m, m.Node))
	}
	return fmt.Sprintf("%v after %v: %s; look for processes in uninterruptible sleep there, or power the node off", ErrStuck, e.Within, strings.Join(pods, ", "))
}

// Is makes errors.Is(err, ErrStuck) hold.
func (e *StuckError) Is(target error) bool { return target == ErrStuck }

// lookEvery is how often a suspension asks May and its deadline while nothing changes.
const lookEvery = time.Second

// suspendAndResume lets the Job controller take all pods away, which counts as no failure, and make them anew. The controller deletes
// them with the grace of their own, which may be long, so it is shortened; not before the controller has let go of a pod, or it would
// count our deletion as a failure. If this is left halfway, the gang stays suspended until RecreateGang or Unsuspend is called.
func (c *Cluster) suspendAndResume(ctx context.Context, g Gang, o RecreateOptions, done *Recreation) error {
	since, err := c.suspend(ctx, g, o.Incident)
	if err != nil {
		return err
	}
	if err := c.awaitEmpty(ctx, g, o, since.Add(o.Within), done); err != nil {
		return fmt.Errorf("end its pods; it stays suspended until this is repeated or given up: %w", err)
	}
	return c.Unsuspend(ctx, g, o.Incident)
}

// awaitEmpty ends a suspended gang's pods and returns when none is left. It looks at each change, and at least once.
func (c *Cluster) awaitEmpty(ctx context.Context, g Gang, o RecreateOptions, deadline time.Time, done *Recreation) error {
	woken, cancel := c.changes.subscribe(g.Job.UID)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := o.May(); err != nil {
			return err
		}
		left, err := c.endPods(ctx, g, o, done)
		switch {
		case err != nil && !Retriable(err):
			return err
		case err != nil:
			c.log.Warn("end the pods of a suspended gang", "job", g.Job.Name, "error", err)
		case len(left) == 0:
			return nil
		}
		if !c.opts.Now().Before(deadline) {
			return errors.Join(&StuckError{Pods: left, Within: o.Within}, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-woken:
		case <-tick.C:
		}
	}
}

// endPods shortens the grace of the pods that the controller has let go of, and returns those that are still there.
func (c *Cluster) endPods(ctx context.Context, g Gang, o RecreateOptions, done *Recreation) (left []Member, err error) {
	now, err := c.Gang(ctx, g.Job)
	if err != nil {
		return nil, err
	}
	for _, m := range append(now.Members, now.Leaving...) {
		if m.terminal() && !m.Deleting {
			continue // it had ended before
		}
		left = append(left, m)
		if _, told := done.Outcomes[m.PodUID]; told || !m.Deleting || m.tracked {
			continue
		}
		grace := o.GraceSeconds
		if o.Force(m) {
			grace = 0
		}
		if m.grace > grace || o.Force(m) {
			if err := c.DeleteByUID(ctx, m, o.Incident, grace); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrStale) {
				return left, err
			}
		}
		done.Outcomes[m.PodUID] = Evicted
	}
	return left, nil
}

// suspend suspends the top object and notes on it, in the same PATCH, for which incident and when. Repeating it changes nothing and returns
// the time of the first. ErrSuspended: someone else suspended it.
func (c *Cluster) suspend(ctx context.Context, g Gang, incident string) (since time.Time, err error) {
	err = c.patchTop(ctx, g, incident, "suspend", func(t top) (topPatch, error) {
		switch by := t.annotations[AnnotationSuspended]; {
		case t.suspended && by == incident:
			if since, err = time.Parse(time.RFC3339, t.annotations[AnnotationSuspendedAt]); err != nil {
				since = c.opts.Now()
			}
			return topPatch{}, nil
		case t.suspended && by == "":
			return topPatch{}, fmt.Errorf("%w: set spec.suspend to false to let Pitcrew restart it", ErrSuspended)
		case t.suspended:
			return topPatch{}, fmt.Errorf("%w: by incident %s", ErrSuspended, by)
		}
		since = c.opts.Now()
		at := since.UTC().Format(time.RFC3339)
		return topPatch{needed: true, suspend: yes(true), annotations: map[string]*string{AnnotationSuspended: &incident, AnnotationSuspendedAt: &at}}, nil
	})
	return since, err
}

// Unsuspend lifts an incident's suspension of a gang and its mark. One that someone else made stays, as does a gang that is gone or was
// made anew under the same name: then there is nothing to lift, which is no error. Repeating it changes nothing.
func (c *Cluster) Unsuspend(ctx context.Context, g Gang, incident string) error {
	err := c.patchTop(ctx, g, incident, "resume", func(t top) (topPatch, error) {
		if by, ok := t.annotations[AnnotationSuspended]; !ok || by != incident {
			return topPatch{}, nil
		}
		p := topPatch{needed: true, annotations: map[string]*string{AnnotationSuspended: nil, AnnotationSuspendedAt: nil}}
		if t.suspended {
			p.suspend = yes(false)
		}
		return p, nil
	})
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrStale) {
		return nil
	}
	return err
}

// top is what a suspension looks at on a Job or JobSet; topPatch is what changes there.
type (
	top struct {
		uid, version string
		annotations  map[string]string
		suspended    bool
	}
	topPatch struct {
		needed      bool
		suspend     *bool
		annotations map[string]*string
	}
)

// topTries bounds how often an object that changes under us is read again.
const topTries = 6

// patchTop reads the top object live and applies what change wants to that very version. A JobSet passes a suspension on to its Jobs.
func (c *Cluster) patchTop(ctx context.Context, g Gang, incident, what string, change func(top) (topPatch, error)) error {
	op := fmt.Sprintf("%s %s %s/%s", what, g.Job.Kind, g.Job.Namespace, g.Job.Name)
	for range topTries {
		t, err := c.readTop(ctx, g)
		if err != nil {
			return wrap(op, err)
		}
		if t.uid != g.Job.UID {
			return staleUID(op, g.Job.UID, t.uid)
		}
		p, err := change(t)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if !p.needed {
			return nil
		}
		body := map[string]any{"metadata": map[string]any{"uid": t.uid, "resourceVersion": t.version, "annotations": p.annotations}}
		if p.suspend != nil {
			body["spec"] = map[string]any{"suspend": *p.suspend}
		}
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		w := Write{Verb: "patch", Kind: g.Job.Kind, Namespace: g.Job.Namespace, Name: g.Job.Name, UID: t.uid, Incident: incident, What: what}
		err = c.write(ctx, w, func(ctx context.Context) error {
			opts := metav1.PatchOptions{FieldManager: fieldManager}
			if g.Kind == KindJobSet {
				_, err := c.dyn.Resource(jobsetResource).Namespace(g.Job.Namespace).Patch(ctx, g.Job.Name, types.MergePatchType, raw, opts)
				return err
			}
			_, err := c.kube.BatchV1().Jobs(g.Job.Namespace).Patch(ctx, g.Job.Name, types.MergePatchType, raw, opts)
			return err
		})
		if !apierrors.IsConflict(err) {
			return wrap(op, err)
		}
	}
	return fmt.Errorf("%s: %w", op, ErrConflict)
}

func (c *Cluster) readTop(ctx context.Context, g Gang) (top, error) {
	return read(ctx, c, func(ctx context.Context) (top, error) {
		if g.Kind == KindJobSet {
			u, err := c.dyn.Resource(jobsetResource).Namespace(g.Job.Namespace).Get(ctx, g.Job.Name, metav1.GetOptions{})
			if err != nil {
				return top{}, err
			}
			spec, _ := u.Object["spec"].(map[string]any)
			suspended, _ := spec["suspend"].(bool)
			return top{string(u.GetUID()), u.GetResourceVersion(), u.GetAnnotations(), suspended}, nil
		}
		j, err := c.kube.BatchV1().Jobs(g.Job.Namespace).Get(ctx, g.Job.Name, metav1.GetOptions{})
		if err != nil {
			return top{}, err
		}
		return top{string(j.UID), j.ResourceVersion, j.Annotations, j.Spec.Suspend != nil && *j.Spec.Suspend}, nil
	})
}
