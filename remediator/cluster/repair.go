package cluster

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

type podState int

const (
	podStays podState = iota
	podLeaving
	podGone
)

// restoreFinalizer makes a pod as it was before a fastReplace, unless it is being deleted or gone: those keep none. Under Force a pod may
// be left leaving, which is no undoing.
func (c *Cluster) restoreFinalizer(ctx context.Context, m Member, incident string) (podState, error) {
	op := "put the finalizer back on pod " + m.String()
	for range podTries {
		pod, err := c.getPod(ctx, m.Namespace, m.Pod)
		switch {
		case apierrors.IsNotFound(err) || err == nil && string(pod.UID) != m.PodUID:
			return podGone, nil
		case err != nil:
			return podStays, wrap(op, err)
		case pod.DeletionTimestamp != nil:
			return podLeaving, nil
		}
		if _, marked := pod.Annotations[AnnotationFastReplace]; !marked {
			return podStays, nil
		}
		finalizers := pod.Finalizers
		if !slices.Contains(finalizers, jobTrackingFinalizer) {
			finalizers = append(slices.Clone(finalizers), jobTrackingFinalizer)
		}
		_, err = c.patchFinalizers(ctx, pod, finalizers, nil, podWrite("patch", "put finalizer back", incident, pod))
		switch {
		case err == nil:
			return podStays, nil
		case apierrors.IsNotFound(err):
			return podGone, nil
		case apierrors.IsConflict(err), apierrors.IsInvalid(err), apierrors.IsForbidden(err) && deletedMeanwhile(err):
			continue // it changed, or began to be deleted; look again
		}
		return podStays, wrap(op, err)
	}
	return podStays, wrap(op, ErrConflict)
}

// The API server refuses new finalizers on an object that is being deleted.
func deletedMeanwhile(err error) bool { return apierrors.HasStatusCause(err, "FieldValueForbidden") }

// RepairFinalizers puts the Job controller's finalizer back on pods from which an earlier leader had lifted it without getting to their
// eviction. The leader calls it once, after WaitForSync and before it goes on with incidents, each of which then decides anew. It
// returns the pods it repaired.
func (c *Cluster) RepairFinalizers(ctx context.Context) (repaired []string, err error) {
	var errs []error
	for _, o := range c.pods.GetStore().List() {
		pod, ok := o.(*corev1.Pod)
		if !ok || pod.DeletionTimestamp != nil {
			continue
		}
		incident, marked := pod.Annotations[AnnotationFastReplace]
		if !marked {
			continue
		}
		m := Member{Namespace: pod.Namespace, Pod: pod.Name, PodUID: string(pod.UID)}
		state, err := c.restoreFinalizer(ctx, m, incident)
		if err != nil {
			errs = append(errs, err)
		} else if state == podStays {
			repaired = append(repaired, m.String())
		}
	}
	return repaired, errors.Join(errs...)
}
