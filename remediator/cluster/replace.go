package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReplaceOptions say how a pod is to go.
type ReplaceOptions struct {
	Incident string
	// FastReplace lifts the Job controller's finalizer first, so that it makes the replacement at once instead of after its back-off
	// (10 s, doubling), and counts no failure.
	FastReplace  bool
	GraceSeconds int64 // given to the pod to end; 0 means 1, except with Force
	// Force deletes without asking the kubelet, for a node that is lost. Budgets are not asked: the pod is disrupted already.
	Force bool
	// Fenced, with Force, says that the node is known to be off or cut off: it is put out of service, so that volumes are detached.
	Fenced bool
	// Intent is called once, when nothing has been changed yet and nothing stands against it. Its error stops the replacement.
	Intent func(context.Context) error
}

// Outcome is what has become of a pod.
type Outcome string

// Outcomes without an error.
const (
	Evicted Outcome = "evicted" // it is being deleted by us
	Leaving Outcome = "leaving" // it was being deleted already
	Gone    Outcome = "gone"    // it does not exist any more
)

// podTries bounds how often a pod that changes under us is read again within one ReplacePod.
const podTries = 5

// ReplacePod makes a member's pod go, so that its controller makes another. It may be repeated at any time, after any error and by another
// process: each write holds only for the very version of the pod that was read, from the watch or live, so a pod that ended
// meanwhile is not evicted, and of two evictions, one of them late, only one has an effect.
//
// ErrStale: a pod of that name has another UID. ErrFinished: it ended by itself. ErrBudget: a PodDisruptionBudget forbids it. ErrFails: without
// FastReplace its Job would end by it. After these,
// and after every other error that FastReplace can meet, the finalizer is back on the pod; where even that failed, the error says so and
// RepairFinalizers or the next ReplacePod sets it right.
func (c *Cluster) ReplacePod(ctx context.Context, m Member, o ReplaceOptions) (Outcome, error) {
	if o.GraceSeconds == 0 && !o.Force {
		o.GraceSeconds = 1
	}
	r := &replacement{Cluster: c, m: m, o: o, op: "replace pod " + m.String()}
	if err := checkIncident(o.Incident); err != nil {
		return "", fmt.Errorf("%s: %w", r.op, err)
	}
	if o.Force && o.Fenced && m.Node != "" {
		if err := c.Fence(ctx, m.Node, o.Incident); err != nil {
			return "", err
		}
	}
	for n := range podTries {
		outcome, err := r.try(ctx, n > 0)
		if errors.Is(err, errAgain) {
			continue
		}
		return outcome, err
	}
	return "", r.undo(ctx, ErrConflict)
}

// errAgain says that the pod changed between reading and writing.
var errAgain = errors.New("read again")

type replacement struct {
	*Cluster
	m        Member
	o        ReplaceOptions
	op       string
	intended bool
}

// pod reads the member's pod: from the watch at first, where each write that follows names its version, so that an outdated one changes
// nothing. What the watch shows to be gone, ended or another one is read live.
func (r *replacement) pod(ctx context.Context, live bool) (*corev1.Pod, error) {
	if !live && r.o.FastReplace && !r.o.Force {
		p, ok := cached[*corev1.Pod](r.pods, r.m.Namespace+"/"+r.m.Pod)
		if ok && string(p.UID) == r.m.PodUID && p.ResourceVersion != "" && p.DeletionTimestamp == nil && !ended(p) {
			return p, nil
		}
	}
	return r.getPod(ctx, r.m.Namespace, r.m.Pod)
}

// try reads the pod and does the next things to it for as long as it does not change by other hands.
func (r *replacement) try(ctx context.Context, live bool) (Outcome, error) {
	pod, err := r.pod(ctx, live)
	switch {
	case apierrors.IsNotFound(err):
		return Gone, nil
	case err != nil:
		return "", wrap(r.op, err)
	case string(pod.UID) != r.m.PodUID:
		return "", staleUID(r.op, r.m.PodUID, string(pod.UID))
	case pod.DeletionTimestamp != nil && !r.o.Force:
		if pod.Annotations[AnnotationFastReplace] == r.o.Incident {
			return Evicted, nil
		}
		return Leaving, nil
	case ended(pod):
		return "", r.undo(ctx, fmt.Errorf("%w: %s", ErrFinished, pod.Status.Phase))
	}
	if err := r.prepare(ctx, pod); err != nil {
		return "", err
	}
	if r.o.FastReplace && slices.Contains(pod.Finalizers, jobTrackingFinalizer) {
		lifted, err := r.liftFinalizer(ctx, pod)
		switch {
		case apierrors.IsConflict(err):
			return "", errAgain
		case apierrors.IsNotFound(err):
			return Gone, nil
		case err != nil:
			return r.settle(ctx, err)
		}
		if pod = lifted; ended(pod) {
			return "", r.undo(ctx, fmt.Errorf("%w: %s", ErrFinished, pod.Status.Phase))
		}
	}
	return r.remove(ctx, pod)
}

// prepare asks what stands against the replacement and records the intent, once.
func (r *replacement) prepare(ctx context.Context, pod *corev1.Pod) error {
	if r.intended {
		return nil
	}
	if !r.o.FastReplace {
		if err := r.outlives(ctx, []leaver{{pod, r.o.Force}}); err != nil {
			return fmt.Errorf("%s: %w", r.op, err)
		}
	}
	if r.o.FastReplace && !r.o.Force && !r.allowed.has(pod, r.opts.Now()) {
		err := r.dryRun(ctx, pod)
		if apierrors.IsConflict(err) { // nobody was asked about the pod as it is now
			return errAgain
		}
		if err != nil {
			return r.undo(ctx, r.refusal(err))
		}
	}
	if r.o.Intent != nil {
		if err := r.o.Intent(ctx); err != nil {
			return fmt.Errorf("%s: record the intent: %w", r.op, err)
		}
	}
	r.intended = true
	return nil
}

func (r *replacement) remove(ctx context.Context, pod *corev1.Pod) (Outcome, error) {
	var err error
	if r.o.Force {
		err = r.delete(ctx, pod)
	} else {
		err = r.evict(ctx, pod, false)
	}
	switch {
	case err == nil:
		return Evicted, nil
	case apierrors.IsNotFound(err):
		return Gone, nil
	case apierrors.IsConflict(err):
		return "", errAgain
	}
	return r.settle(ctx, r.refusal(err))
}

// settle finds out what a failed write has done after all, also when the caller has given up. A pod that stays gets its finalizer
// back, which changes its version and so disarms an eviction that is still on its way.
func (r *replacement) settle(ctx context.Context, failed error) (Outcome, error) {
	state, err := r.restoreFinalizer(context.WithoutCancel(ctx), r.m, r.o.Incident)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w; and its finalizer %s may still be missing: %w", wrap(r.op, failed), jobTrackingFinalizer, err)
	case state == podGone:
		return Gone, nil
	case state == podLeaving && !r.o.Force:
		return Evicted, nil // the answer was lost, not the request
	}
	return "", wrap(r.op, failed)
}

// undo is settle for a replacement that must not go on.
func (r *replacement) undo(ctx context.Context, why error) error {
	if !r.o.FastReplace {
		return wrap(r.op, why)
	}
	if _, err := r.restoreFinalizer(context.WithoutCancel(ctx), r.m, r.o.Incident); err != nil {
		return fmt.Errorf("%w; and its finalizer %s may still be missing: %w", wrap(r.op, why), jobTrackingFinalizer, err)
	}
	return wrap(r.op, why)
}

// refusal files what the eviction API says under its outcome. Which budget refused stands among the causes alone.
func (r *replacement) refusal(err error) error {
	if cause, ok := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause); ok {
		return fmt.Errorf("%w: namespace %s: %s: %w", ErrBudget, r.m.Namespace, cause.Message, err)
	}
	if strings.Contains(err.Error(), "more than one PodDisruptionBudget") {
		return fmt.Errorf("%w: %w", ErrBudget, err)
	}
	return err
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (c *Cluster) getPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return read(ctx, c, func(ctx context.Context) (*corev1.Pod, error) {
		return c.kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

func podWrite(verb, what, incident string, pod *corev1.Pod) Write {
	return Write{Verb: verb, Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Incident: incident, What: what}
}

// evict asks the eviction API, once: client-go's own retries would ask a second time behind the audit's back.
func (r *replacement) evict(ctx context.Context, pod *corev1.Pod, dryRun bool) error {
	e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, DeleteOptions: &metav1.DeleteOptions{
		GracePeriodSeconds: &r.o.GraceSeconds, Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}}}
	w := podWrite("evict", "evict", r.o.Incident, pod)
	if w.DryRun = dryRun; dryRun {
		e.DeleteOptions.DryRun = []string{metav1.DryRunAll}
	}
	return r.write(ctx, w, func(ctx context.Context) error {
		return r.kube.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
			Body(e).MaxRetries(0).Do(ctx).Error()
	})
}

// dryRun asks the eviction API and changes nothing.
func (r *replacement) dryRun(ctx context.Context, pod *corev1.Pod) error {
	err := r.evict(ctx, pod, true)
	if err == nil {
		r.allowed.grant(pod, r.opts.Now())
	}
	return err
}

func (r *replacement) delete(ctx context.Context, pod *corev1.Pod) error {
	return r.write(ctx, podWrite("delete", "delete without the kubelet", r.o.Incident, pod), func(ctx context.Context) error {
		return r.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64),
			Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	})
}

// liftFinalizer takes the Job controller's finalizer off and notes on the pod, in the same PATCH, for which incident.
func (r *replacement) liftFinalizer(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	keep := slices.DeleteFunc(slices.Clone(pod.Finalizers), func(f string) bool { return f == jobTrackingFinalizer })
	return r.patchFinalizers(ctx, pod, keep, &r.o.Incident, podWrite("patch", "lift finalizer", r.o.Incident, pod))
}

func (c *Cluster) patchFinalizers(ctx context.Context, pod *corev1.Pod, finalizers []string, mark *string, w Write) (*corev1.Pod, error) {
	if finalizers == nil {
		finalizers = []string{}
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion,
		"finalizers": finalizers, "annotations": map[string]*string{AnnotationFastReplace: mark}}})
	if err != nil {
		return nil, err
	}
	var patched *corev1.Pod
	err = c.write(ctx, w, func(ctx context.Context) (err error) {
		patched, err = c.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
		return err
	})
	return patched, err
}
