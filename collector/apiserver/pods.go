package apiserver

import (
	"context"
	"slices"

	"github.com/pitcrew/pitcrew/event"
)

// Pod is who a pod of the node is.
type Pod struct {
	Namespace, Name, UID string
	Job                  *event.Job // nil: it belongs to nothing that runs to completion
}

type podList struct {
	Items []struct {
		Metadata metadata `json:"metadata"`
	} `json:"items"`
}

type metadata struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	UID       string            `json:"uid"`
	Labels    map[string]string `json:"labels"`
	Owners    []struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
		UID        string `json:"uid"`
		Controller bool   `json:"controller"`
	} `json:"ownerReferences"`
}

// Pods lists the node's pods by their metadata alone.
func (c *Client) Pods(ctx context.Context) ([]Pod, error) {
	if c == nil {
		return nil, nil
	}
	var l podList
	if err := c.list(ctx, "/api/v1/pods", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", &l); err != nil {
		return nil, err
	}
	out := make([]Pod, 0, min(len(l.Items), maxItems))
	for i := range l.Items {
		if len(out) == maxItems {
			break
		}
		m := &l.Items[i].Metadata
		out = append(out, Pod{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Job: m.job()})
	}
	return out, nil
}

// labelledJobs are labels by which a pod names the workload above its owner. The first that is there is taken.
var labelledJobs = []struct{ label, uid, apiVersion, kind string }{
	{"jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid", "jobset.x-k8s.io/v1alpha2", "JobSet"},
	{"leaderworkerset.sigs.k8s.io/name", "", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"},
	{"ray.io/cluster", "", "ray.io/v1", "RayCluster"},
}

// notJobs own pods that are no part of a job: what they run has no end.
var notJobs = []string{"ReplicaSet", "DaemonSet", "StatefulSet", "ReplicationController", "Node"}

// job is the workload that the pod belongs to: by a label of those that own Jobs in their turn, else its controller, whatever kind that is
// (a batch Job, Kubeflow's PyTorchJob and MPIJob, Volcano's Job), but those that serve.
func (m *metadata) job() *event.Job {
	for _, k := range labelledJobs {
		if name := m.Labels[k.label]; name != "" {
			return &event.Job{APIVersion: k.apiVersion, Kind: k.kind, Namespace: m.Namespace, Name: name, UID: m.Labels[k.uid]}
		}
	}
	for _, o := range m.Owners {
		if o.Controller && o.Name != "" && !slices.Contains(notJobs, o.Kind) {
			return &event.Job{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: m.Namespace, Name: o.Name, UID: o.UID}
		}
	}
	return nil
}
