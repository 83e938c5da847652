package remediator

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

func TestTheMetricAndTheTimelineDateARecoveryFromTheSameMoment(t *testing.T) {
	found, none := noon, int64(0)
	for name, c := range map[string]struct {
		typ           event.Type
		onset, opened time.Duration // from when it was found
		want          float64       // seconds
	}{
		"a rank's last sign of life":                {event.Fault, -1600 * time.Millisecond, time.Second, 3.6},
		"it is found as it begins":                  {event.Fault, 0, time.Second, 2},
		"an onset after it was found":               {event.Fault, time.Second, 2 * time.Second, 2},
		"an onset that nobody can believe":          {event.Fault, -2 * time.Hour, time.Second, 2},
		"a node whose clock runs ahead":             {event.Fault, -100 * time.Millisecond, -500 * time.Millisecond, 2.5},
		"when a drift began is not what was healed": {event.Anomaly, -20 * time.Minute, time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			first := found.Add(2 * time.Second)
			i := incident.Incident{ID: "inc-1", State: incident.Closed, Outcome: incident.Recovered, Opened: found.Add(c.opened), FirstStep: &first, LostSteps: &none,
				Faults: []incident.Fault{{Signal: "rank/hung", At: found, Event: event.Event{Type: c.typ, Time: found, Data: event.Data{Onset: found.Add(c.onset)}}}},
				Notes:  []incident.Note{{At: first, State: incident.Verified, TookS: 1, Text: "all stepped"}}}
			m := newMetrics()
			m.observe(&i)
			all, err := m.reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			sum := -1.0
			for _, f := range all {
				if f.GetName() == "pitcrew_job_recovery_seconds" {
					sum = f.GetMetric()[0].GetHistogram().GetSampleSum()
				}
			}
			var b strings.Builder
			i.Write(&b)
			if line := fmt.Sprintf("+%.3f s  verified", c.want); fmt.Sprintf("%.3f", sum) != fmt.Sprintf("%.3f", c.want) || !strings.Contains(b.String(), line) {
				t.Errorf("the metric says %.3f s, want %.3f; the timeline:\n%s", sum, c.want, b.String())
			}
		})
	}
}

func TestEachOutcomeIsCountedFromZero(t *testing.T) {
	source, err := os.ReadFile("incident/incident.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^\t\w+ +Outcome = "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(declared) < 10 {
		t.Fatalf("only %d outcomes found", len(declared))
	}
	all, err := newMetrics().reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				there[f.GetName()+" "+l.GetValue()] = m.GetCounter().GetValue() == 0
			}
		}
	}
	for _, d := range declared {
		for _, name := range []string{"pitcrew_incidents_closed_total", "pitcrew_incident_children_closed_total"} {
			if !there[name+" "+d[1]] {
				t.Errorf("%s has no series at 0 for outcome %s: increase() would miss its first incident", name, d[1])
			}
		}
	}
}

func TestHowFarBehindTheEventsAreIsExported(t *testing.T) {
	m := newMetrics()
	m.backlog(bus.Queue{InFlight: 3, Pending: 2_400_000, Oldest: 264 * time.Hour})
	all, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range all {
		for _, x := range f.GetMetric() {
			name := f.GetName()
			for _, l := range x.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = x.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{"pitcrew_events_waiting delivered": 3, "pitcrew_events_waiting stream": 2_400_000, "pitcrew_events_oldest_seconds": 264 * 3600} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
