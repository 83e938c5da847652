package cluster_test

import (
	"errors"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// small lets many pods stand on one node.
func small(j *batchv1.Job) {
	j.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
}

func limited(limit int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.BackoffLimit = &limit }
}

func onFailure(rules ...batchv1.PodFailurePolicyRule) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Spec.PodReplacementPolicy, j.Spec.PodFailurePolicy = nil, &batchv1.PodFailurePolicy{Rules: rules}
	}
}

func disrupted(action batchv1.PodFailurePolicyAction) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}
}

func exits(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, codes ...int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: codes}}
}

// What is foretold of an eviction is what the real Job controller then makes of it.
func TestWhetherAJobOutlivesAnEvictionIsForetold(t *testing.T) {
	const ignore, fail, count = batchv1.PodFailurePolicyActionIgnore, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionCount
	const in, notIn = batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	for name, tc := range map[string]struct {
		edit []func(*batchv1.Job)
		ends bool
	}{
		"no failure allowed":               {[]func(*batchv1.Job){limited(0)}, true},
		"one failure allowed":              {[]func(*batchv1.Job){limited(1)}, false},
		"disruptions ignored":              {[]func(*batchv1.Job){limited(0), onFailure(disrupted(ignore))}, false},
		"disruptions counted":              {[]func(*batchv1.Job){limited(0), onFailure(disrupted(count), disrupted(ignore))}, true},
		"disruptions end it":               {[]func(*batchv1.Job){limited(9), onFailure(disrupted(fail))}, true},
		"any but one code ends it first":   {[]func(*batchv1.Job){limited(9), onFailure(exits(fail, notIn, 42), disrupted(ignore))}, true},
		"one code that it has not ends it": {[]func(*batchv1.Job){limited(0), onFailure(exits(fail, in, 42), disrupted(ignore))}, false},
		"no failure of an index allowed":   {[]func(*batchv1.Job){func(j *batchv1.Job) { j.Spec.BackoffLimit, j.Spec.BackoffLimitPerIndex = nil, new(int32) }}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job, g := gang(t, s, c, 2, append(tc.edit, small)...)
			old := g.Members[1]
			if err := c.MayReplace(within(t), g.Members[1:], cluster.RecreateOptions{Incident: "inc-1"}); errors.Is(err, cluster.ErrFails) != tc.ends || err != nil && !tc.ends {
				t.Errorf("foretold: %v", err)
			}
			if err := c.MayReplace(within(t), g.Members[1:], cluster.RecreateOptions{Incident: "inc-1", FastReplace: true}); err != nil {
				t.Errorf("with fastReplace: %v", err)
			}
			if _, err := c.ReplacePod(within(t), old, cluster.ReplaceOptions{Incident: "inc-1"}); errors.Is(err, cluster.ErrFails) != tc.ends || err != nil && !tc.ends {
				t.Errorf("replaced: %v", err)
			}
			if tc.ends {
				intact(t, s, old)
				grace := int64(1)
				if err := s.Client().PolicyV1().Evictions("default").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: old.Pod, Namespace: "default"},
					DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &grace}}); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the Job controller lets go of the pod", func() bool { p := pod(t, s, old); return p == nil || string(p.UID) != old.PodUID })
			over := func() bool {
				now, err := s.Client().BatchV1().Jobs("default").Get(t.Context(), job.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return now.Status.FailedIndexes != nil && *now.Status.FailedIndexes != "" || slices.ContainsFunc(now.Status.Conditions, func(c batchv1.JobCondition) bool {
					return (c.Type == batchv1.JobFailureTarget || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
				})
			}
			if tc.ends {
				eventually(t, "the end of the Job", over)
			} else if over() { // it is judged before its controller lets go of the pod
				t.Error("the Job ended")
			}
		})
	}
}

func TestAJobThatAnEvictionWouldEndIsReplacedOnceItsLimitIsRaised(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	job, g := gang(t, s, c, 2, limited(1), small)
	if err := c.MayReplace(within(t), g.Members, cluster.RecreateOptions{Incident: "inc-1"}); !errors.Is(err, cluster.ErrFails) { // one would do, both would not
		t.Errorf("both: %v", err)
	}
	zero := []byte(`{"spec":{"backoffLimit":0}}`)
	for _, o := range []cluster.ReplaceOptions{{Incident: "inc-1"}, {Incident: "inc-1", Force: true}} {
		if _, err := s.Client().BatchV1().Jobs("default").Patch(t.Context(), job.Name, types.MergePatchType, zero, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReplacePod(within(t), g.Members[0], o); !errors.Is(err, cluster.ErrFails) {
			t.Errorf("%+v: %v", o, err)
		}
		intact(t, s, g.Members[0])
	}
	if n := w.sent("evict", "Pod") + w.sent("delete", "Pod"); n > 0 {
		t.Errorf("%d writes were sent", n)
	}
	if _, err := s.Client().BatchV1().Jobs("default").Patch(t.Context(), job.Name, types.MergePatchType, []byte(`{"spec":{"backoffLimit":1}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err) // a running Job takes it
	}
	if out, err := c.ReplacePod(within(t), g.Members[0], cluster.ReplaceOptions{Incident: "inc-1"}); err != nil || out != cluster.Evicted {
		t.Fatalf("%s, %v", out, err)
	}
	if _, err := c.ReplacePod(within(t), g.Members[1], cluster.ReplaceOptions{Incident: "inc-1"}); !errors.Is(err, cluster.ErrFails) { // counted or not yet
		t.Errorf("the second: %v", err)
	}
}

// A pod of a lost node is deleted and not evicted: the API server does not mark it, and no rule about disruptions matches.
func TestAJobThatIgnoresDisruptionsIsEndedByAPodDeletedByForceAllTheSame(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	_, g := gang(t, s, c, 2, limited(0), onFailure(disrupted(batchv1.PodFailurePolicyActionIgnore)), small)
	force := func(cluster.Member) bool { return true }
	if err := c.MayReplace(within(t), g.Members[1:], cluster.RecreateOptions{Incident: "inc-1", Force: force}); !errors.Is(err, cluster.ErrFails) {
		t.Errorf("foretold: %v", err)
	}
	if _, err := c.ReplacePod(within(t), g.Members[1], cluster.ReplaceOptions{Incident: "inc-1", Force: true}); !errors.Is(err, cluster.ErrFails) {
		t.Errorf("replaced: %v", err)
	}
	intact(t, s, g.Members[1])
}
