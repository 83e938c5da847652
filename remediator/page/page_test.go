package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

const (
	readerToken   = "reader-token-reader-token-1"
	operatorToken = "operator-token-operator-tok"
	accessText    = "tokens:\n- {name: rita, role: reader, token: " + readerToken + "}\n- {name: olga, role: operator, token: " + operatorToken + "}\n" +
		"proxy:\n  from: [192.0.2.0/24]\n  operators: [sre]\n"
)

var began = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// nodes is a cluster whose nodes a test sets.
type nodes struct {
	mu     sync.Mutex
	fleet  []*fleet.Node
	lifted []cluster.Lift
	err    error
}

func (n *nodes) Fleet() []*fleet.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fleet
}

func (n *nodes) change(name string, f func(*fleet.Node)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return n.err
	}
	out := slices.Clone(n.fleet)
	for k, x := range out {
		if x.Name == name {
			y := *x
			f(&y)
			out[k] = &y
		}
	}
	n.fleet = out
	return nil
}

func (n *nodes) Jobs() []event.Job {
	return []event.Job{{Kind: "Job", Namespace: "train", Name: "llm"}}
}

func (n *nodes) Gang(_ context.Context, j event.Job) (cluster.Gang, error) {
	if j.Name != "llm" {
		return cluster.Gang{}, cluster.ErrNotFound
	}
	g := cluster.Gang{Job: event.Job{Kind: "Job", Namespace: "train", Name: "llm", UID: "uid-llm"}, Size: 2}
	g.Members = []cluster.Member{{Index: 0, Namespace: "train", Pod: "llm-0", Node: "a1"}, {Index: 1, Namespace: "train", Pod: "llm-1", Node: "a3"}}
	return g, nil
}

func (n *nodes) LiftQuarantine(_ context.Context, node string, l cluster.Lift) error {
	return n.change(node, func(x *fleet.Node) {
		n.lifted = append(n.lifted, l)
		x.Quarantined, x.Unschedulable = "", false
	})
}

func (n *nodes) HoldNode(_ context.Context, node, why string) error {
	return n.change(node, func(x *fleet.Node) { x.Held = why })
}

func (n *nodes) ReleaseNode(_ context.Context, node string) error {
	return n.change(node, func(x *fleet.Node) { x.Held = "" })
}

// world is a page on a real store, with a clock and an audit log of its own.
type world struct {
	t      testing.TB
	page   *Page
	url    string
	server *bus.Server
	bus    *bus.Bus
	store  bus.Bucket[incident.Incident]
	nodes  *nodes
	access string

	mu    sync.Mutex
	acts  []Act
	audit error // of the next line
	now   time.Time
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) log(a Act) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.audit != nil {
		return w.audit
	}
	w.acts = append(w.acts, a)
	return nil
}

func newWorld(t testing.TB, change ...func(*Options)) *world {
	t.Helper()
	w := &world{t: t, server: bustest.Server(t), nodes: &nodes{}, now: began.Add(time.Hour), access: filepath.Join(t.TempDir(), "access.yaml")}
	w.bus = bustest.Connect(t, w.server.URL())
	w.store = bus.NewBucket[incident.Incident](w.bus, bus.IncidentBucket)
	for _, name := range []string{"a1", "a2", "a3"} {
		w.nodes.fleet = append(w.nodes.fleet, &fleet.Node{Name: name, Ready: true, Labels: map[string]string{"pitcrew.dev/rack": "r" + name[1:]},
			GPUs: fleet.GPUs{Resource: "nvidia.com/gpu", Total: 8}, Free: map[string]int64{"nvidia.com/gpu": 5}})
	}
	if err := os.WriteFile(w.access, []byte(accessText), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{
		Access: w.access, Actions: true, Cluster: "c", Incidents: w.store, Conditions: w.bus.Conditions, Kill: w.bus.Control(), Killed: w.bus.WatchKillSwitch,
		Attempts: func(context.Context, string) (bus.Attempt, error) {
			return bus.Attempt{NProc: 2, WorldSize: 4, Attempt: 1}, nil
		},
		Connected: w.bus.Connected, Nodes: w.nodes, Audit: w.log, Now: w.clock, Log: slog.New(slog.DiscardHandler),
		Weeks: func([]*Row) ([]Week, error) { return nil, nil },
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	if w.page, err = New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); w.page.Follow(ctx) }()
	s := httptest.NewServer(w.page.Handler())
	w.url = s.URL
	t.Cleanup(func() { s.CloseClientConnections(); s.Close(); cancel(); <-ended })
	w.until("the store is read", func() bool { ready, _ := w.page.mirror.ready(); return ready })
	return w
}

func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("not in time: " + what)
		}
	}
}

// put stores a record, and waits until the page has it.
func (w *world) put(i incident.Incident) {
	w.t.Helper()
	_, rev, err := w.store.Get(w.t.Context(), i.ID)
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		w.t.Fatal(err)
	}
	rev, err = w.store.Put(w.t.Context(), i.ID, i, rev)
	if err != nil {
		w.t.Fatal(err)
	}
	w.until("the page has "+i.ID, func() bool { r := w.page.mirror.row(i.ID); return r != nil && r.rev >= rev })
}

// browser keeps cookies, and follows no redirect.
type browser struct {
	w *world
	c *http.Client
	// head is added to each request.
	head map[string]string
}

func (w *world) browser() *browser {
	jar, _ := cookiejar.New(nil)
	return &browser{w: w, c: &http.Client{Jar: jar, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (b *browser) do(method, path string, form url.Values) (int, string, http.Header) {
	b.w.t.Helper()
	req, err := http.NewRequestWithContext(b.w.t.Context(), method, b.w.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		b.w.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for k, v := range b.head {
		req.Header.Set(k, v)
	}
	resp, err := b.c.Do(req)
	if err != nil {
		b.w.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		b.w.t.Fatal(err)
	}
	return resp.StatusCode, string(raw), resp.Header
}

func (b *browser) get(path string) (int, string) {
	code, text, _ := b.do(http.MethodGet, path, nil)
	return code, text
}

var formValue = regexp.MustCompile(`name="(form|seen)" value="([^"]*)"`)

// hidden are the hidden fields of a page's forms.
func hiddenFields(text string) url.Values {
	v := url.Values{}
	for _, m := range formValue.FindAllStringSubmatch(text, -1) {
		v.Set(m[1], m[2])
	}
	return v
}

// signedIn is a browser of whoever has the token.
func (w *world) signedIn(token string) *browser {
	w.t.Helper()
	b := w.browser()
	_, text := b.get("/login")
	v := hiddenFields(text)
	v.Set("token", token)
	if code, text, _ := b.do(http.MethodPost, "/login", v); code != http.StatusSeeOther {
		w.t.Fatalf("sign in: %d\n%s", code, text)
	}
	return b
}

// asking is an incident that waits for a person.
func asking(id string) incident.Incident {
	rank := 1
	i := incident.Incident{
		ID: id, Cluster: "c", State: incident.Planned, Furthest: incident.Planned, Opened: began.Add(2 * time.Second), StateAt: began.Add(3 * time.Second), Round: 1,
		Faults: []incident.Fault{{Signal: "xid/79", Sev: event.Fatal, At: began, Node: "a2", GPU: "GPU-1", Rank: &rank, Moves: true,
			Event: event.Event{Type: event.Fault, Time: began, Data: event.Data{Cause: event.Cause{Kind: "xid", Code: "79", Name: "fell-off-bus"}, Severity: event.Fatal,
				Evidence: event.Evidence{Raw: "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus."}}}}},
		Job: &event.Job{Kind: "Job", Namespace: "train", Name: "llm", UID: "uid-llm"}, WorldSize: 4,
		Plan: &incident.Plan{Policy: "gpu-hardware", Rule: "gpu-gone", Mode: policy.Approve, NeedsApproval: true,
			Steps: []policy.PlannedStep{{Step: policy.Step{Do: policy.Cordon}}, {Step: policy.Step{Do: policy.RestartJob}}}},
		Guards:  []guard.Verdict{{Guard: guard.Breaker, Asked: true, Allowed: true, Limit: "5", Current: "1"}, {Guard: guard.Hold, Asked: true, Allowed: false, Detail: "held by ann"}},
		Waiting: "a person's yes: pitcrew incident approve " + id, Wait: &incident.Wait{Reason: incident.ReasonApproval, Since: began.Add(3 * time.Second), Reported: began.Add(3 * time.Second)},
	}
	j := policy.Judgement{Policy: "gpu-hardware", Rule: "gpu-gone", Policies: []policy.PolicyTrace{{Policy: "gpu-hardware", Mode: policy.Approve, Applies: true, Chosen: true, Rules: []policy.RuleTrace{
		{Rule: "ecc-contained", Why: policy.WhySignal, Detail: "it takes xid/94"}, {Rule: "gpu-gone", Matched: true, Detail: "signal xid/79"}}}}}
	i.Plan.Decision, _ = json.Marshal(j)
	i.Notes = []incident.Note{
		{At: began.Add(2 * time.Second), State: incident.Detected, Text: "xid/79 on a2"},
		{At: began.Add(2500 * time.Millisecond), State: incident.Correlated, TookS: 0.5, Text: "Job train/llm: 2 pods"},
		{At: began.Add(3 * time.Second), State: incident.Planned, TookS: 0.5, Text: "policy gpu-hardware, rule gpu-gone"},
	}
	return i
}

// healed is an incident that Pitcrew dealt with.
func healed(id string) incident.Incident {
	i := asking(id)
	lost, from := int64(10), int64(20)
	i.State, i.Outcome, i.Reason, i.Waiting, i.Wait, i.Plan.NeedsApproval = incident.Closed, incident.Recovered, "stepping again from step 20", "", nil, false
	i.Cordons, i.LostSteps, i.ResumedStep, i.Restarts = []string{"a2"}, &lost, &from, 1
	i.Moves = []incident.Move{{Index: 1, OldPod: "llm-1", From: "a2", To: "a3", Decision: &placement.Decision{Node: "a3", Reason: "same class", Candidates: []placement.Candidate{
		{Node: "a3", Chosen: true, Reason: "chosen"}, {Node: "b1", Reason: "too-far", MaxDistance: 1, Detail: "1 tier farther from the gang than a2, 0 allowed"}}}}}
	i.ClosedAt = began.Add(10 * time.Second)
	i.StateAt = i.ClosedAt
	i.Notes = append(i.Notes, incident.Note{At: began.Add(4 * time.Second), State: incident.Cordoned, TookS: 1, Text: "a2"}, incident.Note{At: i.ClosedAt, State: incident.Closed, TookS: 6, Text: "recovered"})
	return i
}

func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestThePageOfAnIncidentTellsWhatHappenedWhyAndHowLongEachPartTook(t *testing.T) {
	w := newWorld(t)
	w.put(healed("inc-1"))
	_ = w.nodes.change("a2", func(n *fleet.Node) { n.Quarantined, n.Unschedulable = "inc-1", true })
	b := w.signedIn(readerToken)
	code, text := b.get("/incidents/inc-1")
	if code != http.StatusOK {
		t.Fatalf("%d\n%s", code, text)
	}
	contains(t, text, "xid/79 (fell-off-bus) on a2 hit Job train/llm", "Recovered: stepping again from step 20", "Repair a2", "fallen off the bus",
		"gpu-gone", "because <bdi>signal xid/79</bdi>", "it is for other signals: it takes xid/94", "too-far", "1 tier farther", "✓ chosen",
		"Steps lost", `href="/runbooks/PitcrewIncident"`, "pitcrew node uncordon a2", `class="no"`)
	if strings.Contains(text, `action="/nodes/a2/uncordon"`) {
		t.Error("a reader is shown a form to act with")
	}
	_, list := b.get("/")
	contains(t, list, `href="/incidents/inc-1"`, "recovered", "1 to 1 of 1 incident")
	_, fl := b.get("/fleet?job=Job/train/llm")
	contains(t, fl, "2 of 2 pods, 4 ranks, attempt 1", "ranks 0, 1", "ranks 2, 3")
	if strings.Contains(fl, "a2;") {
		t.Error("a node without ranks of the chosen job is shown")
	}
	_, all := b.get("/fleet")
	contains(t, all, "Quarantined by Pitcrew <span class=\"n\">1</span>", "9 of 24 GPUs in use", `class="node s-quarantined"`)
	if code, _ := b.get("/incidents/inc-none"); code != http.StatusNotFound {
		t.Errorf("an incident that is not there: %d", code)
	}
}

func TestPhasesOfTheWaterfallAccountForEverySecond(t *testing.T) {
	for name, change := range map[string]func(*incident.Incident){
		"a healed one":                   func(*incident.Incident) {},
		"one with notes that were cut":   func(i *incident.Incident) { i.Notes = slices.Delete(i.Notes, 1, 3) },
		"one whose clock was set back":   func(i *incident.Incident) { i.Notes[3].At = began.Add(-time.Hour) },
		"an open one":                    func(i *incident.Incident) { i.State = incident.Cordoned },
		"one of which only a row exists": func(i *incident.Incident) { i.Notes = nil },
	} {
		t.Run(name, func(t *testing.T) {
			i := healed("inc-1")
			change(&i)
			now := began.Add(time.Minute)
			want := 10 * time.Second
			if i.Open() {
				want = time.Minute
			}
			f := newWaterfall(&i, now)
			var sum time.Duration
			at := 0.0
			for _, p := range f.Phases {
				sum += p.lasts
				if d := p.Start - at; d > 1e-6 || d < -1e-6 || p.X < 0 || p.X+p.W > chartW+1e-6 {
					t.Errorf("phase %s begins at %g, the one before ends at %g; bar %g+%g", p.Name, p.Start, at, p.X, p.W)
				}
				at = p.Start + p.Took
			}
			if sum != want {
				t.Errorf("%s of %s are accounted for: %+v", sum, want, f.Phases)
			}
			gap := slices.ContainsFunc(f.Phases, func(p phase) bool { return p.Name == "not recorded" })
			if cut := name == "one with notes that were cut" || name == "one whose clock was set back"; gap != cut {
				t.Errorf("time that the record does not explain is named: %t", gap)
			}
			if skew := name == "one whose clock was set back"; f.Skewed != skew {
				t.Errorf("skewed: %t", f.Skewed)
			}
		})
	}
}

func TestTheListIsFilteredSearchedAndPaged(t *testing.T) {
	w := newWorld(t)
	for k := range 120 {
		i := healed(fmt.Sprintf("inc-%03d", k))
		i.Opened = began.Add(time.Duration(k) * time.Minute / 4)
		if k%40 == 0 {
			i = asking(i.ID)
		}
		w.put(i)
	}
	child := healed("inc-child")
	child.Parent = "inc-parent"
	w.put(child)
	parent := asking("inc-parent")
	parent.State, parent.Group = incident.Grouped, &incident.Group{Domain: incident.Domain{Kind: incident.RackDomain, Name: "rack=r7"}, Children: []incident.Child{{ID: "inc-child", Node: "a2"}}}
	w.put(parent)
	b := w.signedIn(readerToken)
	rows := func(text string) int { return strings.Count(text, `class="go"`) }
	_, text := b.get("/")
	if rows(text) != perPage || strings.Contains(text, "inc-child") {
		t.Errorf("the first page has %d rows", rows(text))
	}
	contains(t, text, "1 to 50 of 121 incidents", `rel="next"`, "3 incidents</strong> wait")
	if _, text = b.get("/?page=2"); rows(text) != 21 || strings.Contains(text, `rel="next"`) {
		t.Errorf("the last page has %d rows", rows(text))
	}
	if _, text = b.get("/?page=999999999999"); rows(text) != 21 {
		t.Errorf("a page beyond the last has %d rows", rows(text))
	}
	if _, text = b.get("/?show=asks"); rows(text) != 3 {
		t.Errorf("%d rows wait for an answer", rows(text))
	}
	if _, text = b.get("/?q=INC-007+a2"); rows(text) != 1 || !strings.Contains(text, "inc-007") {
		t.Errorf("a search finds %d rows", rows(text))
	}
	if _, text = b.get("/?parent=inc-parent"); rows(text) != 1 {
		t.Errorf("the parent's list has %d rows", rows(text))
	}
	if _, text = b.get("/incidents/inc-parent"); !strings.Contains(text, `href="/incidents/inc-child"`) {
		t.Error("the page of a parent does not list its child")
	}
	from := began.Unix()
	if _, text = b.get(fmt.Sprintf("/?from=%d&to=%d", from, from+60)); !strings.Contains(text, "of 7 incidents") {
		t.Errorf("a span of a minute: %d rows", rows(text))
	}
}
