package cluster

import (
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/event"
)

// gangOf512 is a cluster with one Indexed Job of 512 pods, a node each.
func gangOf512(t testing.TB) *Cluster {
	c := still(t)
	indexed := batchv1.IndexedCompletion
	size := int32(512)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: "ml", UID: "job"}, Spec: batchv1.JobSpec{CompletionMode: &indexed, Completions: &size}}
	if err := c.jobs.GetStore().Add(j); err != nil {
		t.Fatal(err)
	}
	for i := range int(size) {
		node := fmt.Sprintf("gpu-node-%04d", i)
		c.set(testNode(node, 8, nil))
		p := testPod(fmt.Sprint("pod-", i), node, 8)
		p.Annotations[completionIndex] = fmt.Sprint(i)
		c.set(p)
	}
	return c
}

func TestTheJobsAtATargetAreThoseOfItsGangs(t *testing.T) {
	c := gangOf512(t)
	yes := true
	set := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "replica", Namespace: "ml", UID: "replica",
		OwnerReferences: []metav1.OwnerReference{{Kind: "JobSet", APIVersion: "jobset.x-k8s.io/v1alpha2", Name: "set", UID: "set", Controller: &yes}}}}
	if err := c.jobs.GetStore().Add(set); err != nil {
		t.Fatal(err)
	}
	member := testPod("member", "gpu-node-0600", 8)
	member.OwnerReferences[0].Name, member.OwnerReferences[0].UID = set.Name, types.UID(set.UID)
	c.set(member)
	for name, at := range map[string]struct {
		target event.Target
		want   []string
	}{
		"a node":                      {event.Target{Node: "gpu-node-0007"}, []string{"job"}},
		"a node of a JobSet":          {event.Target{Node: "gpu-node-0600"}, []string{"replica", "set"}},
		"a pod by its UID":            {event.Target{Node: "gpu-node-0007", PodUID: "pod-8"}, []string{"job"}},
		"a pod by its name":           {event.Target{Namespace: "ml", Pod: "p-member"}, []string{"replica", "set"}},
		"a job":                       {event.Target{Job: &event.Job{Namespace: "ml", Name: "job", UID: "job"}}, []string{"job"}},
		"a job without its UID":       {event.Target{Job: &event.Job{Namespace: "ml", Name: "replica"}}, []string{"replica", "set"}},
		"a JobSet":                    {event.Target{Job: &event.Job{Namespace: "ml", Name: "set", UID: "set"}}, []string{"set"}},
		"a node on which nothing is":  {event.Target{Node: "gpu-node-0999"}, nil},
		"a pod that is not there":     {event.Target{Namespace: "ml", Pod: "gone"}, nil},
		"nothing that can be told of": {event.Target{}, nil},
	} {
		got := c.JobsAt(at.target)
		slices.Sort(got)
		if got = slices.DeleteFunc(slices.Compact(got), func(s string) bool { return s == "" }); !slices.Equal(got, at.want) {
			t.Errorf("%s: %q, want %q", name, got, at.want)
		}
		gangs, err := c.GangsAt(t.Context(), at.target)
		for _, g := range gangs {
			if err != nil || !slices.Contains(got, g.Job.UID) {
				t.Errorf("%s: gang %s is not among %q, %v", name, g.Job.UID, got, err)
			}
		}
	}
}

func BenchmarkJobsAtANodeOfAGangOf512(b *testing.B) {
	c := gangOf512(b)
	b.ReportAllocs()
	for b.Loop() {
		c.JobsAt(event.Target{Node: "gpu-node-0007"})
	}
}

func BenchmarkGangsAtANodeOfAGangOf512(b *testing.B) {
	c := gangOf512(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.GangsAt(b.Context(), event.Target{Node: "gpu-node-0007"}); err != nil {
			b.Fatal(err)
		}
	}
}
