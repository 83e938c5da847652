package cluster

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/event"
)

// JobsAt lists the UIDs of the Jobs and JobSets that a target touches, as GangsAt finds them, and of those whose gang cannot be restarted. It
// reads the watches only and builds no gang.
func (c *Cluster) JobsAt(t event.Target) []string {
	switch {
	case t.PodUID != "":
		return c.jobsOf(indexed[*corev1.Pod](c.pods, byUID, t.PodUID)...)
	case t.Pod != "":
		if p, ok := cached[*corev1.Pod](c.pods, t.Namespace+"/"+t.Pod); ok {
			return c.jobsOf(p)
		}
		return nil
	case t.Job != nil:
		return c.withOwner([]string{t.Job.UID}, t.Job.Namespace, t.Job.Name)
	case t.Node == "":
		return nil
	}
	return c.jobsOf(indexed[*corev1.Pod](c.pods, byNode, t.Node)...)
}

func (c *Cluster) jobsOf(pods ...*corev1.Pod) (uids []string) {
	for _, p := range pods {
		if ref := metav1.GetControllerOf(p); ref != nil && !slices.Contains(uids, string(ref.UID)) {
			uids = c.withOwner(append(uids, string(ref.UID)), p.Namespace, ref.Name)
		}
	}
	return uids
}

// withOwner adds the UID of a Job that an event names without one, and of the JobSet that owns it.
func (c *Cluster) withOwner(uids []string, namespace, job string) []string {
	j, ok := cached[*batchv1.Job](c.jobs, namespace+"/"+job)
	if !ok {
		return uids
	}
	uids = append(uids, string(j.UID))
	if ref := metav1.GetControllerOf(j); ref != nil {
		uids = append(uids, string(ref.UID))
	}
	return uids
}
