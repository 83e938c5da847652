package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// hostile is what an attacker puts into every text that it can reach.
const hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b]0;pwned\x07\x1b[2J\u202egnp.exe\u2066\u200f\u0000\u2028{{.}}"

func hostileIncident(id string) incident.Incident {
	i := healed(id)
	long := strings.Repeat("A", 200_000) + hostile
	i.Reason, i.Waiting, i.Approval = hostile, hostile, hostile
	i.Job = &event.Job{Kind: hostile, Namespace: hostile, Name: hostile}
	f := &i.Faults[0]
	f.Signal, f.Node, f.GPU, f.Sev = hostile, hostile, hostile, event.Severity(hostile)
	f.Event.Data.Cause.Name = hostile
	v := 3.0
	f.Event.Data.Evidence = event.Evidence{Raw: long, Signal: hostile, Unit: hostile, Baseline: hostile, Value: &v, Upper: &v, Signals: []event.Witness{{Signal: hostile}},
		Samples: []event.Sample{{S: -1, V: 1}, {S: 1, V: 9}}}
	j := policy.Judgement{Policies: []policy.PolicyTrace{{Policy: hostile, Mode: policy.Mode(hostile), Rules: []policy.RuleTrace{{Rule: hostile, Why: policy.Why(hostile), Detail: hostile}}}}}
	i.Plan.Decision, _ = json.Marshal(j)
	i.Plan.Policy, i.Plan.Rule, i.Plan.Mode, i.Plan.Steps[0].Do = hostile, hostile, policy.Mode(hostile), policy.Verb(hostile)
	i.Guards = []guard.Verdict{{Guard: guard.Name(hostile), Asked: true, Detail: hostile}}
	m := &i.Moves[0]
	m.OldPod, m.From, m.To, m.Decision.Reason, m.Decision.Candidates[1].Node, m.Decision.Candidates[1].Detail = hostile, hostile, hostile, hostile, hostile, hostile
	i.Cordons = []string{hostile}
	i.Notes[0].Text = long
	i.Writes = []incident.Write{{Verb: hostile, Object: hostile, Error: hostile}}
	return i
}

func TestHostileTextIsShownAsText(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Weeks = func([]*Row) ([]Week, error) {
			x := Would{ID: hostile, Signal: hostile, Node: hostile, Actions: []string{hostile}, Refused: hostile, People: hostile}
			return []Week{{Name: hostile, Incidents: []Would{x}, OnlyPeople: []Deed{{Node: hostile, Action: hostile}}}}, fmt.Errorf("%s", hostile)
		}
	})
	w.put(hostileIncident("inc-1"))
	open := hostileIncident("inc-2")
	open.State, open.Parent = incident.Planned, "inc-3"
	w.put(open)
	_ = w.nodes.change("a2", func(n *fleet.Node) {
		n.Labels = map[string]string{"pitcrew.dev/rack": hostile}
		n.Held, n.Quarantined = hostile, hostile
	})
	w.page.nodes.take(bus.Condition{Node: "a2", Key: hostile, Active: true, Event: &event.Event{Data: event.Data{Severity: event.Fatal, Target: event.Target{GPU: hostile}}}})
	b := w.signedIn(operatorToken)
	escaped := regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f-\x9f\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]`)
	q := "?q=" + strings.NewReplacer("<", "%3C", ">", "%3E", "\x1b", "%1B", "\x07", "%07", "\u202e", "%E2%80%AE", "\"", "%22", " ", "+", "\u0000", "%00", "{", "%7B", "}", "%7D", "'", "%27", "\u2066", "%E2%81%A6", "\u200f", "%E2%80%8F", "\u2028", "%E2%80%A8").Replace(hostile)
	for _, path := range []string{"/", "/incidents/inc-1", "/incidents/inc-2", "/fleet", "/observed", "/" + q, "/fleet" + q, "/fleet?job=Job/%3Cscript%3E/%1B", "/incidents/%3Cscript%3Ealert(1)%3C%2Fscript%3E%1B", "/runbooks/%3Cscript%3E"} {
		code, text := b.get(path)
		if code >= 500 || len(text) < 500 {
			t.Fatalf("%s: %d", path, code)
		}
		lower := strings.ToLower(text)
		for _, bad := range []string{"<script>alert", "<img", "pwned\x07"} {
			if strings.Contains(lower, bad) {
				t.Errorf("%s holds %q", path, bad)
			}
		}
		if at := escaped.FindStringIndex(html.UnescapeString(text)); at != nil {
			t.Errorf("%s holds %q: …%q…", path, text[at[0]:at[1]], html.UnescapeString(text)[max(0, at[0]-60):at[1]+10])
		}
		if len(text) > 200_000 {
			t.Errorf("%s has %d bytes: a long text was not cut", path, len(text))
		}
	}
	_, text := b.get("/incidents/inc-1")
	contains(t, html.UnescapeString(text), "‹U+202E›", "‹U+001B›", "(cut, 200")
	contains(t, text, "&lt;script&gt;")
}

func TestTextIsCutBetweenCharactersAndHiddenOnesAreShown(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                "plain",
		"ä€𝄞":                  "ä€𝄞",
		"a\nb\tc":              "a b c",
		"\xff\xfe":             "��",
		"x\u200by":             "x‹U+200B›y",
		strings.Repeat("€", 9): "€€€ … (cut, 27 bytes in all)",
	} {
		if got := clean(text, 10); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestWithoutTheStoreThePageShowsWhatItKnowsAndSaysSo(t *testing.T) {
	w := newWorld(t)
	w.put(asking("inc-1"))
	w.put(healed("inc-2"))
	b := w.signedIn(operatorToken)
	_, text := b.get("/incidents/inc-1")
	form := hiddenFields(text)
	w.server.Stop()
	w.until("the connection is lost", func() bool { return !w.bus.Connected() })
	code, text := b.get("/")
	if code != http.StatusOK {
		t.Errorf("the list: %d", code)
	}
	contains(t, text, "NATS does not answer", `href="/incidents/inc-1"`)
	if code, text = b.get("/incidents/inc-1"); code != http.StatusOK || !strings.Contains(text, "as it was looked at last") || !strings.Contains(text, "fallen off the bus") {
		t.Errorf("an incident that was looked at: %d", code)
	}
	if code, text = b.get("/incidents/inc-2"); code != http.StatusServiceUnavailable || !strings.Contains(text, "The rest is in NATS") {
		t.Errorf("another incident: %d", code)
	}
	if code, text, _ = b.do(http.MethodPost, "/incidents/inc-1/approve", form); code != http.StatusServiceUnavailable || !strings.Contains(text, "Nothing was done") || len(w.acts) > 0 {
		t.Errorf("an answer: %d", code)
	}
	for _, path := range []string{"/fleet", "/observed", "/runbooks/PitcrewIncident"} {
		if code, _ := b.get(path); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestAClockThatIsOffIsNamedAndStopsNothing(t *testing.T) {
	w := newWorld(t)
	w.put(healed("inc-1"))
	w.put(asking("inc-2"))
	for name, off := range map[string]time.Duration{"behind": -48 * time.Hour, "ahead": 10 * 365 * 24 * time.Hour} {
		w.mu.Lock()
		w.now = began.Add(off)
		w.mu.Unlock()
		b := w.signedIn(readerToken)
		code, list := b.get("/")
		code2, one := b.get("/incidents/inc-1")
		code3, running := b.get("/incidents/inc-2")
		if code != 200 || code2 != 200 || code3 != 200 {
			t.Fatalf("%s: %d %d %d", name, code, code2, code3)
		}
		if behind := name == "behind"; strings.Contains(list, "dated after this server's clock") != behind || strings.Contains(one, "ahead of this server's clock") != behind {
			t.Errorf("%s: what is said of the clock", name)
		}
		contains(t, one, "10.0 s") // the phases of a closed incident do not depend on this clock
		if strings.Contains(running, "-1") && strings.Contains(running, `width="-`) {
			t.Errorf("%s: a negative bar", name)
		}
	}
}

func TestTwoHundredClientsAreToldOfAChangeAndASlowOneHoldsNobodyUp(t *testing.T) {
	const clients = 200
	w := newWorld(t)
	w.put(asking("inc-1"))
	before := runtime.NumGoroutine()
	slow := w.page.hub.join() // takes nothing
	defer w.page.hub.leave(slow)
	heard := make(chan struct{}, clients)
	var ready, all sync.WaitGroup
	tr := &http.Transport{MaxConnsPerHost: 0}
	defer tr.CloseIdleConnections()
	ready.Add(clients)
	stop := make(chan struct{})
	for range clients {
		all.Go(func() {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/live", nil)
			req.Header.Set("Authorization", "Bearer "+readerToken)
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Error(err)
				ready.Done()
				return
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			state := false
			for lines.Scan() {
				if !state && lines.Text() == "event: state" {
					state = true
					ready.Done()
				}
				if strings.HasPrefix(lines.Text(), `data: {"changed":["inc-1"]`) {
					break
				}
			}
			heard <- struct{}{}
			<-stop
		})
	}
	ready.Wait()
	from := time.Now()
	w.put(healed("inc-1"))
	for k := range clients {
		select {
		case <-heard:
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of %d clients heard of the change", k, clients)
		}
	}
	t.Logf("%d clients were told within %s", clients, time.Since(from))
	close(stop)
	all.Wait()
	tr.CloseIdleConnections()
	w.until("the streams have ended", func() bool { w.page.hub.mu.Lock(); defer w.page.hub.mu.Unlock(); return len(w.page.hub.streams) == 1 })
	w.until("their goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+20 })
}

func TestTooManyStreamsAreRefusedAndAStreamGathers(t *testing.T) {
	h := newHub()
	var last *stream
	for range maxStreams {
		last = h.join()
	}
	if h.join() != nil {
		t.Error("one too many is taken")
	}
	for k := range 10 * maxNamed {
		h.tell(fmt.Sprint("inc-", k))
	}
	if n := last.take(); !n.All || len(n.Changed) > 0 || len(last.changed) > 0 {
		t.Errorf("a slow stream holds %d ids, all %t", len(n.Changed), n.All)
	}
	h.tell("inc-7")
	if n := last.take(); n.All || len(n.Changed) != 1 {
		t.Errorf("%+v", n)
	}
}
