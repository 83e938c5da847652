package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/sandbox"
)

const someOwner = "11111111-0000-0000-0000-000000000000"

// noPods makes the API server refuse every pod in Pitcrew's namespace, as a quota, Kyverno or a registry allowlist does.
func noPods(t *testing.T, s *sandbox.Sandbox) {
	t.Helper()
	quotas := s.Client().CoreV1().ResourceQuotas("pitcrew-system")
	hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
	q, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "no-pods"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = quotas.Delete(context.Background(), q.Name, metav1.DeleteOptions{}) })
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
	if _, err := quotas.UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the quota to refuse a pod", func() bool {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
		_, err := s.Client().CoreV1().Pods("pitcrew-system").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil
	})
}

func TestAReservationIsConfirmedWherePodsAreRefusedInPitcrewsNamespace(t *testing.T) {
	s := kube(t)
	clean(t, s)
	noPods(t, s)
	var w writes
	c := start(t, asRemediator(s), cluster.Options{Audit: w.hook})
	index := 0
	r := cluster.Reservation{Incident: "inc-1", Node: "a1", OwnerUID: someOwner, Index: &index}
	if err := c.Reserve(within(t), r); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReservationSeen(within(t), r); err != nil {
		t.Error(err)
	}
	if err := c.Release(within(t), "inc-1"); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.all {
		if x.Kind == "Pod" {
			t.Errorf("it asked for a pod: %+v", x)
		}
	}
}

// The API server is asked right after the wait whether it stamps the member's next pod; nothing is given time.
func TestAReservationThatIsSeenStampsTheNextPod(t *testing.T) {
	s := kube(t)
	clean(t, s)
	c := start(t, asRemediator(s), cluster.Options{})
	const rounds = 30
	var longest time.Duration
	for i := range rounds {
		r := cluster.Reservation{Incident: "inc-1", Node: []string{"a1", "b3"}[i%2], Namespace: "default", OwnerUID: someOwner, Index: &i}
		if err := c.Reserve(within(t), r); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := c.WaitReservationSeen(within(t), r); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(began))
		if got := stamp(t, s, "default", someOwner, i); got.Hostname != r.Node || got.Incident != r.Incident {
			t.Errorf("round %d: the pod is sent to %q under incident %q, want %s", i, got.Hostname, got.Incident, r.Node)
		}
		if got := stamp(t, s, "pitcrew-system", someOwner, i); got.Hostname != "" {
			t.Errorf("round %d: a pod of another namespace that claims the same owner is sent to %s", i, got.Hostname)
		}
	}
	t.Logf("longest wait of %d: %v", rounds, longest.Round(time.Millisecond))
	if err := c.Release(within(t), "inc-1"); err != nil {
		t.Fatal(err)
	}
}

// memberPod is the pod that a Job's controller makes for an index.
func memberPod(namespace, owner string, index int) *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "member", Namespace: namespace, Annotations: map[string]string{"batch.kubernetes.io/job-completion-index": fmt.Sprint(index)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: types.UID(owner), Controller: &yes}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
}

// stamp asks the API server, as an administrator, how it would stamp a member's pod.
func stamp(t *testing.T, s *sandbox.Sandbox, namespace, owner string, index int) (out cluster.Stamp) {
	t.Helper()
	made, err := s.Client().CoreV1().Pods(namespace).Create(t.Context(), memberPod(namespace, owner, index), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	out.Hostname = made.Spec.NodeSelector["kubernetes.io/hostname"]
	for _, tol := range made.Spec.Tolerations {
		if tol.Key == cluster.TaintReserved {
			out.Incident = tol.Value
		}
	}
	return out
}

// without makes an API server that lacks some paths, and counts what is asked of it below a prefix.
func without(cfg *rest.Config, missing string, asked *atomic.Int64) *rest.Config {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Path, "/apis/admissionregistration.k8s.io/v1") {
				asked.Add(1)
			}
			if r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, missing) {
				return next.RoundTrip(r)
			}
			body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
			return &http.Response{StatusCode: http.StatusNotFound, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(body))}, nil
		})
	})
	return cfg
}

func TestAClusterThatCannotSteerSaysSoAtOnceAndIsNotAskedAgainForEachReservation(t *testing.T) {
	s := kube(t)
	clean(t, s)
	for reason, path := range map[cluster.UnsteeredReason]string{
		cluster.UnsteeredAbsent:  "/apis/admissionregistration.k8s.io/v1",
		cluster.UnsteeredMissing: "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
	} {
		t.Run(string(reason), func(t *testing.T) {
			var asked, ahead atomic.Int64
			now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			c := start(t, without(asRemediator(s), path, &asked), cluster.Options{Now: now})
			try := func() {
				t.Helper()
				index := 0
				r := cluster.Reservation{Incident: "inc-1", Node: "a1", OwnerUID: someOwner, Index: &index}
				began := time.Now()
				err := c.WaitReservationSeen(within(t), r)
				var u *cluster.Unsteered
				if !errors.As(err, &u) || u.Reason != reason || !errors.Is(err, cluster.ErrNoPolicy) || cluster.Retriable(err) {
					t.Errorf("%v, want an *Unsteered for %q that is not to be retried", err, reason)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the answer took %v", took)
				}
			}
			try()
			first := asked.Load()
			for range 5 {
				try()
			}
			if n := asked.Load(); n != first || first == 0 {
				t.Errorf("%d requests for the first reservation, %d for five more", first, n-first)
			}
			ahead.Store(int64(6 * time.Minute))
			if try(); asked.Load() == first {
				t.Error("after six minutes it was not looked again")
			}
		})
	}
}

func TestAReservationThatNobodySeesIsGivenUpWithinItsBound(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	index := 0
	began := time.Now()
	err := c.WaitReservationSeen(within(t), cluster.Reservation{Incident: "inc-1", Node: "a1", OwnerUID: someOwner, Index: &index}) // never reserved
	var u *cluster.Unsteered
	if !errors.As(err, &u) || u.Reason != cluster.UnsteeredUnseen {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
}
