package cluster

import (
	"context"
	"encoding/json"
	"math"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nudge makes the Job controller look at a Job now. It looks at changes of pods once a second only, but at a change of the Job's spec at
// once (measured: the replacement exists 15 ms after the eviction instead of 910 ms), so the Job's backoffLimit is raised by one and put
// back. Between the two, and after a crash between them, the Job would forgive one failure more. It is a help, not a need: what goes wrong
// is logged, and the pod is then replaced a second later.
func (c *Cluster) nudge(ctx context.Context, m Member, incident string) {
	job, err := c.job(ctx, m.Namespace, m.Owner, m.OwnerUID)
	if err != nil || job.Spec.BackoffLimit == nil {
		return
	}
	limit := *job.Spec.BackoffLimit
	other := limit + 1
	if limit == math.MaxInt32 {
		other = limit - 1
	}
	if err := c.swapBackoffLimit(ctx, job, incident, limit, other); err != nil {
		c.log.Info("nudge a Job", "job", m.Owner, "error", err)
		return
	}
	if err := c.swapBackoffLimit(context.WithoutCancel(ctx), job, incident, other, limit); err != nil {
		c.log.Warn("put a Job's backoffLimit back", "job", m.Owner, "is", other, "was", limit, "error", err)
	}
}

// swapBackoffLimit changes it only if the Job is this one and the limit is still the expected one.
func (c *Cluster) swapBackoffLimit(ctx context.Context, job *batchv1.Job, incident string, from, to int32) error {
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	body, err := json.Marshal([]op{{"test", "/metadata/uid", job.UID}, {"test", "/spec/backoffLimit", from}, {"replace", "/spec/backoffLimit", to}})
	if err != nil {
		return err
	}
	w := Write{Verb: "patch", Kind: "Job", Namespace: job.Namespace, Name: job.Name, UID: string(job.UID), Incident: incident, What: "nudge"}
	return wrap("nudge Job "+job.Namespace+"/"+job.Name, c.write(ctx, w, func(ctx context.Context) error {
		_, err := c.kube.BatchV1().Jobs(job.Namespace).Patch(ctx, job.Name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
		return err
	}))
}
