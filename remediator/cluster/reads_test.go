package cluster

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// onePod is an API server that holds one pod, refuses every write about another version of it, and lists what it was asked.
type onePod struct {
	t     *testing.T
	pod   *corev1.Pod
	asked []string
}

func (s *onePod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	answer := func(code int, o any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(o); err != nil {
			s.t.Error(err)
		}
	}
	version, did := s.pod.ResourceVersion, strings.ToLower(r.Method)
	switch r.Method {
	case http.MethodPost:
		o, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), raw)
		e, ok := o.(*policyv1.Eviction)
		if err != nil || !ok {
			s.t.Errorf("%T, %v", o, err)
			return
		}
		version, did = *e.DeleteOptions.Preconditions.ResourceVersion, "evict"
		if len(e.DeleteOptions.DryRun) > 0 {
			did = "ask"
		}
	case http.MethodPatch:
		var p struct{ Metadata metav1.ObjectMeta }
		if err := json.Unmarshal(raw, &p); err != nil {
			s.t.Error(err)
		}
		version = p.Metadata.ResourceVersion
	}
	s.asked = append(s.asked, did)
	if version != s.pod.ResourceVersion {
		answer(http.StatusConflict, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict})
		return
	}
	if did == "patch" {
		s.pod.Finalizers, s.pod.ResourceVersion = nil, s.pod.ResourceVersion+"1"
	}
	if r.Method == http.MethodPost {
		answer(http.StatusCreated, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
		return
	}
	answer(http.StatusOK, s.pod)
}

// podServer is a cluster whose API server holds a pod, and whose watch shows it as it was at a version.
func podServer(t *testing.T, version string) (*Cluster, *onePod, Member) {
	live := testPod("u1", "n1", 8)
	live.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	live.ResourceVersion, live.Finalizers = "5", []string{jobTrackingFinalizer}
	s := &onePod{t: t, pod: live}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c, err := New(&rest.Config{Host: server.URL}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := live.DeepCopy()
	seen.ResourceVersion = version
	c.set(seen)
	return c, s, Member{Namespace: live.Namespace, Pod: live.Name, PodUID: string(live.UID), Node: "n1"}
}

func TestAReplacementReadsThePodFromTheWatchAndLiveOnlyWhenAWriteIsRefused(t *testing.T) {
	for version, want := range map[string]string{"5": "ask patch evict", "4": "ask get ask patch evict"} {
		c, s, m := podServer(t, version)
		intended := 0
		o, err := c.ReplacePod(t.Context(), m, ReplaceOptions{Incident: "inc-1", FastReplace: true, Intent: func(context.Context) error { intended++; return nil }})
		if got := strings.Join(s.asked, " "); err != nil || o != Evicted || got != want || intended != 1 {
			t.Errorf("watch at version %s: %s, want %s; %s, %d intents, %v", version, got, want, o, intended, err)
		}
	}
}

func TestWhetherAPodMayGoIsAskedOfTheVersionThatTheAPIServerHas(t *testing.T) {
	for version, want := range map[string]string{"5": "ask", "4": "ask get ask"} {
		c, s, m := podServer(t, version)
		err := c.MayReplace(t.Context(), []Member{m}, RecreateOptions{Incident: "inc-1", FastReplace: true})
		if got := strings.Join(s.asked, " "); err != nil || got != want {
			t.Errorf("watch at version %s: %s, want %s, %v", version, got, want, err)
		}
	}
}

func TestOnlyALandingThatTheWatchShowsToBeGoodIsNotReadLive(t *testing.T) {
	for reserved, asked := range map[string][]string{"n1": nil, "n2": {"get"}} {
		c, s, m := podServer(t, "5")
		l, err := c.Landed(t.Context(), m, reserved, func(string) bool { return false })
		if err != nil || l.Good() != (reserved == "n1") || !slices.Equal(s.asked, asked) {
			t.Errorf("reserved %s: %+v, asked %q, %v", reserved, l, s.asked, err)
		}
	}
}
