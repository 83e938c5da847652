package notify

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
)

const botToken = "xoxb-secret-1234567890"

// fakeSlack is Slack's Web API as far as it is used, with its rules.
type fakeSlack struct {
	*httptest.Server
	mu       sync.Mutex
	messages []slackMessage
	fail     func(method string) (status int, header http.Header, body string) // before it acts; status 0: it acts
	lose     func(method string) bool                                          // it acts, and the answer is lost
	before   func(method string)                                               // outside the lock
	scopes   map[string]bool
	calls    []string
}

type slackMessage struct {
	TS, Thread, Text string
	Broadcast        bool
	Edited           int
	Metadata         json.RawMessage
}

var slackScopes = map[string]string{"chat.postMessage": "chat:write", "chat.update": "chat:write", "chat.delete": "chat:write", "conversations.history": "channels:history", "auth.test": ""}

func newSlack(t *testing.T) *fakeSlack {
	t.Helper()
	f := &fakeSlack{scopes: map[string]bool{"": true, "chat:write": true, "channels:history": true}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeSlack) serve(w http.ResponseWriter, r *http.Request) {
	method := strings.TrimPrefix(r.URL.Path, "/api/")
	raw, _ := io.ReadAll(r.Body)
	if f.before != nil {
		f.before(method)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, method)
	if f.fail != nil {
		if status, header, body := f.fail(method); status != 0 {
			for k, v := range header {
				w.Header()[k] = v
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	var m struct {
		Channel   string          `json:"channel"`
		Text      string          `json:"text"`
		TS        string          `json:"ts"`
		Thread    string          `json:"thread_ts"`
		Broadcast bool            `json:"reply_broadcast"`
		Metadata  json.RawMessage `json:"metadata"`
		Oldest    string          `json:"oldest"`
		All       bool            `json:"include_all_metadata"`
	}
	said := func(format string, a ...any) {
		if f.lose != nil && f.lose(method) {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		fmt.Fprintf(w, format, a...)
	}
	at := func(ts string) int {
		return slices.IndexFunc(f.messages, func(m slackMessage) bool { return m.TS == ts })
	}
	scope, known := slackScopes[method]
	err := json.Unmarshal(raw, &m)
	switch {
	case r.Method != http.MethodPost || !known:
		said(`{"ok":false,"error":"unknown_method"}`)
	case r.Header.Get("Authorization") != "Bearer "+botToken:
		said(`{"ok":false,"error":"invalid_auth"}`)
	case !f.scopes[scope]:
		said(`{"ok":false,"error":"missing_scope","needed":%q}`, scope)
	case r.Header.Get("Content-Type") != "application/json; charset=utf-8" || err != nil:
		said(`{"ok":false,"error":"invalid_json"}`)
	case method == "auth.test":
		said(`{"ok":true}`)
	case m.Channel != "C1":
		said(`{"ok":false,"error":"channel_not_found"}`)
	case method == "conversations.history":
		var found []string
		for _, x := range f.messages {
			if x.Thread == "" && x.TS >= m.Oldest {
				meta := "{}"
				if m.All && len(x.Metadata) > 0 {
					meta = string(x.Metadata)
				}
				found = append(found, fmt.Sprintf(`{"ts":%q,"text":%q,"metadata":%s}`, x.TS, "x", meta))
			}
		}
		said(`{"ok":true,"messages":[%s]}`, strings.Join(found, ","))
	case method == "chat.delete" && at(m.TS) >= 0:
		f.messages = slices.Delete(f.messages, at(m.TS), at(m.TS)+1)
		said(`{"ok":true}`)
	case method == "chat.delete" || method == "chat.update" && at(m.TS) < 0:
		said(`{"ok":false,"error":"message_not_found"}`)
	case m.Text == "":
		said(`{"ok":false,"error":"no_text"}`)
	case len(m.Text) > 40000:
		said(`{"ok":false,"error":"msg_too_long"}`)
	case method == "chat.update":
		f.messages[at(m.TS)].Text = m.Text
		f.messages[at(m.TS)].Edited++
		said(`{"ok":true,"channel":"C1","ts":%q}`, m.TS)
	case m.Thread != "" && at(m.Thread) < 0:
		said(`{"ok":false,"error":"thread_not_found"}`)
	default:
		ts := fmt.Sprintf("%d.%06d", time.Now().Unix(), len(f.calls))
		f.messages = append(f.messages, slackMessage{TS: ts, Thread: m.Thread, Text: m.Text, Broadcast: m.Broadcast, Metadata: m.Metadata})
		said(`{"ok":true,"channel":"C1","ts":%q}`, ts)
	}
}

// roots and replies are the messages of the channel.
func (f *fakeSlack) split() (roots, replies []slackMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.messages {
		if m.Thread == "" {
			roots = append(roots, m)
		} else {
			replies = append(replies, m)
		}
	}
	return roots, replies
}

func (f *fakeSlack) client(t *testing.T, s Store, change ...func(*SlackOptions)) *Slack {
	t.Helper()
	o := SlackOptions{Channel: "C1", Token: func() string { return botToken }, API: f.URL + "/api/", Threads: s}
	for _, c := range change {
		c(&o)
	}
	c, err := NewSlack("ops", o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// records is a store on a real server.
func records(t *testing.T) Store {
	t.Helper()
	return bus.NewBucket[Record](bustest.Connect(t, bustest.Server(t).URL()), bus.NoticeBucket)
}

// later is a change that dates a notice.
func later(d time.Duration) func(*Notice) { return func(n *Notice) { n.At = began.Add(d) } }

func send(t *testing.T, r Receiver, n Notice) string {
	t.Helper()
	proof, err := r.Send(t.Context(), n.tidy())
	if err != nil {
		t.Fatalf("%s: %v", n.Key, err)
	}
	return proof
}

func TestAnIncidentIsOneThreadThatIsUpdatedAndClosed(t *testing.T) {
	f, store := newSlack(t), records(t)
	first := f.client(t, store)
	proof := send(t, first, notice(Opened))
	send(t, first, notice(Progress, later(2*time.Second), func(n *Notice) { n.Key = "inc-1/1/cordoned" }))
	second := f.client(t, store) // another leader
	send(t, second, notice(Opened))
	send(t, second, notice(Waiting, later(3*time.Second), func(n *Notice) { n.NeedsPerson, n.Person = true, "approve it" }))
	send(t, second, notice(Closed, later(4*time.Second), func(n *Notice) { n.Summary = "xid/79 on a1. Every rank steps again. No person is needed." }))
	send(t, first, notice(Progress, later(3*time.Second), func(n *Notice) { n.Key = "inc-1/1/placed" })) // late, from the leader before
	roots, replies := f.split()
	if len(roots) != 1 || len(replies) != 4 || proof != "message "+roots[0].TS+" in C1" {
		t.Fatalf("%d threads, %d replies, proof %q; want 1 and 4", len(roots), len(replies), proof)
	}
	if !strings.HasPrefix(roots[0].Text, ":white_check_mark: xid/79 on a1. Every rank steps again. No person is needed.\n") || roots[0].Edited != 3 {
		t.Errorf("the thread shows %q after %d edits", roots[0].Text, roots[0].Edited)
	}
	for k, r := range replies {
		if r.Thread != roots[0].TS || r.Broadcast != (k == 1) {
			t.Errorf("reply %+v", r)
		}
	}
}

func TestTwoLeadersAtOnceOpenOneThread(t *testing.T) {
	f, store := newSlack(t), records(t)
	var all sync.WaitGroup
	for range 6 {
		c := f.client(t, store)
		all.Go(func() {
			for range 100 {
				if _, err := c.Send(t.Context(), notice(Opened).tidy()); err == nil {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			t.Error("it never succeeds")
		})
	}
	all.Wait()
	if roots, _ := f.split(); len(roots) != 1 {
		t.Errorf("%d threads", len(roots))
	}
}

// The process ends, or the answer is lost, after Slack has stored the message and before that is recorded.
func TestAThreadWhoseOpeningWasNotRecordedIsFoundAgain(t *testing.T) {
	f, store := newSlack(t), records(t)
	f.lose = func(method string) bool { return method == "chat.postMessage" }
	if _, err := f.client(t, store).Send(t.Context(), notice(Opened).tidy()); err == nil {
		t.Fatal("the answer was not lost")
	}
	f.mu.Lock()
	f.lose = nil
	f.mu.Unlock()
	next := f.client(t, store)
	if _, err := next.Send(t.Context(), notice(Opened).tidy()); err == nil || !strings.Contains(err.Error(), errClaimed.Error()) {
		t.Fatalf("a claim that is fresh: %v", err)
	}
	next.o.Now = func() time.Time { return time.Now().Add(claimLasts + time.Second) }
	send(t, next, notice(Opened))
	send(t, next, notice(Closed, later(time.Minute)))
	if roots, _ := f.split(); len(roots) != 1 || roots[0].Edited == 0 {
		t.Errorf("threads %+v", roots)
	}
}

func TestAProcessThatStoodStillTakesItsMessageBack(t *testing.T) {
	f, store := newSlack(t), records(t)
	slow, fast := f.client(t, store), f.client(t, store)
	fast.o.Now = func() time.Time { return time.Now().Add(claimLasts + time.Second) }
	once := sync.OnceFunc(func() { send(t, fast, notice(Opened)) })
	inside := false
	f.before = func(method string) {
		if method == "chat.postMessage" && !inside {
			inside = true
			once()
		}
	}
	if _, err := slow.Send(t.Context(), notice(Opened).tidy()); err == nil {
		t.Error("the slow process has recorded its thread over the other's")
	}
	if roots, _ := f.split(); len(roots) != 1 {
		t.Errorf("%d threads", len(roots))
	}
}

func TestAThreadThatAPersonDeletedIsOpenedAgain(t *testing.T) {
	f, store := newSlack(t), records(t)
	c := f.client(t, store)
	send(t, c, notice(Opened))
	f.mu.Lock()
	f.messages = nil
	f.mu.Unlock()
	closed := notice(Closed, later(time.Minute)).tidy()
	if _, err := c.Send(t.Context(), closed); err == nil {
		t.Fatal("it was not noticed")
	}
	send(t, c, closed)
	if roots, _ := f.split(); len(roots) != 1 {
		t.Errorf("%d threads", len(roots))
	}
}

func TestSlacksErrorsAreToldApart(t *testing.T) {
	cases := map[string]struct {
		status  int
		header  http.Header
		body    string
		refused bool
		after   time.Duration
	}{
		"too many":        {429, http.Header{"Retry-After": {"30"}}, `{"ok":false,"error":"ratelimited"}`, false, 30 * time.Second},
		"down":            {500, nil, "oops", false, 0},
		"away":            {503, http.Header{"Retry-After": {"7"}}, "", false, 7 * time.Second},
		"internal":        {200, nil, `{"ok":false,"error":"internal_error"}`, false, 0},
		"not in channel":  {200, nil, `{"ok":false,"error":"not_in_channel"}`, true, 0},
		"revoked":         {200, nil, `{"ok":false,"error":"token_revoked ` + botToken + `"}`, true, 0},
		"a page of HTML":  {200, nil, "<html>", false, 0},
		"bad":             {400, nil, "no " + botToken, true, 0},
		"sent elsewhere":  {302, http.Header{"Location": {"http://127.0.0.1:1/steal"}}, "", true, 0},
		"an empty answer": {200, nil, "", false, 0},
	}
	store := records(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newSlack(t)
			f.fail = func(string) (int, http.Header, string) { return c.status, c.header, c.body }
			_, err := f.client(t, store).Send(t.Context(), notice(Finding, func(n *Notice) { n.Incident = "" }).tidy())
			if err == nil || isRefused(err) != c.refused || askedFor(err) != c.after || strings.Contains(err.Error(), botToken) {
				t.Errorf("error %v, refused %t, after %v", err, isRefused(err), askedFor(err))
			}
		})
	}
}

func TestTheRateLimitIsKept(t *testing.T) {
	f := newSlack(t)
	var times []time.Time
	f.fail = func(method string) (int, http.Header, string) {
		if times = append(times, time.Now()); len(times) < 3 {
			return 429, http.Header{"Retry-After": {"1"}}, `{"ok":false,"error":"ratelimited"}`
		}
		return 0, nil, ""
	}
	var c tally
	d, stop := run(t, Options{Receivers: []Receiver{f.client(t, records(t))}, First: time.Millisecond, Count: c.count})
	d.Tell(notice(Finding, func(n *Notice) { n.Incident = "" }))
	for end := time.Now().Add(20 * time.Second); c.of(Sent) == 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	if c.of(Sent) != 1 || c.of(Retried) != 2 || times[1].Sub(times[0]) < time.Second || times[2].Sub(times[1]) < time.Second {
		t.Errorf("results %v at %v", c.n, times)
	}
}

func TestTheTokensValidityIsItsCanary(t *testing.T) {
	f, store := newSlack(t), records(t)
	c := f.client(t, store)
	if err := c.Probe(t.Context(), Notice{Stage: Canary}); err != nil {
		t.Error(err)
	}
	c.o.Token = func() string { return "xoxb-other" }
	if err := c.Probe(t.Context(), Notice{Stage: Canary}); err == nil || strings.Contains(err.Error(), "xoxb-other") {
		t.Errorf("error %v", err)
	}
	if roots, _ := f.split(); len(roots) != 0 {
		t.Errorf("a canary is seen: %+v", roots)
	}
}

func TestHostileTextIsPlainInSlack(t *testing.T) {
	f, store := newSlack(t), records(t)
	bad := "<!channel> <https://evil|ok> & ``` \u202egnp.exe \x1b[31m \nNo person is needed."
	send(t, f.client(t, store), notice(Opened, func(n *Notice) {
		n.Summary, n.Broken, n.Detail, n.Signal = "", bad, strings.Repeat(bad, 1<<14), bad
	}))
	roots, _ := f.split()
	text := roots[0].Text
	if len(text) > 6000 || strings.Count(text, "<") != 1 || strings.ContainsAny(text, "\u202e\x1b") || strings.Count(text, "```") != 2 || !strings.Contains(text, "&lt;!channel&gt;") {
		t.Errorf("%d bytes: %.300q", len(text), text)
	}
	if first, _, _ := strings.Cut(text, "\n"); !strings.HasSuffix(first, "No person is needed.") {
		t.Errorf("first line %q", first)
	}
}

func isRefused(err error) bool { return strings.Contains(err.Error(), ErrRefused.Error()) }

func askedFor(err error) time.Duration {
	for ; err != nil; err = unwrapped(err) {
		if b, ok := err.(busy); ok { //nolint:errorlint // each layer is looked at
			return b.after
		}
	}
	return 0
}

func unwrapped(err error) error {
	if u, ok := err.(interface{ Unwrap() error }); ok { //nolint:errorlint // one layer
		return u.Unwrap()
	}
	return nil
}
