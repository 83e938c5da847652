package notify

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeManager is an Alertmanager that may lose alerts, ignore silences or refuse them.
type fakeManager struct {
	*httptest.Server
	mu             sync.Mutex
	alerts         []alert
	silences       []silence
	posted         []string // paths, in order
	loses, refuses bool
	deaf           bool // its silences do nothing
}

func newManager(t *testing.T) (*fakeManager, *Alertmanager) {
	t.Helper()
	f := &fakeManager{}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	a, err := NewAlertmanager(f.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	return f, a
}

func (f *fakeManager) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	what := strings.TrimPrefix(r.URL.Path, "/api/v2/")
	switch {
	case r.Method == http.MethodPost && what == "silences" && f.refuses:
		w.WriteHeader(http.StatusForbidden)
	case r.Method == http.MethodPost && what == "silences":
		var s silence
		_ = json.Unmarshal(body, &s)
		s.Status = &struct {
			State string `json:"state"`
		}{"active"}
		f.silences, f.posted = append(f.silences, s), append(f.posted, what)
	case r.Method == http.MethodPost:
		var as []alert
		_ = json.Unmarshal(body, &as)
		f.posted = append(f.posted, what)
		for _, a := range as {
			f.alerts = slices.DeleteFunc(f.alerts, func(o alert) bool { return o.Labels["alertname"] == a.Labels["alertname"] })
			if !f.loses && a.EndsAt.After(time.Now()) {
				f.alerts = append(f.alerts, a)
			}
		}
	case what == "silences":
		_ = json.NewEncoder(w).Encode(f.silences)
	default:
		var out []standing
		for _, a := range f.alerts {
			s := standing{Labels: a.Labels, Annotations: a.Annotations}
			if len(f.silences) > 0 && !f.deaf && a.Labels["alertname"] == canaryAlert {
				s.Status.SilencedBy = []string{"s-1"}
			}
			out = append(out, s)
		}
		_ = json.NewEncoder(w).Encode(out)
	}
}

func TestWhatAnAlertmanagerTookIsReadBack(t *testing.T) {
	f, a := newManager(t)
	if proof, err := a.Send(t.Context(), notice(Opened)); err != nil || proof != "read back: 1 firing, 0 ended" {
		t.Errorf("proof %q, %v", proof, err)
	}
	if proof, err := a.Send(t.Context(), notice(Closed)); err != nil || proof != "read back: 0 firing, 2 ended" {
		t.Errorf("proof %q, %v", proof, err)
	}
	f.mu.Lock()
	f.loses = true
	f.mu.Unlock()
	var c tally
	d, stop := run(t, Options{Receivers: []Receiver{a}, Count: c.count})
	d.Tell(notice(Opened))
	for end := time.Now().Add(10 * time.Second); c.of(Unproven) == 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	if c.of(Unproven) != 1 || c.of(Sent)+c.of(Retried)+c.of(Failed) != 0 {
		t.Errorf("results %v", c.n)
	}
}

func TestACanaryIsSilencedBeforeItIsSent(t *testing.T) {
	f, a := newManager(t)
	for _, key := range []string{"c-1", "c-2"} {
		if err := a.Probe(t.Context(), Notice{Key: key, Stage: Canary, Cluster: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"silences", "alerts", "alerts"}; !slices.Equal(f.posted, want) {
		t.Errorf("posted %q, want %q", f.posted, want)
	}
	a.now = func() time.Time { return time.Now().Add(silenceLasts - time.Hour) }
	_ = a.Probe(t.Context(), Notice{Key: "c-3", Stage: Canary, Cluster: "c"})
	if len(f.silences) != 2 {
		t.Error("the silence is not renewed before its end")
	}
}

func TestACanaryThatIsNotSilencedIsNotSentOrEnded(t *testing.T) {
	f, a := newManager(t)
	f.refuses = true
	if err := a.Probe(t.Context(), Notice{Key: "c-1", Stage: Canary, Cluster: "c"}); err == nil || len(f.posted) != 0 {
		t.Errorf("%v, posted %q", err, f.posted)
	}
	f.refuses, f.deaf = false, true
	if err := a.Probe(t.Context(), Notice{Key: "c-2", Stage: Canary, Cluster: "c"}); err == nil || len(f.alerts) != 0 {
		t.Errorf("%v, alerts %v", err, f.alerts)
	}
	f.deaf, f.loses = false, true
	if err := a.Probe(t.Context(), Notice{Key: "c-3", Stage: Canary, Cluster: "c"}); !errors.Is(err, ErrUnproven) {
		t.Errorf("a canary that is lost: %v", err)
	}
}
