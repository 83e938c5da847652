package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/event"
)

// oneJob is an API server that has one Job, and takes every other request for granted.
type oneJob struct {
	mu       sync.Mutex
	job      *batchv1.Job
	requests []string
	changes  int
	list     bool // answer everything with an empty list of ConfigMaps
}

func (s *oneJob) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	if r.Method != http.MethodGet {
		s.changes++
	}
	if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/jobs/j") {
		var p struct {
			Metadata struct {
				Annotations     map[string]*string
				ResourceVersion string
			}
			Spec struct{ Suspend *bool }
		}
		raw, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(raw, &p)
		if p.Metadata.ResourceVersion != s.job.ResourceVersion {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`)
			return
		}
		if s.job.Annotations == nil {
			s.job.Annotations = map[string]string{}
		}
		for k, v := range p.Metadata.Annotations {
			if v == nil {
				delete(s.job.Annotations, k)
			} else {
				s.job.Annotations[k] = *v
			}
		}
		if p.Spec.Suspend != nil {
			s.job.Spec.Suspend = p.Spec.Suspend
		}
		s.job.ResourceVersion += "1"
	}
	w.Header().Set("Content-Type", "application/json")
	if s.list && strings.Contains(r.URL.Path, "/configmaps") {
		_, _ = io.WriteString(w, `{"kind":"ConfigMapList","apiVersion":"v1","items":[]}`)
		return
	}
	if strings.Contains(r.URL.Path, "/pods/") {
		p := testPod("u2", "n2", 8)
		p.APIVersion, p.Kind, p.ResourceVersion, p.Finalizers = "v1", "Pod", "1", []string{jobTrackingFinalizer}
		_ = json.NewEncoder(w).Encode(p)
		return
	}
	j := s.job.DeepCopy()
	j.APIVersion, j.Kind = "batch/v1", "Job"
	_ = json.NewEncoder(w).Encode(j)
}

func (s *oneJob) suspended() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.job.Spec.Suspend != nil && *s.job.Spec.Suspend, s.job.Annotations[AnnotationSuspended]
}

// stuck is a Job whose only pod is being deleted and never ends: its process hangs in a driver, and its kubelet lives.
func stuck(t *testing.T, opts Options) (*Cluster, *oneJob, Gang) {
	t.Helper()
	mode, one := batchv1.IndexedCompletion, int32(1)
	s := &oneJob{job: &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", Namespace: "ml", UID: "job", ResourceVersion: "1"},
		Spec: batchv1.JobSpec{CompletionMode: &mode, Completions: &one, Parallelism: &one}}}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	c, err := New(&rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.jobs.GetStore().Add(s.job.DeepCopy())
	c.set(testNode("n1", 8, nil))
	p := testPod("u1", "n1", 8)
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, new(int64)
	p.OwnerReferences[0].Name = "j"
	c.set(p)
	g, err := c.Gang(t.Context(), event.Job{Kind: "Job", Namespace: "ml", Name: "j", UID: "job"})
	if err != nil || len(g.Members) != 1 {
		t.Fatalf("%+v, %v", g, err)
	}
	return c, s, g
}

func TestAPodThatNeverEndsDoesNotKeepItsJobSuspendedForEver(t *testing.T) {
	c, s, g := stuck(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := c.RecreateGang(ctx, g, RecreateOptions{Incident: "inc-1", Within: 1500 * time.Millisecond})
	var pods *StuckError
	if !errors.Is(err, ErrStuck) || !errors.As(err, &pods) || Retriable(err) || ctx.Err() != nil {
		t.Fatalf("%v", err)
	}
	if len(pods.Pods) != 1 || pods.Pods[0].Node != "n1" || !strings.Contains(err.Error(), "ml/p-u1 on node n1") {
		t.Errorf("the error does not name the pod and its node: %v", err)
	}
	if now, by := s.suspended(); !now || by != "inc-1" {
		t.Fatalf("suspended %v by %q before anybody gave up", now, by)
	}
	if err := c.Unsuspend(t.Context(), g, "inc-2"); err != nil {
		t.Fatal(err)
	}
	if now, _ := s.suspended(); !now {
		t.Error("another incident lifted the suspension")
	}
	for range 2 {
		if err := c.Unsuspend(t.Context(), g, "inc-1"); err != nil {
			t.Fatal(err)
		}
	}
	if now, by := s.suspended(); now || by != "" {
		t.Errorf("suspended %v by %q after the incident gave up", now, by)
	}
}

func TestASuspensionThatIsTakenUpAgainKeepsItsFirstDeadline(t *testing.T) {
	c, s, g := stuck(t, Options{})
	at := time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)
	s.job.Spec.Suspend, s.job.Annotations = yes(true), map[string]string{AnnotationSuspended: "inc-1", AnnotationSuspendedAt: at}
	began := time.Now()
	if _, err := c.RecreateGang(t.Context(), g, RecreateOptions{Incident: "inc-1"}); !errors.Is(err, ErrStuck) {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("after a crash it waited %v anew", took)
	}
	p, _ := cached[*corev1.Pod](c.pods, "ml/p-u1")
	c.drop(p)
	if _, err := c.RecreateGang(t.Context(), g, RecreateOptions{Incident: "inc-1"}); err != nil {
		t.Fatalf("its pod has gone at last: %v", err)
	}
	if now, by := s.suspended(); now || by != "" {
		t.Errorf("suspended %v by %q", now, by)
	}
}

func TestASuspensionOfSomeoneElseIsNotLifted(t *testing.T) {
	for _, by := range []string{"", "inc-9"} {
		c, s, g := stuck(t, Options{})
		s.job.Spec.Suspend, s.job.Annotations = yes(true), map[string]string{}
		if by != "" {
			s.job.Annotations[AnnotationSuspended] = by
		}
		if _, err := c.RecreateGang(t.Context(), g, RecreateOptions{Incident: "inc-1"}); !errors.Is(err, ErrSuspended) || Retriable(err) {
			t.Errorf("by %q: %v", by, err)
		}
		if err := c.Unsuspend(t.Context(), g, "inc-1"); err != nil {
			t.Error(err)
		}
		if now, _ := s.suspended(); !now || s.changes > 0 {
			t.Errorf("by %q: suspended %v after %d changes", by, now, s.changes)
		}
	}
}

func TestAJobIsPutOnHoldOnceAndAPersonsHoldStays(t *testing.T) {
	for was, want := range map[string]string{"": "why", "mine": "mine", "false": "why"} {
		c, s, g := stuck(t, Options{})
		s.job.Annotations = map[string]string{}
		if was != "" {
			s.job.Annotations[AnnotationHold] = was
		}
		for range 2 {
			if err := c.HoldJob(t.Context(), g, "inc-1", "why"); err != nil {
				t.Fatal(err)
			}
		}
		s.mu.Lock()
		if got := s.job.Annotations[AnnotationHold]; got != want || s.changes > 1 || want == "mine" && s.changes > 0 {
			t.Errorf("%q: %q after %d changes", was, got, s.changes)
		}
		s.mu.Unlock()
	}
}

func TestTheKillSwitchAndACancelEndTheWaitForAGang(t *testing.T) {
	c, _, g := stuck(t, Options{})
	var off atomic.Bool
	halted := errors.New("halted")
	may := func() error {
		if off.Load() {
			return halted
		}
		return nil
	}
	time.AfterFunc(300*time.Millisecond, func() { off.Store(true) })
	began := time.Now()
	if _, err := c.RecreateGang(t.Context(), g, RecreateOptions{Incident: "inc-1", May: may}); !errors.Is(err, halted) {
		t.Error(err)
	}
	off.Store(false)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := c.RecreateGang(ctx, g, RecreateOptions{Incident: "inc-1", May: may}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestNoGangBeginsAnewThatHasAPodOnANodeOnHold(t *testing.T) {
	c, s, g := stuck(t, Options{})
	n := testNode("n1", 8, nil)
	n.Annotations = map[string]string{AnnotationHold: "burn-in"}
	c.set(n)
	o := RecreateOptions{Incident: "inc-1"}
	_, recreate := c.RecreateGang(t.Context(), g, o)
	for what, err := range map[string]error{"RecreateGang": recreate, "MayRecreate": c.MayRecreate(t.Context(), g, o), "MayReplace": c.MayReplace(t.Context(), g.Members, o)} {
		if !errors.Is(err, ErrHeld) || Retriable(err) || !strings.Contains(err.Error(), "node n1: burn-in") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(s.requests) > 0 {
		t.Errorf("asked the API server: %v", s.requests)
	}
}

// TestADeposedLeaderWritesNothing calls every method that writes while the lease has run out, and after its term.
func TestADeposedLeaderWritesNothing(t *testing.T) {
	now := time.Now()
	began := now.Add(-20 * time.Second)
	late := &lease{duration: 15 * time.Second, now: time.Now}
	late.renewed.Store(&began)
	over := &lease{duration: time.Hour, now: time.Now}
	over.renewed.Store(&now)
	over.over.Store(true)
	for name, held := range map[string]*lease{"the lease has run out": late, "the term has ended": over} {
		t.Run(name, func(t *testing.T) {
			c, s, g := stuck(t, Options{})
			c.holds.Store(held)
			if (Lead{lease: held}).Valid() || (Lead{Token: 7}).Valid() {
				t.Error("the term is said to be valid")
			}
			n := testNode("n1", 8, nil)
			n.Spec.Unschedulable, n.Annotations = true, map[string]string{AnnotationCordon: cordonMade, AnnotationFenced: "inc-1"}
			n.Spec.Taints = withTaint(withTaint(nil, TaintQuarantine, "inc-1"), TaintReserved, "inc-1")
			c.set(n)
			c.set(testNode("n2", 8, nil))
			p := testPod("u2", "n2", 8)
			p.Annotations[AnnotationFastReplace] = "inc-1"
			c.set(p)
			live := Member{Namespace: "ml", Pod: "p-u2", PodUID: "u2", Node: "n2"}
			ctx := t.Context()
			calls := map[string]func() error{
				"Cordon":       func() error { _, err := c.Cordon(ctx, "n2", "inc-1"); return err },
				"Fence":        func() error { return c.Fence(ctx, "n2", "inc-1") },
				"SetCondition": func() error { return c.SetCondition(ctx, "n2", false, "R", "m") },
				"Event":        func() error { return c.Event(ctx, Ref{Kind: "Node", Name: "n2"}, Warning, "R", "m") },
				"Reserve":      func() error { return c.Reserve(ctx, Reservation{Incident: "inc-1", Node: "n2", OwnerUID: "x"}) },
				"ReadBack": func() error {
					_, err := c.ReadBack(ctx, live, "n1", func(string) bool { return false }, ReplaceOptions{Incident: "inc-1", FastReplace: true})
					return err
				},
				"ReplacePod by force": func() error {
					_, err := c.ReplacePod(ctx, live, ReplaceOptions{Incident: "inc-1", Force: true})
					return err
				},
				"ReplacePod, fast": func() error {
					_, err := c.ReplacePod(ctx, live, ReplaceOptions{Incident: "inc-1", FastReplace: true})
					return err
				},
				"DeleteByUID":  func() error { return c.DeleteByUID(ctx, live, "inc-1", 0) },
				"RecreateGang": func() error { _, err := c.RecreateGang(ctx, g, RecreateOptions{Incident: "inc-1"}); return err },
				"MayReplace":   func() error { return c.MayReplace(ctx, []Member{live}, RecreateOptions{Incident: "inc-1"}) },
			}
			for what, call := range calls {
				if err := call(); !errors.Is(err, ErrDeposed) || Retriable(err) {
					t.Errorf("%s: %v", what, err)
				}
			}
			s.job.Spec.Suspend, s.job.Annotations = yes(true), map[string]string{AnnotationSuspended: "inc-1"}
			if err := c.Unsuspend(ctx, g, "inc-1"); !errors.Is(err, ErrDeposed) {
				t.Errorf("Unsuspend: %v", err)
			}
			if s.changes > 0 {
				t.Errorf("a deposed leader changed something: %v", s.requests)
			}
		})
	}
}
