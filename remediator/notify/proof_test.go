package notify

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
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
	closed         int  // the status of every read; 0: reads work
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
			f.alerts = slices.DeleteFunc(f.alerts, func(o alert) bool { return maps.Equal(o.Labels, a.Labels) })
			if !f.loses && a.EndsAt.After(time.Now()) {
				f.alerts = append(f.alerts, a)
			}
		}
	case f.closed != 0:
		w.WriteHeader(f.closed)
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

// The faults of an incident change: one that has ended is dropped. The first one gives the labels of the alerts.
func TestTheCloseEndsEachAlertOfAnIncidentWhoseFirstFaultHasEnded(t *testing.T) {
	f, a := newManager(t)
	send := func(n Notice) {
		t.Helper()
		if _, err := a.Send(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	other := func(n *Notice) { n.Node, n.GPU, n.Signal, n.Severity = "a2", "GPU-2", "xid/95", "warning" }
	send(notice(Opened))
	send(notice(Waiting, func(n *Notice) { n.NeedsPerson = true }))
	send(notice(Waiting, other, func(n *Notice) { n.NeedsPerson = true }))
	if len(f.alerts) != 2 || f.alerts[0].Labels["node"] != "a1" || f.alerts[1].Labels["node"] != "a1" {
		t.Errorf("an incident is more than one alert: %+v", f.alerts)
	}
	theirs := f.alerts[0] // an earlier version left a second alert, and another cluster has its own
	theirs.Labels = maps.Clone(theirs.Labels)
	theirs.Labels["cluster"] = "d"
	left := f.alerts[0]
	left.Labels = maps.Clone(left.Labels)
	left.Labels["signal"] = "xid/13"
	f.alerts = append(f.alerts, theirs, left)
	send(notice(Closed, other))
	if len(f.alerts) != 1 || f.alerts[0].Labels["cluster"] != "d" {
		t.Errorf("after the close: %+v", f.alerts)
	}
}

func TestAnAlertDoesNotEndBeforeItStarts(t *testing.T) {
	ahead := notice(Closed, func(n *Notice) { n.Began = n.Ended.Add(time.Minute) }) // the node's clock
	for _, a := range alerts(ahead, ahead.Ended, "") {
		if a.StartsAt.After(a.EndsAt) {
			t.Errorf("%s starts at %v and ends at %v", a.Labels["alertname"], a.StartsAt, a.EndsAt)
		}
	}
}

func TestAPageIsPostedToAnAlertmanagerThatCannotBeRead(t *testing.T) {
	for status, again := range map[int]bool{http.StatusForbidden: false, http.StatusBadGateway: true} {
		f, a := newManager(t)
		f.closed = status
		if _, err := a.Send(t.Context(), notice(Waiting, func(n *Notice) { n.NeedsPerson = true })); !errors.Is(err, ErrUnproven) || len(f.alerts) != 2 {
			t.Errorf("%d: %v, alerts %+v", status, err, f.alerts)
		}
		_, err := a.Send(t.Context(), notice(Closed))
		if err == nil || errors.Is(err, ErrUnproven) == again || len(f.alerts) != 0 {
			t.Errorf("%d: the close: %v, tried again %t; alerts %+v", status, err, again, f.alerts)
		}
	}
}
