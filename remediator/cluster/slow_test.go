package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/sandbox"
)

// slowProxy stands before the API server. What has come in goes through to the end, also when the client has given up on it.
type slowProxy struct {
	slow   func(*http.Request) bool
	before atomic.Int64 // ns that a slow request waits before it goes on
	after  atomic.Int64 // ns that its answer waits
	late   atomic.Int32 // slow requests that have been answered by the API server
	status atomic.Int32 // of the last of them
}

func (p *slowProxy) config(t *testing.T, s *sandbox.Sandbox) *rest.Config {
	t.Helper()
	admin := s.Config()
	transport, err := rest.TransportFor(admin)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {}
	proxy.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("watch") != "" || !p.slow(r) {
			return transport.RoundTrip(r)
		}
		time.Sleep(time.Duration(p.before.Load()))
		resp, err := transport.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
		if err == nil {
			p.status.Store(int32(resp.StatusCode))
		}
		p.late.Add(1)
		time.Sleep(time.Duration(p.after.Load()))
		return resp, err
	})
	srv := httptest.NewUnstartedServer(proxy)
	srv.Start()
	t.Cleanup(srv.CloseClientConnections)
	cfg := &rest.Config{Host: srv.URL, Impersonate: rest.ImpersonationConfig{UserName: account}}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return usedRights.watch(next) })
	return cfg
}

func isEviction(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, "/eviction")
}

// evictions counts, in the API server's own audit log, the evictions of a pod that it accepted, dry runs left out.
func evictions(t *testing.T, s *sandbox.Sandbox, m cluster.Member) (accepted int) {
	t.Helper()
	f, err := os.Open(s.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e struct {
			RequestURI     string
			ObjectRef      struct{ Name, Namespace, Subresource string }
			ResponseStatus struct{ Code int }
			RequestObject  json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.ObjectRef.Subresource != "eviction" || e.ObjectRef.Name != m.Pod || e.ObjectRef.Namespace != m.Namespace || e.ResponseStatus.Code/100 != 2 {
			continue
		}
		var asked struct{ DeleteOptions struct{ DryRun []string } }
		if err := json.Unmarshal(e.RequestObject, &asked); err != nil {
			t.Fatal(err)
		}
		if len(asked.DeleteOptions.DryRun) == 0 {
			accepted++
		}
	}
	return accepted
}

func TestAnEvictionThatArrivesLateHasNoEffectOnceItWasGivenUp(t *testing.T) {
	s := kube(t)
	real := atomic.Int32{}
	p := &slowProxy{slow: func(r *http.Request) bool { return isEviction(r) && real.Add(1) == 2 }} // the first is the dry run
	p.before.Store(int64(1500 * time.Millisecond))
	c := start(t, p.config(t, s), cluster.Options{CallTimeout: 500 * time.Millisecond})
	_, g := gang(t, s, c, 1)
	m := g.Members[0]
	if _, err := c.ReplacePod(within(t), m, fast); !errors.Is(err, cluster.ErrRetry) || !cluster.Retriable(err) {
		t.Fatalf("%v: not said to be worth another try", err)
	}
	intact(t, s, m)
	eventually(t, "the late eviction", func() bool { return p.late.Load() == 1 })
	if got := p.status.Load(); got != http.StatusConflict {
		t.Fatalf("the late eviction was answered %d", got)
	}
	intact(t, s, m)
	if out, err := c.ReplacePod(within(t), m, fast); err != nil || out != cluster.Evicted {
		t.Fatalf("%s, %v", out, err)
	}
	if _, err := c.AwaitReplacement(within(t), g, 0, cluster.Created, m.PodUID); err != nil {
		t.Fatal(err)
	}
	if n := evictions(t, s, m); n != 1 {
		t.Errorf("%d evictions were accepted", n)
	}
}

func TestAnEvictionWhoseAnswerIsLostCountsAsDone(t *testing.T) {
	s := kube(t)
	real := atomic.Int32{}
	p := &slowProxy{slow: func(r *http.Request) bool { return isEviction(r) && real.Add(1) == 2 }}
	p.after.Store(int64(3 * time.Second))
	c := start(t, p.config(t, s), cluster.Options{CallTimeout: 500 * time.Millisecond})
	_, g := gang(t, s, c, 1)
	m := g.Members[0]
	if out, err := c.ReplacePod(within(t), m, fast); err != nil || (out != cluster.Evicted && out != cluster.Gone) {
		t.Fatalf("%s, %v", out, err)
	}
	if out, err := c.ReplacePod(within(t), m, fast); err != nil || (out != cluster.Evicted && out != cluster.Gone) {
		t.Fatalf("repeated: %s, %v", out, err)
	}
	if n := evictions(t, s, m); n != 1 {
		t.Errorf("%d evictions were accepted", n)
	}
}

func TestASlowAPIServerGivesErrorsThatAreWorthAnotherTry(t *testing.T) {
	s := kube(t)
	clean(t, s)
	var on atomic.Bool
	p := &slowProxy{slow: func(*http.Request) bool { return on.Load() }}
	p.before.Store(int64(800 * time.Millisecond))
	c := start(t, p.config(t, s), cluster.Options{CallTimeout: 100 * time.Millisecond})
	_, g := gang(t, s, c, 1)
	on.Store(true)
	index := 0
	calls := map[string]func() error{
		"cordon": func() error { _, err := c.Cordon(within(t), "b3", "inc-1"); return err },
		"reserve": func() error {
			return c.Reserve(within(t), cluster.Reservation{Incident: "inc-1", Node: "b2", OwnerUID: "x", Index: &index})
		},
		"replace": func() error { _, err := c.ReplacePod(within(t), g.Members[0], fast); return err },
		"release": func() error { return c.Release(within(t), "inc-1") },
		"recreate": func() error {
			_, err := c.RecreateGang(within(t), g, cluster.RecreateOptions{Incident: "inc-1", FastReplace: true})
			return err
		},
		"condition": func() error { return c.SetCondition(within(t), "b3", false, "R", "m") },
	}
	for what, call := range calls {
		began := time.Now()
		if err := call(); !errors.Is(err, cluster.ErrRetry) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s took %v", what, took)
		}
	}
	on.Store(false)
	time.Sleep(900 * time.Millisecond) // what was under way arrives
	intact(t, s, g.Members[0])
	if err := c.Release(within(t), "inc-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b2 released", func() bool {
		_ = c.Release(within(t), "inc-1")
		_, reserved := taint(node(t, s, "b2"), cluster.TaintReserved)
		return !reserved
	})
}
