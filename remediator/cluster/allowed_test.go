package cluster

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// evictor is an API server that only takes evictions, and counts them.
type evictor struct {
	mu        sync.Mutex
	dry, real int
}

func (e *evictor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if !strings.HasSuffix(r.URL.Path, "/eviction") || err != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if bytes.Contains(body, []byte(metav1.DryRunAll)) { // in protobuf
		e.dry++
	} else {
		e.real++
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
}

// An answer counts for one version of the pod and for a moment, and never in place of the eviction itself.
func TestAnEvictionThatWasJustAllowedIsNotAskedForAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(c *Cluster, now *time.Time)
		dry  int
	}{
		"at once":                   {func(*Cluster, *time.Time) {}, 1},
		"after a moment":            {func(_ *Cluster, now *time.Time) { *now = now.Add(allowedFor - time.Millisecond) }, 1},
		"after its time":            {func(_ *Cluster, now *time.Time) { *now = now.Add(allowedFor) }, 2},
		"of a pod that changed":     {func(c *Cluster, _ *time.Time) { p := testPod("u1", "n1", 8); p.ResourceVersion = "8"; c.set(p) }, 2},
		"of another of that name":   {func(c *Cluster, _ *time.Time) { c.allowed.by["u2"] = c.allowed.by["u1"]; delete(c.allowed.by, "u1") }, 2},
		"when it was never allowed": {func(c *Cluster, _ *time.Time) { clear(c.allowed.by) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			server, now := &evictor{}, time.Now()
			srv := httptest.NewServer(server)
			defer srv.Close()
			c, err := New(&rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Options{Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			p := testPod("u1", "n1", 8)
			p.ResourceVersion, p.Finalizers = "7", nil
			c.set(p)
			m := Member{Namespace: p.Namespace, Pod: p.Name, PodUID: "u1", Node: "n1"}
			if err := c.MayReplace(t.Context(), []Member{m}, RecreateOptions{Incident: "inc-1", FastReplace: true}); err != nil {
				t.Fatal(err)
			}
			tc.then(c, &now)
			if _, err := c.ReplacePod(t.Context(), m, ReplaceOptions{Incident: "inc-1", FastReplace: true}); err != nil {
				t.Fatal(err)
			}
			if server.dry != tc.dry || server.real != 1 {
				t.Errorf("%d dry runs and %d evictions, want %d and 1", server.dry, server.real, tc.dry)
			}
		})
	}
}
