package remediator

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/page"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func TestEachWeekSetsWhatWouldHaveBeenDoneBesideWhatPeopleDid(t *testing.T) {
	sunday := time.Date(2026, 11, 22, 23, 50, 0, 0, time.UTC)
	row := func(id, node string, at time.Time, change ...func(*page.Row)) *page.Row {
		r := &page.Row{ID: id, Node: node, Opened: at, Outcome: incident.Observed, Mode: policy.Observe, Actions: []string{"cordon", "restart-job"}}
		for _, f := range change {
			f(r)
		}
		return r
	}
	rows := []*page.Row{
		row("agrees", "a1", sunday), row("differs", "a2", sunday), row("alone", "a3", sunday.Add(20*time.Minute)),
		row("held", "a4", sunday, func(r *page.Row) { r.Refused = "breaker" }),
		row("acted", "a1", sunday, func(r *page.Row) {
			r.Outcome, r.Mode, r.Answered = incident.Recovered, policy.Approve, incident.Approves
		}),
		row("rejected", "a1", sunday, func(r *page.Row) { r.Outcome, r.Mode, r.Answered = incident.Refused, policy.Approve, incident.Rejects }),
	}
	file := filepath.Join(t.TempDir(), "done.csv")
	deeds := "time,node,action\n2026-11-23T00:05:00Z,a1,cordon\n2026-11-22T23:55:00Z,a2,reboot\n2026-11-22T23:51:00Z,a4,cordon\n2026-11-10T00:00:00Z,z9,cordon\n"
	if err := os.WriteFile(file, []byte(deeds), 0o600); err != nil {
		t.Fatal(err)
	}
	now := sunday
	w := &weeks{file: file, now: func() time.Time { return now }}
	got, err := w.of(rows)
	if err != nil || len(got) != 3 {
		t.Fatalf("%d weeks, %v", len(got), err)
	}
	for k, want := range []struct {
		name                                       string
		n, agree, differ, alone, only, yes, refuse int
	}{{"2026-11-23", 1, 0, 0, 1, 0, 0, 0}, {"2026-11-16", 3, 1, 2, 0, 0, 1, 1}, {"2026-11-09", 0, 0, 0, 0, 1, 0, 0}} {
		g := got[k]
		if g.Name != want.name || len(g.Incidents) != want.n || g.Agree != want.agree || g.Differ != want.differ || g.Alone != want.alone || len(g.OnlyPeople) != want.only || g.Approved != want.yes || g.Rejected != want.refuse {
			t.Errorf("%+v, want %+v", g, want)
		}
	}
	if err := os.WriteFile(file, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(weeksLast + time.Second)
	if got, err = w.of(rows); err == nil || !strings.Contains(err.Error(), "no column") || len(got) != 2 {
		t.Errorf("with a wrong file: %d weeks, %v", len(got), err)
	}
}

func TestWhatAPersonDoesIsInTheAuditLogWithTheActor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	a, err := newAudit(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.person(page.Act{Actor: "olga", Verb: "approve", Object: "incident inc-1", Incident: "inc-1", Reason: "RMA"}); err != nil {
		t.Fatal(err)
	}
	a.close()
	raw, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(raw), `"stage":"intent","verb":"approve","object":"incident inc-1","incident":"inc-1","actor":"olga","reason":"RMA"`) {
		t.Errorf("%s %v", raw, err)
	}
	if err := a.person(page.Act{Actor: "olga"}); err == nil {
		t.Error("an audit log that cannot be written is no error")
	}
}
