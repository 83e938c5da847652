package remediator

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/semconv"
)

// recorded builds the events of a week: what a gateway and a node said of rank 3 of a job of four.
type recorded struct{ events []event.Event }

func (r *recorded) slow(rank int, from, to time.Duration) {
	node, attempt := "n"+itoa(rank), 0
	e := event.Event{ID: fmt.Sprint(straggler, rank, from), Type: event.Anomaly, Source: event.GatewaySource("c", "gw", "detector"), Time: noon.Add(from + 2*time.Second), Data: event.Data{
		Target: event.Target{Node: node, PodUID: "pod-" + node, GPU: "GPU-" + node, Rank: &rank, WorldSize: 4, Attempt: &attempt, Job: &event.Job{Kind: "Job", Namespace: "ml", Name: "llm", UID: "job"}},
		Cause:  event.Cause{Kind: "rank", Name: "straggler"}, Severity: event.Warning, Onset: noon.Add(from),
		Evidence: event.Evidence{Signal: semconv.TrainComputeDuration, DurationS: 2, LostGPUSeconds: 4}}} // 2 GPU-seconds each second
	r.events = append(r.events, e)
	if to > 0 {
		e.ID, e.Type, e.Time = e.ID+"recovery", event.Recovery, noon.Add(to)
		e.Data.Evidence.LostGPUSeconds = 2 * (to - from).Seconds()
		r.events = append(r.events, e)
	}
}

func (r *recorded) throttle(node string, from, to time.Duration) {
	e := event.Event{ID: fmt.Sprint("throttle", node, from), Type: event.Anomaly, Source: event.Source("c", node, "detector"), Time: noon.Add(from), Data: event.Data{
		Target: event.Target{Node: node, PodUID: "pod-" + node, GPU: "GPU-" + node}, Cause: event.Cause{Kind: "anomaly", Name: "throttle-hw-thermal"}, Severity: event.Info,
		Onset: noon.Add(from), Evidence: event.Evidence{Signal: throttles}}}
	r.events = append(r.events, e)
	e.ID, e.Type, e.Time = e.ID+"recovery", event.Recovery, noon.Add(to)
	r.events = append(r.events, e)
}

func (r *recorded) lost(node string, at time.Duration) {
	r.events = append(r.events, event.Event{ID: fmt.Sprint("lost", node, at), Type: event.Fault, Source: event.Source("c", node, "xid"), Time: noon.Add(at), Data: event.Data{
		Target: event.Target{Node: node, PodUID: "pod-" + node, Job: &event.Job{Kind: "Job", Namespace: "ml", Name: "llm", UID: "job"}}, Cause: event.Cause{Kind: "xid", Code: "79"}, Severity: event.Fatal}})
}

func (r *recorded) simulate(t *testing.T, mode policy.Mode) []Would {
	t.Helper()
	ps, err := policy.Load("../deploy/policies")
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]map[string]string{}
	for k := range 100 {
		nodes[fmt.Sprintf("n%d", k)] = nil
	}
	return Simulate(r.events, Simulation{Policies: policy.WithMode(ps, mode), Labels: nodes, Lasts: 5 * time.Minute, Mends: 24 * time.Hour})
}

func TestASimulationPricesEachMoveForAStatisticalFinding(t *testing.T) {
	const s, m, h = time.Second, time.Minute, time.Hour
	restart := 4 * 120.0 / 3600
	for name, c := range map[string]struct {
		record              func(*recorded)
		decision            string
		lost, saved, decide float64 // GPU-hours, GPU-hours, seconds from the onset
	}{
		"two hours, and the GPU throttles": {func(r *recorded) { r.slow(3, 0, 2*h); r.throttle("n3", s, 2*h) }, "act", 4, 4*(7200-15)/7200. - restart, 15},
		"the throttling comes later":       {func(r *recorded) { r.slow(3, 0, 2*h); r.throttle("n3", 4*m, 2*h) }, "act", 4, 4*(7200-240)/7200. - restart, 240},
		"nothing confirms it":              {func(r *recorded) { r.slow(3, 0, 2*h) }, endedDecision, 4, 0, 0},
		"a blip":                           {func(r *recorded) { r.slow(3, 0, 10*s); r.throttle("n3", s, 10*s) }, endedDecision, 20. / 3600, 0, 0},
		"it lasts to the end of the week":  {func(r *recorded) { r.slow(3, 0, 0); r.throttle("n3", s, 5*m) }, "act", 2 * 300. / 3600, 2*285./3600 - restart, 15},
		"another rank throttles": {func(r *recorded) {
			r.slow(3, 0, 2*h)
			r.slow(1, m, 2*h)
			r.throttle("n1", m, 2*h)
		}, endedDecision, 4, 0, 0},
		"a GPU is lost meanwhile": {func(r *recorded) { r.slow(3, 0, 2*h); r.lost("n1", m) }, "act", -1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorded{}
			c.record(r)
			all := r.simulate(t, policy.Enforce)
			if len(all) == 0 {
				t.Fatal("nothing would have been opened")
			}
			w := all[0]
			if w.Decision != c.decision {
				t.Fatalf("%+v", w)
			}
			if c.lost < 0 {
				if w.Signal != "xid/79" || w.Price != nil {
					t.Errorf("%+v", w)
				}
				return
			}
			p := w.Price
			near := func(got, want float64) bool { return math.Abs(got-want) < 1e-6 }
			decided := 0.0
			if !p.Decided.IsZero() {
				decided = p.Decided.Sub(noon).Seconds()
			}
			if !near(p.Lost, c.lost) || !near(p.Saved, c.saved) || !near(p.Restart, restart) || !near(decided, c.decide) {
				t.Errorf("%s: lost %v, saved %v, restart %v, decided after %v s; %+v", w.Decision, p.Lost, p.Saved, p.Restart, decided, w)
			}
		})
	}
}

func TestASimulatedFindingThatIsOnlyObservedIsPricedTheSame(t *testing.T) {
	r := &recorded{}
	r.slow(3, 0, time.Hour)
	r.throttle("n3", time.Second, time.Hour)
	w := r.simulate(t, policy.Observe)
	if len(w) != 1 || w[0].Decision != "observe" || w[0].Price == nil || w[0].Price.Saved <= 0 || !slices.Equal(w[0].Actions, []string{"cordon", "checkpoint", "restart-job"}) {
		t.Errorf("%+v", w)
	}
}

// Both facts of money are filled in a simulation as they are in the remediator: an expression over an empty one would never match.
func TestASimulationFillsWhatAFindingCostsAndWhatARestartCosts(t *testing.T) {
	const rule = "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\nspec:\n  mode: enforce\n  order: 1\n  rules:\n" +
		"  - {name: r, when: {signal: rank/straggler, expr: event.lossPerHour == 7200.0 && job.restartCost == 480.0}, steps: [{do: cordon}]}\n"
	ps, err := policy.Parse("p.yaml", []byte(rule))
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{}
	r.slow(3, 0, time.Hour)
	if w := Simulate(r.events, Simulation{Policies: ps, Lasts: 5 * time.Minute, Mends: time.Hour}); len(w) != 1 || w[0].Rule != "r" {
		t.Errorf("%+v", w)
	}
	for _, x := range policy.Readings(ps) {
		if x.Fact.Simulate == "" || x.Fact.Decide == "" {
			t.Errorf("%+v", x)
		}
	}
	j := (&judge{policies: fixed{policy.NewBook(ps)}}).decide(r.events[0], incident.Facts{Now: noon})
	if j.Rule != "" { // without the job nobody knows what its restart costs
		t.Errorf("rule %q", j.Rule)
	}
	j = (&judge{policies: fixed{policy.NewBook(ps)}}).decide(r.events[0], incident.Facts{Now: noon, Gang: &cluster.Gang{Job: *r.events[0].Data.Target.Job}})
	if j.Rule != "r" {
		t.Errorf("the remediator: rule %q, %s", j.Rule, j.Policies[0].Rules[0].Detail)
	}
	cost := incident.Cost{SaveS: 20, RestartS: 40, Shown: true}
	if v := jobFacts(&cluster.Gang{}, &incident.Incident{WorldSize: 4}, cost).RestartCost; v != 240 {
		t.Errorf("the job has shown 60 s of 4 ranks, and the fact is %v", v)
	}
}
