package page

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

func (w *world) approvalOf(id string) string {
	w.t.Helper()
	i, _, err := w.store.Get(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return i.Approval
}

func TestAnAnswerIsWrittenIntoTheRecordAndTheAuditLogWithItsActor(t *testing.T) {
	w := newWorld(t)
	for act, word := range map[string]string{"approve": "approved", "reject": "rejected"} {
		w.put(asking("inc-" + act))
		b := w.signedIn(operatorToken)
		_, text := b.get("/incidents/inc-" + act)
		form := hiddenFields(text)
		form.Set("reason", "RMA 4711\u202e\x1b[31m\n")
		code, text, head := b.do(http.MethodPost, "/incidents/inc-"+act+"/"+act, form)
		if code != http.StatusSeeOther || head.Get("Location") != "/incidents/inc-"+act+"?done="+act {
			t.Fatalf("%d %s\n%s", code, head.Get("Location"), text)
		}
		if got, want := w.approvalOf("inc-"+act), word+" by olga at 2026-11-22 04:00:00: RMA 4711‹U+202E›‹U+001B›[31m"; got != want {
			t.Errorf("the record says %q, want %q", got, want)
		}
	}
	if len(w.acts) != 4 || w.acts[0].Done || !w.acts[1].Done || w.acts[1].Err != nil || w.acts[1].Actor != "olga" || !strings.HasPrefix(w.acts[1].Object, "incident inc-") {
		t.Errorf("the audit log holds %+v", w.acts)
	}
}

func TestAnAnswerToWhatThePersonDidNotSeeIsRefused(t *testing.T) {
	w := newWorld(t)
	w.put(asking("inc-1"))
	b := w.signedIn(operatorToken)
	_, text := b.get("/incidents/inc-1")
	form := hiddenFields(text)
	i := asking("inc-1")
	i.Faults[0].Node, i.Round = "a3", 2 // planned again, for another node
	w.put(i)
	code, text, _ := b.do(http.MethodPost, "/incidents/inc-1/approve", form)
	if code != http.StatusConflict || !strings.Contains(text, "has changed since you saw it") || w.approvalOf("inc-1") != "" {
		t.Errorf("%d %q", code, w.approvalOf("inc-1"))
	}
	if last := w.acts[len(w.acts)-1]; !last.Done || last.Err == nil {
		t.Errorf("the audit log says %+v", last)
	}
	w.put(healed("inc-1"))
	if code, _, _ = b.do(http.MethodPost, "/incidents/inc-1/approve", url.Values{"form": form["form"]}); code != http.StatusConflict {
		t.Errorf("an answer to an incident that is over: %d", code)
	}
	if code, _, _ = b.do(http.MethodPost, "/incidents/inc-2/approve", url.Values{"form": form["form"]}); code != http.StatusNotFound {
		t.Errorf("an answer to an incident that is not there: %d", code)
	}
	if code, _, _ = b.do(http.MethodPost, "/incidents/inc-1/explode", url.Values{"form": form["form"]}); code != http.StatusNotFound {
		t.Errorf("an unknown action: %d", code)
	}
}

func TestOfTwoAnswersAtOnceOneCounts(t *testing.T) {
	w := newWorld(t)
	w.put(asking("inc-1"))
	words := []string{"approve", "reject"}
	codes := make([]int, 8)
	var all sync.WaitGroup
	for k := range codes {
		b := w.signedIn(operatorToken)
		_, text := b.get("/incidents/inc-1")
		form := hiddenFields(text)
		all.Go(func() { codes[k], _, _ = b.do(http.MethodPost, "/incidents/inc-1/"+words[k%2], form) })
	}
	all.Wait()
	n := 0
	for _, c := range codes {
		if c == http.StatusSeeOther {
			n++
		} else if c != http.StatusConflict {
			t.Errorf("answered with %d", c)
		}
	}
	if n != 1 || w.approvalOf("inc-1") == "" {
		t.Errorf("%d of %d answers count: %v", n, len(codes), codes)
	}
}

func TestWhatCannotBeAuditedIsNotDone(t *testing.T) {
	w := newWorld(t)
	w.put(asking("inc-1"))
	b := w.signedIn(operatorToken)
	_, text := b.get("/incidents/inc-1")
	w.mu.Lock()
	w.audit = errors.New("disk full")
	w.mu.Unlock()
	if code, _, _ := b.do(http.MethodPost, "/incidents/inc-1/approve", hiddenFields(text)); code != http.StatusInternalServerError || w.approvalOf("inc-1") != "" {
		t.Errorf("%d %q", code, w.approvalOf("inc-1"))
	}
}

func TestAParentIsHeldAndReleasedForAll(t *testing.T) {
	w := newWorld(t)
	i := asking("inc-p")
	i.State, i.Group = incident.Grouped, &incident.Group{Domain: incident.Domain{Kind: incident.RackDomain, Name: "rack=r7"}, Children: []incident.Child{{ID: "c", Node: "a2"}}}
	w.put(i)
	b := w.signedIn(operatorToken)
	_, text := b.get("/incidents/inc-p")
	contains(t, text, `action="/incidents/inc-p/hold"`)
	if code, text, _ := b.do(http.MethodPost, "/incidents/inc-p/hold", hiddenFields(text)); code != http.StatusSeeOther || !strings.HasPrefix(w.approvalOf("inc-p"), "held by olga") {
		t.Errorf("%d %q\n%s", code, w.approvalOf("inc-p"), text)
	}
	if code, text, _ := b.do(http.MethodPost, "/incidents/inc-p/reject", url.Values{"form": hiddenFields(text)["form"]}); code != http.StatusConflict || !strings.Contains(text, "has not taken the last answer in yet") {
		t.Errorf("an answer before the last one was taken in: %d", code)
	}
}

func TestANodeIsHeldReleasedAndGivenBackInTheNameOfAPerson(t *testing.T) {
	w := newWorld(t)
	i := asking("inc-1")
	i.Cordons = []string{"a2"}
	w.put(i)
	_ = w.nodes.change("a2", func(n *fleet.Node) { n.Quarantined, n.Unschedulable = "inc-1", true })
	b := w.signedIn(operatorToken)
	post := func(path string, want int) {
		t.Helper()
		_, text := b.get("/incidents/inc-1")
		form := hiddenFields(text)
		form.Set("node", "a2")
		form.Set("incident", "inc-1")
		form.Set("reason", "checking")
		if code, text, _ := b.do(http.MethodPost, path, form); code != want {
			t.Errorf("%s: %d\n%s", path, code, text)
		}
	}
	_, text := b.get("/incidents/inc-1")
	contains(t, text, "Hold a2", "Cancel: uncordon a2", "pitcrew node hold a2 --reason &#34;why&#34;")
	post("/incidents/inc-1/hold-node", http.StatusSeeOther)
	if n := fleet.Find(w.nodes.Fleet(), "a2"); n.Held != "olga: checking" {
		t.Errorf("held: %q", n.Held)
	}
	_, text = b.get("/incidents/inc-1")
	contains(t, text, "Release a2", "pitcrew node release a2")
	post("/incidents/inc-1/release-node", http.StatusSeeOther)
	w.nodes.err = cluster.ErrForbidden
	post("/nodes/a2/uncordon", http.StatusForbidden)
	w.nodes.err = cluster.ErrNotQuarantined
	post("/nodes/a2/uncordon", http.StatusConflict)
	w.nodes.err = nil
	post("/nodes/a2/uncordon", http.StatusSeeOther)
	if l := w.nodes.lifted; len(l) != 1 || l[0].By != "olga" || l[0].Incident != "inc-1" || l[0].Reason != "checking" {
		t.Errorf("lifted: %+v", l)
	}
	if len(w.acts) != 10 {
		t.Errorf("%d lines in the audit log: %+v", len(w.acts), w.acts)
	}
}

func TestPitcrewIsPausedAndEachPageSaysSo(t *testing.T) {
	w := newWorld(t)
	b := w.signedIn(operatorToken)
	_, text := b.get("/")
	form := hiddenFields(text)
	form.Set("reason", "maintenance")
	if code, _, _ := b.do(http.MethodPost, "/switch/pause", form); code != http.StatusSeeOther {
		t.Fatalf("%d", code)
	}
	w.until("it is paused", func() bool { return w.page.state().Paused != "" })
	_, text = b.get("/fleet")
	contains(t, text, "Pitcrew is paused by olga since 2026-11-22 04:00:00 UTC (maintenance)", `action="/switch/resume"`)
	if code, _, _ := b.do(http.MethodPost, "/switch/resume", form); code != http.StatusSeeOther {
		t.Fatalf("%d", code)
	}
	w.until("it acts again", func() bool { return w.page.state().Paused == "" })
}
