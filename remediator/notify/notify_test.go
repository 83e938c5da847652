package notify

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is an HTTP receiver that answers with the statuses given, then with 200.
type place struct {
	*httptest.Server
	mu       sync.Mutex
	statuses []int
	bodies   []json.RawMessage
	media    string
	path     string
	came     chan struct{}
}

func newPlace(t *testing.T, statuses ...int) *place {
	t.Helper()
	p := &place{statuses: statuses, came: make(chan struct{}, 1000)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodGet { // what an Alertmanager is asked
			_, _ = io.WriteString(w, "[]")
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.media, p.path = r.Header.Get("Content-Type"), r.URL.Path
		status := http.StatusOK
		if len(p.statuses) > 0 {
			status, p.statuses = p.statuses[0], p.statuses[1:]
		}
		if status == http.StatusOK {
			p.bodies = append(p.bodies, body)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "because")
		p.came <- struct{}{}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *place) wait(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-p.came:
		case <-time.After(10 * time.Second):
			t.Fatal("the notice did not come")
		}
	}
}

func (p *place) got() []json.RawMessage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.bodies)
}

// tally counts results.
type tally struct {
	mu sync.Mutex
	n  map[Result]int
}

func (c *tally) count(_ string, r Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[Result]int{}
	}
	c.n[r]++
}

func (c *tally) of(r Result) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[r]
}

// run starts a dispatcher and gives what ends it and waits for that.
func run(t *testing.T, o Options) (d *Dispatcher, stop func()) {
	t.Helper()
	d = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { d.Run(ctx); close(done) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return d, stop
}

var began = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

func notice(stage Stage, change ...func(*Notice)) Notice {
	n := Notice{
		Key: "inc-1/" + string(stage), Stage: stage, Incident: "inc-1", Cluster: "c", Node: "a1", Namespace: "train", Job: "llm", Signal: "xid/79", Severity: "fatal",
		Summary: "GPU lost", Began: began, At: began.Add(time.Second),
	}
	if stage == Closed {
		n.Ended, n.Outcome = n.At, "recovered"
	}
	for _, f := range change {
		f(&n)
	}
	return n
}

func webhook(t *testing.T, address string) Receiver {
	t.Helper()
	w, err := NewWebhook(address)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestAWebhookGetsACloudEventWithTheKeyAsItsId(t *testing.T) {
	p := newPlace(t)
	d, stop := run(t, Options{Receivers: []Receiver{webhook(t, p.URL+"/hook?token=secret")}})
	d.Tell(notice(Opened))
	p.wait(t, 1)
	stop()
	var e map[string]any
	if err := json.Unmarshal(p.got()[0], &e); err != nil {
		t.Fatal(err)
	}
	data, _ := e["data"].(map[string]any)
	if e["specversion"] != "1.0" || e["id"] != "inc-1/opened" || e["type"] != NoticeType || e["subject"] != "incident/inc-1" || data["signal"] != "xid/79" {
		t.Errorf("event %v", e)
	}
	if p.media != "application/cloudevents+json; charset=utf-8" || p.path != "/hook" {
		t.Errorf("posted %s to %s", p.media, p.path)
	}
	if name := webhook(t, "http://user:word@h/x?token=secret").Name(); strings.Contains(name, "word") || strings.Contains(name, "secret") {
		t.Errorf("the name %s tells a secret", name)
	}
}

func TestAnIncidentIsOneAlertFromItsOpeningToItsClose(t *testing.T) {
	p := newPlace(t)
	a, err := NewAlertmanager(p.URL+"/am", "https://pitcrew.example.com/runbooks/")
	if err != nil {
		t.Fatal(err)
	}
	d, stop := run(t, Options{Receivers: []Receiver{a}})
	d.Tell(notice(Opened))
	d.Tell(notice(Waiting, func(n *Notice) { n.NeedsPerson = true }))
	d.Tell(notice(Closed))
	p.wait(t, 3)
	stop()
	if p.path != "/am/api/v2/alerts" {
		t.Errorf("posted to %s", p.path)
	}
	now := began.Add(time.Second)
	var said []string
	labels := map[string]bool{}
	for _, body := range p.got() {
		var as []alert
		if err := json.Unmarshal(body, &as); err != nil {
			t.Fatal(err)
		}
		for _, a := range as {
			firing := "resolved"
			if a.EndsAt.After(now) {
				firing = "firing"
			}
			said = append(said, a.Labels["alertname"]+" "+firing)
			raw, _ := json.Marshal(a.Labels)
			labels[string(raw)] = true
			if !a.StartsAt.Equal(began) || a.Annotations["summary"] == "" || a.Annotations["runbook_url"] != "https://pitcrew.example.com/runbooks/"+a.Labels["alertname"]+".md" {
				t.Errorf("alert %+v", a)
			}
		}
	}
	want := []string{"PitcrewIncident firing", "PitcrewIncident firing", "PitcrewNeedsPerson firing", "PitcrewIncident resolved", "PitcrewNeedsPerson resolved"}
	if !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	if len(labels) != 2 {
		t.Errorf("labels change over an incident: %v", labels)
	}
}

func TestAnIncidentThatFailedKeepsCallingAPerson(t *testing.T) {
	as := alerts(notice(Closed, func(n *Notice) { n.NeedsPerson = true }), began, "")
	if len(as) != 2 || as[1].Labels["alertname"] != "PitcrewNeedsPerson" || !as[1].EndsAt.After(as[0].EndsAt) {
		t.Errorf("alerts %+v", as)
	}
}

func TestAKeyIsToldOnce(t *testing.T) {
	p := newPlace(t)
	d, stop := run(t, Options{Receivers: []Receiver{webhook(t, p.URL)}})
	for range 3 {
		d.Tell(notice(Opened))
	}
	d.Tell(notice(Closed))
	p.wait(t, 2)
	stop()
	if n := len(p.got()); n != 2 {
		t.Errorf("%d notices came, want 2", n)
	}
}

func TestAReceiverThatIsAwayGetsTheNoticeLater(t *testing.T) {
	p := newPlace(t, http.StatusServiceUnavailable, http.StatusTooManyRequests)
	var c tally
	d, stop := run(t, Options{Receivers: []Receiver{webhook(t, p.URL)}, First: time.Millisecond, Count: c.count})
	d.Tell(notice(Opened))
	p.wait(t, 3)
	stop()
	if len(p.got()) != 1 || c.of(Retried) != 2 || c.of(Sent) != 1 {
		t.Errorf("%d came, results %v", len(p.got()), c.n)
	}
}

func TestWhatIsRefusedForGoodIsCountedAndHoldsNothingUp(t *testing.T) {
	p := newPlace(t, http.StatusBadRequest)
	var c tally
	d, stop := run(t, Options{Receivers: []Receiver{webhook(t, p.URL)}, Count: c.count})
	d.Tell(notice(Opened))
	d.Tell(notice(Closed))
	p.wait(t, 2)
	stop()
	if len(p.got()) != 1 || c.of(Failed) != 1 || c.of(Sent) != 1 {
		t.Errorf("%d came, results %v", len(p.got()), c.n)
	}
}

// stuck is a receiver that takes nothing until it is let go, and then everything.
type stuck struct {
	free chan struct{}
	mu   sync.Mutex
	got  []string
}

func (*stuck) Name() string { return "stuck" }

func (s *stuck) Send(ctx context.Context, n Notice) (string, error) {
	select {
	case <-s.free:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, n.Key)
	return "", nil
}

func TestAReceiverThatHangsDelaysNobodyAndItsQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{free: make(chan struct{})}
		quick := &stuck{free: make(chan struct{})}
		close(quick.free)
		var c tally
		d, stop := run(t, Options{Receivers: []Receiver{s, quick}, Queue: 10, Count: c.count})
		start := time.Now()
		for i := range 100 {
			d.Tell(notice(Finding, func(n *Notice) { n.Key = string(rune('A' + i)) }))
			synctest.Wait()
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("telling took %v", took)
		}
		if len(quick.got) != 100 {
			t.Errorf("the other receiver got %d of 100", len(quick.got))
		}
		if n := c.of(Dropped); n != 89 { // one is on its way, ten wait
			t.Errorf("%d dropped", n)
		}
		close(s.free)
		synctest.Wait()
		if len(s.got) != 11 || s.got[10] != string(rune('A'+99)) {
			t.Errorf("it got %q, want the newest", s.got)
		}
		stop()
	})
}

// down is a receiver that always fails.
type down struct{ tries []time.Time }

func (*down) Name() string { return "down" }

func (f *down) Send(context.Context, Notice) (string, error) {
	f.tries = append(f.tries, time.Now())
	return "", errors.New("connection refused")
}

func TestTriesBackOffAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &down{}
		var c tally
		d, stop := run(t, Options{Receivers: []Receiver{f}, First: time.Second, Most: 8 * time.Second, GiveUp: time.Minute, Count: c.count})
		d.Tell(notice(Opened))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		var waits []time.Duration
		for i := 1; i < len(f.tries); i++ {
			waits = append(waits, f.tries[i].Sub(f.tries[i-1]))
		}
		if !slices.Equal(waits[:4], []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}) || slices.Max(waits) > 8*time.Second {
			t.Errorf("waits %v", waits)
		}
		if c.of(Failed) != 1 {
			t.Errorf("results %v", c.n)
		}
		stop()
	})
}

func TestWhatWaitsAtTheEndIsTriedOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{free: make(chan struct{})}
		d, stop := run(t, Options{Receivers: []Receiver{s}})
		d.Tell(notice(Opened))
		d.Tell(notice(Closed))
		synctest.Wait()
		time.AfterFunc(time.Second, func() { close(s.free) })
		stop()
		if !slices.Equal(s.got, []string{"inc-1/opened", "inc-1/closed"}) {
			t.Errorf("got %q", s.got)
		}
	})
}

func TestAWrongAddressIsNamed(t *testing.T) {
	for _, address := range []string{"alertmanager:9093", "ftp://h", "http://", "::"} {
		if _, err := NewAlertmanager(address, ""); err == nil || !strings.HasPrefix(err.Error(), "alertmanager: ") {
			t.Errorf("%s: %v", address, err)
		}
		if _, err := NewWebhook(address); err == nil || !strings.HasPrefix(err.Error(), "webhook: ") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// The path of a webhook is a secret with many services. It is in no name, error, log line or metric, also where the receiver repeats it.
func TestNothingThatIsSaidOfAReceiverHoldsItsAddressesSecrets(t *testing.T) {
	const path, query, word = "/services/T0AB/B0CD/sosecret", "token=hidden77", "pass-word-1"
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/loop/sosecret" {
			http.Redirect(w, r, r.URL.Path+"?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "Cannot POST "+r.URL.RequestURI()+" for key sosecret and hidden77")
	}))
	defer p.Close()
	with := func(base, path string) string {
		return strings.Replace(base, "://", "://ann:"+word+"@", 1) + path + "?" + query
	}
	dead := httptest.NewServer(nil)
	dead.Close()
	var said strings.Builder
	var mu sync.Mutex
	var labels []string
	for _, address := range []string{with(p.URL, path), with(p.URL, "/loop/sosecret"), with(dead.URL, path)} {
		d, stop := run(t, Options{Receivers: []Receiver{webhook(t, address), webhook(t, address)}, GiveUp: time.Millisecond, First: time.Millisecond,
			Log: slog.New(slog.NewTextHandler(&said, nil)), Count: func(receiver string, _ Result) {
				mu.Lock()
				defer mu.Unlock()
				labels = append(labels, receiver)
			}})
		d.Tell(notice(Opened))
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			mu.Lock()
			n := len(labels)
			mu.Unlock()
			if n >= 2 {
				break
			}
		}
		stop()
	}
	for _, bad := range []string{"ftp://ann:" + word + "@h" + path + "?" + query, "https:" + path + "?" + query, "://" + path, "http://h:x" + path} {
		if _, err := NewWebhook(bad); err == nil {
			t.Errorf("%s is taken", bad)
		} else {
			said.WriteString(err.Error())
		}
	}
	all := said.String() + strings.Join(labels, " ")
	if !strings.Contains(all, "(2)") || !strings.Contains(all, "404 Not Found") {
		t.Errorf("the test does not come where secrets are said: %s", all)
	}
	for _, secret := range []string{"sosecret", "T0AB", "hidden77", word} {
		if strings.Contains(all, secret) {
			t.Errorf("%s is said: %s", secret, all)
		}
	}
}
