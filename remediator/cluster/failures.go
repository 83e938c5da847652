package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobsetv1alpha2 "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// leaver is a pod that is to go.
type leaver struct {
	*corev1.Pod
	forced bool // deleted and not evicted, so that the API server does not mark it as disrupted
}

func (l leaver) disrupted() bool {
	return !l.forced || slices.ContainsFunc(l.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

// outlives asks whether the Jobs of these pods go on when the pods are evicted, or deleted by force. The Job controller counts every tracked pod that is deleted
// before it succeeded as a failure of the Job, whoever deleted it, unless the Job's podFailurePolicy ignores disruptions (all of this seen
// on the real controller, see failures_test.go). FastReplace alone counts none. ErrFails: one of them would end. A Job of a JobSet that has restarts left
// may end, since the JobSet makes it anew.
func (c *Cluster) outlives(ctx context.Context, pods []leaver) error {
	mine := map[string][]leaver{} // by the Job's UID
	owners := map[string]metav1.OwnerReference{}
	for _, p := range pods {
		if ref := metav1.GetControllerOf(p.Pod); ref != nil && ref.Kind == "Job" && p.DeletionTimestamp == nil && slices.Contains(p.Finalizers, jobTrackingFinalizer) {
			mine[string(ref.UID)] = append(mine[string(ref.UID)], p)
			owners[string(ref.UID)] = *ref
		}
	}
	for uid, gone := range mine {
		namespace, name := gone[0].Namespace, owners[uid].Name
		all, err := read(ctx, c, func(ctx context.Context) (*corev1.PodList, error) { // before the Job: a failure is seen twice rather than never
			return c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.ControllerUidLabel + "=" + uid})
		})
		if err != nil {
			return wrap("ask which pods of Job "+namespace+"/"+name+" have failed", err)
		}
		j, err := read(ctx, c, func(ctx context.Context) (*batchv1.Job, error) {
			return c.kube.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
		})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return wrap("ask whether Job "+namespace+"/"+name+" outlives an eviction", err)
		case string(j.UID) != uid:
			continue
		}
		why := endedBy(j, gone, failures(j, all.Items, gone))
		if why == "" {
			continue
		}
		if again, err := c.madeAnew(ctx, j); again || err != nil {
			return err
		}
		return fmt.Errorf("%w: Job %s/%s: %s", ErrFails, namespace, name, why)
	}
	return nil
}

// failures is how many failures the controller has counted, or will of pods that have ended or are going already. The watch may not have
// seen the last eviction yet, so they are read live.
func failures(j *batchv1.Job, all []corev1.Pod, without []leaver) int {
	n, known := int(j.Status.Failed), map[string]bool{}
	if u := j.Status.UncountedTerminatedPods; u != nil {
		n += len(u.Failed)
		for _, uid := range append(slices.Clone(u.Failed), u.Succeeded...) {
			known[string(uid)] = true
		}
	}
	if j.Spec.PodFailurePolicy != nil { // some of them may be ignored
		return n
	}
	for _, p := range without {
		known[string(p.UID)] = true
	}
	for _, p := range all {
		if !known[string(p.UID)] && slices.Contains(p.Finalizers, jobTrackingFinalizer) &&
			(p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded) {
			n++
		}
	}
	return n
}

// defaultBackoffLimit is the API's.
const defaultBackoffLimit = 6

// endedBy says why a Job would end, or one of its indexes for good, if these pods were evicted after so many failures; empty: it goes on.
func endedBy(j *batchv1.Job, pods []leaver, failed int) string {
	added := 0
	for _, p := range pods {
		switch disruption(j.Spec.PodFailurePolicy, p.disrupted()) {
		case batchv1.PodFailurePolicyActionIgnore:
			continue
		case batchv1.PodFailurePolicyActionFailJob:
			return "its podFailurePolicy ends it (FailJob) when a pod is evicted"
		case batchv1.PodFailurePolicyActionFailIndex:
			return "its podFailurePolicy gives an index up (FailIndex) when its pod is evicted"
		}
		added++
		before, _ := strconv.Atoi(p.Annotations[batchv1.JobIndexFailureCountAnnotation])
		if limit := j.Spec.BackoffLimitPerIndex; limit != nil && before >= int(*limit) {
			return fmt.Sprintf("an eviction counts as a failure, and the index of pod %s has used up its backoffLimitPerIndex of %d", p.Name, *limit)
		}
	}
	if added == 0 {
		return ""
	}
	limit := defaultBackoffLimit
	if j.Spec.BackoffLimit != nil {
		limit = int(*j.Spec.BackoffLimit)
	}
	if failed+added > limit {
		return fmt.Sprintf("an eviction counts as a failure; it has %d, %d would be added, and its backoffLimit is %d", failed, added, limit)
	}
	return ""
}

// killed are the exit codes of a pod that is told to go: of a process that SIGTERM or SIGKILL ends, and of torchrun and the launcher, which end with 1 on
// SIGTERM. Another program's own code is not known before.
var killed = []int32{143, 137, 1}

// disruption is what a policy does to a pod that goes, marked as disrupted or not, by its first rule that matches. Of rules about exit codes one that gives up counts
// if it could match.
func disruption(p *batchv1.PodFailurePolicy, marked bool) batchv1.PodFailurePolicyAction {
	if p == nil {
		return batchv1.PodFailurePolicyActionCount
	}
	for _, r := range p.Rules {
		if marked && slices.ContainsFunc(r.OnPodConditions, func(c batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return c.Type == corev1.DisruptionTarget && (c.Status == corev1.ConditionTrue || c.Status == "")
		}) {
			return r.Action
		}
		codes := r.OnExitCodes
		if codes == nil || r.Action == batchv1.PodFailurePolicyActionIgnore {
			continue
		}
		for _, code := range killed {
			if slices.Contains(codes.Values, code) == (codes.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
				return r.Action
			}
		}
	}
	return batchv1.PodFailurePolicyActionCount
}

// madeAnew reports whether a JobSet makes a Job that ends anew.
func (c *Cluster) madeAnew(ctx context.Context, j *batchv1.Job) (bool, error) {
	ref := metav1.GetControllerOf(j)
	if ref == nil || ref.Kind != "JobSet" {
		return false, nil
	}
	set, err := c.jobset(ctx, j.Namespace, ref.Name, string(ref.UID))
	if err != nil {
		return false, err
	}
	policy := set.Spec.FailurePolicy
	return policy != nil && set.Status.Restarts < policy.MaxRestarts && !slices.ContainsFunc(policy.Rules, func(r jobsetv1alpha2.FailurePolicyRule) bool {
		return r.Action == jobsetv1alpha2.FailJobSet
	}), nil
}
