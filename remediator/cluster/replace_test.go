package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/sandbox"
)

const tracking = "batch.kubernetes.io/job-tracking"

var fast = cluster.ReplaceOptions{Incident: "inc-1", FastReplace: true}

// intact fails unless the pod is as if nobody had touched it.
func intact(t *testing.T, s *sandbox.Sandbox, m cluster.Member) {
	t.Helper()
	p := pod(t, s, m)
	if p == nil || string(p.UID) != m.PodUID || p.DeletionTimestamp != nil {
		t.Fatalf("pod %s is gone or going", m)
	}
	if !slices.Contains(p.Finalizers, tracking) {
		t.Error("the finalizer is missing: the Job would not count the pod")
	}
	if _, ok := p.Annotations[cluster.AnnotationFastReplace]; ok {
		t.Error("the mark of the replacement is still there")
	}
}

func TestFastReplaceMakesTheJobReplaceAPodAtOnceAndCountsNoFailure(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	job, g := gang(t, s, c, 2)
	for round := range 2 { // the Job controller's back-off would show in the second at the latest
		old := g.Members[1]
		began := time.Now()
		if out, err := c.ReplacePod(within(t), old, fast); err != nil || out != cluster.Evicted {
			t.Fatalf("round %d: %s, %v", round, out, err)
		}
		m, err := c.AwaitReplacement(within(t), g, 1, cluster.Running, old.PodUID)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("round %d: running after %v", round, time.Since(began).Round(time.Millisecond))
		if m.PodUID == old.PodUID || m.Index != 1 || m.Node == "" || m.OwnerUID != old.OwnerUID {
			t.Fatalf("%+v", m)
		}
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("the replacement waited for the back-off: %v", took)
		}
		if g, err = c.Gang(within(t), job); err != nil {
			t.Fatal(err)
		}
		if out, err := c.ReplacePod(within(t), old, fast); err != nil || (out != cluster.Gone && out != cluster.Evicted) {
			t.Fatalf("repeated: %s, %v", out, err)
		}
	}
	j, err := s.Client().BatchV1().Jobs("default").Get(t.Context(), job.Name, metav1.GetOptions{})
	if err != nil || j.Status.Failed != 0 {
		t.Errorf("%d failures were counted, %v", j.Status.Failed, err)
	}
	if other := pod(t, s, g.Members[0]); other == nil || other.DeletionTimestamp != nil {
		t.Error("the other pod was touched")
	}
}

func TestAStaleUIDIsNeverEvicted(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	_, g := gang(t, s, c, 1)
	stale := g.Members[0]
	stale.PodUID = "11111111-2222-3333-4444-555555555555"
	for _, o := range []cluster.ReplaceOptions{fast, {Incident: "inc-1"}, {Incident: "inc-1", Force: true}} {
		if _, err := c.ReplacePod(within(t), stale, o); !errors.Is(err, cluster.ErrStale) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := c.DeleteByUID(within(t), stale, "inc-1", 0); !errors.Is(err, cluster.ErrStale) {
		t.Error(err)
	}
	intact(t, s, g.Members[0])
	if n := w.sent("evict", "Pod") + w.sent("patch", "Pod"); n > 0 {
		t.Errorf("%d writes were sent", n)
	}
}

// guard forbids any disruption of a gang, and returns when the API server acts by it.
func guard(t *testing.T, s *sandbox.Sandbox, job string) { protect(t, s, job, 100) }

// protect wants so many pods of a gang to stay healthy, and returns when the API server acts by it.
func protect(t *testing.T, s *sandbox.Sandbox, job string, healthy int32) (drop func()) {
	t.Helper()
	least := intstr.FromInt32(healthy) // maxUnavailable would need a scale subresource, which Jobs do not have
	pdbs := s.Client().PolicyV1().PodDisruptionBudgets("default")
	_, err := pdbs.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: job},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gang": job}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	drop = func() { _ = pdbs.Delete(context.Background(), job, metav1.DeleteOptions{}) }
	t.Cleanup(drop)
	eventually(t, "the budget's status", func() bool {
		got, err := pdbs.Get(t.Context(), job, metav1.GetOptions{})
		return err == nil && got.Status.ObservedGeneration >= got.Generation && got.Status.ExpectedPods > 0
	})
	return drop
}

func TestABudgetIsAskedBeforeAnythingIsChanged(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	job, g := gang(t, s, c, 1)
	guard(t, s, job.Name)
	o := fast
	o.Intent = func(context.Context) error { t.Error("the intent was recorded"); return nil }
	if _, err := c.ReplacePod(within(t), g.Members[0], o); !errors.Is(err, cluster.ErrBudget) {
		t.Fatal(err)
	}
	intact(t, s, g.Members[0])
	if n := w.sent("patch", "Pod"); n > 0 {
		t.Errorf("%d patches", n)
	}
	if _, err := c.ReplacePod(within(t), g.Members[0], cluster.ReplaceOptions{Incident: "inc-1"}); !errors.Is(err, cluster.ErrBudget) {
		t.Errorf("without fastReplace: %v", err)
	}
}

func TestAskingWhetherAPodMayBeEvictedChangesNothingAndNamesTheBudget(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	job, g := gang(t, s, c, 2)
	all := cluster.RecreateOptions{Incident: "inc-1", FastReplace: true}
	if err := errors.Join(c.MayReplace(within(t), g.Members[:1], all), c.MayRecreate(within(t), g, all)); err != nil {
		t.Fatal(err)
	}
	guard(t, s, job.Name)
	for what, err := range map[string]error{"a pod": c.MayReplace(within(t), g.Members[:1], all), "a gang": c.MayRecreate(within(t), g, all)} {
		if !errors.Is(err, cluster.ErrBudget) || !strings.Contains(err.Error(), "The disruption budget "+job.Name+" needs 100 healthy pods") {
			t.Errorf("%s: %v", what, err)
		}
	}
	forced, stale := all, g.Members[0]
	forced.Force, stale.PodUID = func(cluster.Member) bool { return true }, "another"
	if err := errors.Join(c.MayReplace(within(t), g.Members[:1], forced), c.MayReplace(within(t), []cluster.Member{stale}, all),
		c.MayRecreate(within(t), g, cluster.RecreateOptions{Incident: "inc-1"})); err != nil {
		t.Errorf("nobody's leave is needed: %v", err)
	}
	for _, m := range g.Members {
		intact(t, s, m)
	}
	if n := w.sent("patch", "Pod"); n > 0 {
		t.Errorf("%d patches", n)
	}
}

// Each dry run passes alone: the budget lets one pod go, whichever it is.
func TestEvictionsUnderOneBudgetAreAddedUpBeforeAnyPodGoes(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	job, g := gang(t, s, c, 3)
	all := cluster.RecreateOptions{Incident: "inc-1", FastReplace: true}
	for healthy, may := range map[int32]int{2: 1, 1: 2, 0: 3} {
		drop := protect(t, s, job.Name, healthy)
		for n := 1; n <= 3; n++ {
			err := c.MayReplace(within(t), g.Members[:n], all)
			if n <= may && err != nil || n > may && !errors.Is(err, cluster.ErrBudget) {
				t.Errorf("%d of 3 pods where %d have to stay: %v", n, healthy, err)
			}
			if want := fmt.Sprintf("the disruption budget %s allows %d more disruptions, and %d are wanted at once", job.Name, may, n); n > may && !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %q", err, want)
			}
		}
		if err := c.MayRecreate(within(t), g, all); (err == nil) != (may == 3) {
			t.Errorf("all 3 pods where %d have to stay: %v", healthy, err)
		}
		drop()
	}
	protect(t, s, job.Name, 2)
	onlyOne := all
	onlyOne.Force = func(m cluster.Member) bool { return m.Index > 0 }
	if err := errors.Join(c.MayReplace(within(t), g.Members, onlyOne), c.MayRecreate(within(t), g, cluster.RecreateOptions{Incident: "inc-1"})); err != nil {
		t.Errorf("one eviction, the others by force, or none at all: %v", err)
	}
	for _, m := range g.Members {
		intact(t, s, m)
	}
	if n := w.sent("patch", "Pod"); n > 0 {
		t.Errorf("%d patches", n)
	}
}

// A budget that came after everybody was asked lets the pods go one after the other, as their replacements become ready.
func TestARecreationThatABudgetRefusesMidwayGoesOnFromThere(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	job, g := gang(t, s, c, 3)
	protect(t, s, job.Name, 2)
	rest, refused := g, 0
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		_, err := c.RecreateGang(within(t), rest, cluster.RecreateOptions{Incident: "inc-1", FastReplace: true})
		if err == nil {
			break
		}
		if refused++; !errors.Is(err, cluster.ErrBudget) || time.Now().After(end) {
			t.Fatalf("after %d refusals: %v", refused, err)
		}
		rest.Members = nil
		for _, m := range g.Members {
			if p := pod(t, s, m); p != nil && string(p.UID) == m.PodUID && p.DeletionTimestamp == nil {
				intact(t, s, m) // with its finalizer
				rest.Members = append(rest.Members, m)
			}
		}
	}
	if n := w.accepted("evict", "Pod"); n != 3 || refused == 0 {
		t.Errorf("%d evictions, %d refusals", n, refused)
	}
	var before []string
	for _, m := range g.Members {
		before = append(before, m.PodUID)
	}
	whole(t, c, job, before...)
	if j, err := s.Client().BatchV1().Jobs("default").Get(t.Context(), job.Name, metav1.GetOptions{}); err != nil || j.Status.Failed > 0 {
		t.Errorf("%v; the Job counts %d failures", err, j.Status.Failed)
	}
}

func TestTheFinalizerComesBackWhenABudgetForbidsTheEvictionAfterAll(t *testing.T) {
	s := kube(t)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	job, g := gang(t, s, c, 1)
	o := fast
	o.Intent = func(context.Context) error { guard(t, s, job.Name); return nil } // after the dry run
	if _, err := c.ReplacePod(within(t), g.Members[0], o); !errors.Is(err, cluster.ErrBudget) {
		t.Fatal(err)
	}
	if n := w.accepted("patch", "Pod"); n != 2 {
		t.Errorf("%d patches: the finalizer was never lifted, or never put back", n)
	}
	intact(t, s, g.Members[0])
}

func TestAnIntentThatCannotBeRecordedStopsTheReplacement(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	_, g := gang(t, s, c, 1)
	o := fast
	o.Intent = func(context.Context) error { return errors.New("no store") }
	if _, err := c.ReplacePod(within(t), g.Members[0], o); err == nil || !strings.Contains(err.Error(), "no store") {
		t.Fatal(err)
	}
	intact(t, s, g.Members[0])
}

func TestTheFinalizerComesBackAfterACrashBetweenLiftingItAndTheEviction(t *testing.T) {
	s := kube(t)
	cfg := asRemediator(s)
	var dead atomic.Bool
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if dead.Load() {
				return nil, errors.New("the process is dead")
			}
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") {
				defer dead.Store(true)
			}
			return next.RoundTrip(r)
		})
	})
	c := start(t, cfg, cluster.Options{})
	_, g := gang(t, s, c, 1)
	m := g.Members[0]
	if _, err := c.ReplacePod(within(t), m, fast); err == nil || !strings.Contains(err.Error(), "may still be missing") {
		t.Fatalf("%v: it does not say that the finalizer is missing", err)
	}
	if p := pod(t, s, m); slices.Contains(p.Finalizers, tracking) || p.Annotations[cluster.AnnotationFastReplace] != "inc-1" {
		t.Fatalf("the test did not get between the two: %v %v", p.Finalizers, p.Annotations)
	}
	next := start(t, asRemediator(s), cluster.Options{})
	repaired, err := next.RepairFinalizers(within(t))
	if err != nil || len(repaired) != 1 || repaired[0] != m.String() {
		t.Fatalf("%v, %v", repaired, err)
	}
	intact(t, s, m)
	if repaired, err := next.RepairFinalizers(within(t)); err != nil || len(repaired) > 1 {
		t.Fatalf("again: %v, %v", repaired, err)
	}
	if out, err := next.ReplacePod(within(t), m, fast); err != nil || out != cluster.Evicted {
		t.Fatalf("%s, %v", out, err)
	}
}

// A pod may end by itself while it is being replaced: before its finalizer is lifted, or between that and the eviction.
func TestAPodThatEndsByItselfMeanwhileIsNotEvictedAndIsCounted(t *testing.T) {
	s := kube(t)
	succeed := func(m cluster.Member) error {
		_, err := s.Client().CoreV1().Pods(m.Namespace).Patch(context.Background(), m.Pod, "application/merge-patch+json",
			[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
		return err
	}
	for when, evictionsBefore := range map[string]int32{"before": 0, "between": 2} {
		t.Run(when, func(t *testing.T) {
			var m cluster.Member
			seen := atomic.Int32{}
			cfg := asRemediator(s)
			cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					if isEviction(r) && seen.Add(1) == evictionsBefore { // the second is no dry run
						if err := succeed(m); err != nil {
							t.Error(err)
						}
					}
					return next.RoundTrip(r)
				})
			})
			var w writes
			c := start(t, cfg, cluster.Options{Audit: w.hook})
			_, g := gang(t, s, c, 1)
			m = g.Members[0]
			o := fast
			if evictionsBefore == 0 {
				o.Intent = func(context.Context) error { return succeed(m) }
			}
			if _, err := c.ReplacePod(within(t), m, o); !errors.Is(err, cluster.ErrFinished) {
				t.Fatal(err)
			}
			if n := w.accepted("evict", "Pod"); n != 0 {
				t.Errorf("it was evicted %d times", n)
			}
			eventually(t, "the Job's count", func() bool { // with the finalizer back the Job controller counts it, and takes it off itself
				j, err := s.Client().BatchV1().Jobs("default").Get(t.Context(), g.Job.Name, metav1.GetOptions{})
				return err == nil && j.Status.Succeeded == 1
			})
		})
	}
}

func TestALostNodesPodIsReplacedByForce(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	_, g := gang(t, s, c, 1)
	m := g.Members[0]
	if _, err := s.Fault(t.Context(), sandbox.Fault{Kind: sandbox.NodeLost, Node: m.Node}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Repair(context.Background(), m.Node); err != nil {
			t.Error(err)
		}
	})
	if err := c.ProbeKubelet(within(t), m.Node); !errors.Is(err, cluster.ErrSilent) {
		t.Fatalf("the kubelet of a lost node: %v", err)
	}
	if _, err := c.Cordon(within(t), m.Node, "inc-1"); err != nil {
		t.Fatal(err)
	}
	o := fast
	o.Force, o.Fenced = true, true
	if out, err := c.ReplacePod(within(t), m, o); err != nil || out != cluster.Evicted {
		t.Fatalf("%s, %v", out, err)
	}
	next, err := c.AwaitReplacement(within(t), g, 0, cluster.Running, m.PodUID)
	if err != nil || next.Node == m.Node {
		t.Fatalf("%+v, %v", next, err)
	}
	if _, ok := taint(node(t, s, m.Node), cluster.TaintOutOfService); !ok {
		t.Error("the fenced node is not out of service")
	}
	if err := c.Unfence(within(t), m.Node, "inc-1"); err != nil {
		t.Fatal(err)
	}
	if _, ok := taint(node(t, s, m.Node), cluster.TaintOutOfService); ok {
		t.Error("it still is")
	}
}
