package remediator

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/anomaly"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/semconv"
)

// site is a job of four ranks on four nodes, what nodes and gateways say, and the judge.
type site struct {
	t     testing.TB
	now   time.Time
	said  *board
	quiet map[string]bool // nodes whose agent is silent
	judge *judge
	gang  *cluster.Gang
	event event.Event // a gateway names rank 3 on n3
}

func newSite(t testing.TB) *site {
	t.Helper()
	ps, err := policy.Load("../deploy/policies")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, now: noon, said: newBoard(func(string) (string, error) { return "boot", nil }), quiet: map[string]bool{}}
	s.said.clock = func() time.Time { return s.now }
	s.said.heard = func(n string) bool { return !s.quiet[n] }
	f := simulatedFleet{}
	s.gang = &cluster.Gang{Job: event.Job{Kind: "Job", Namespace: "ml", Name: "llm", UID: "job"}, Size: 4, OptIn: true, NamespaceLabels: map[string]string{guard.OptInLabel: guard.OptInValue}}
	for k, n := range []string{"n0", "n1", "n2", "n3"} {
		s.gang.Members = append(s.gang.Members, cluster.Member{Index: k, Node: n, PodUID: "pod-" + n})
	}
	s.judge = &judge{policies: fixed{policy.NewBook(policy.WithMode(ps, policy.Enforce))}, nodes: f, kill: func() guard.Kill { return guard.Kill{} }, said: s.said, seen: newOccurrences()}
	s.event = s.names(straggler, 3)
	return s
}

// names is what a gateway says of a rank of the job, two seconds after the onset: each step of four ranks is half as long again.
func (s *site) names(signal string, rank int) event.Event {
	kind, name, _ := strings.Cut(signal, "/")
	attempt, node := 0, "n"+itoa(rank)
	return event.Event{ID: signal + node, Type: event.Anomaly, Source: event.GatewaySource("c", "gw", "detector"), Time: s.now, Data: event.Data{
		Target: event.Target{Node: node, PodUID: "pod-" + node, GPU: "GPU-" + node, Rank: &rank, WorldSize: 4, Attempt: &attempt, Job: &event.Job{UID: "job"}},
		Cause:  event.Cause{Kind: kind, Name: name}, Severity: event.Warning, Onset: s.now.Add(-2 * time.Second),
		Evidence: event.Evidence{Signal: semconv.TrainComputeDuration, DurationS: 2, LostGPUSeconds: 4, Baseline: "peers(3)"},
	}}
}

// sets lets a gateway set a finding, or with gw "-" take it away.
func (s *site) sets(gw string, e event.Event) {
	c := bus.Condition{Gateway: strings.TrimSuffix(gw, "-"), Key: e.Data.Cause.Signal() + " rank/" + itoa(*e.Data.Target.Rank), Active: !strings.HasSuffix(gw, "-")}
	if c.Active {
		c.Event, c.Node = &e, e.Data.Target.Node
	}
	s.said.setFound(c, time.Time{})
}

// measures is what a node's agent says of one of its GPUs.
func (s *site) measures(node, signal, metric string, more ...func(*bus.Condition)) {
	kind, name, _ := strings.Cut(signal, "/")
	e := event.Event{ID: node + signal, Type: event.Anomaly, Source: event.Source("c", node, "detector"), Time: s.now, Data: event.Data{
		Target: event.Target{Node: node, GPU: "GPU-" + node, PodUID: "pod-" + node}, Cause: event.Cause{Kind: kind, Name: name}, Severity: event.Info, Onset: s.now.Add(-time.Second),
		Evidence: event.Evidence{Signal: metric}}}
	c := bus.Condition{Node: node, Key: signal + " gpu/GPU-" + node, Active: true, Since: s.now, BootID: "boot", Event: &e}
	for _, f := range more {
		f(&c)
	}
	s.said.set(c)
}

const throttles = semconv.GPUThrottle + "{hw_thermal}"

// refused are the guards that stand against the event a time after it was found; of guards alone that judge findings.
func (s *site) refused(after time.Duration) (names []guard.Name, finding *guard.Finding) {
	s.t.Helper()
	i := &incident.Incident{ID: "me", Opened: s.now, WorldSize: 4, Job: &s.gang.Job}
	i.Faults = []incident.Fault{{EventID: s.event.ID, Signal: s.event.Data.Cause.Signal(), At: s.event.Time, Node: s.event.Data.Target.Node, Event: s.event, Seen: s.now, Moves: true}}
	facts := incident.Facts{Now: s.now, Gang: s.gang, Incident: i, Seen: s.now}
	plan, d := s.judge.Plan(s.event, facts)
	if plan == nil || plan.Terms == nil || !plan.Terms.Statistical || !plan.ByPace {
		s.t.Fatalf("plan %+v, decision %s", plan, d)
	}
	i.Plan = plan
	began := s.now
	s.now = s.now.Add(after)
	defer func() { s.now = began }()
	if f := s.said.newestFound(s.event); f != nil && f.active {
		s.sets("gw", s.event)
	}
	facts.Now, facts.Seen = s.now, s.now
	for _, v := range guard.Blocking(s.judge.Guards(plan, facts, &ledger.Book{})) {
		names = append(names, v.Guard)
	}
	return names, s.judge.finding(plan, facts)
}

func TestAFindingActsOnWhatItsNodeItselfMeasures(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*site)
		want []guard.Name
	}{
		"the GPU throttles":              {func(s *site) { s.measures("n3", "anomaly/throttle-hw-thermal", throttles) }, nil},
		"its clock is low":               {func(s *site) { s.measures("n3", "anomaly/sm-clock", semconv.GPUClock+"{sm}") }, nil},
		"its PCIe link is narrow":        {func(s *site) { s.measures("n3", "anomaly/pcie-width", semconv.GPUPCIeLinkWidth) }, nil},
		"the adapter of its host":        {func(s *site) { s.measures("n3", "nic/mlx5", "kernel log", fault, elsewhere) }, nil},
		"a compound finding of the node": {func(s *site) { s.measures("n3", "anomaly/thermal-throttle", throttles) }, nil},
		"nothing":                        {func(*site) {}, []guard.Name{guard.SecondSign}},
		"another GPU of the node":        {func(s *site) { s.measures("n3", "anomaly/sm-clock", semconv.GPUClock+"{sm}", elsewhere) }, []guard.Name{guard.SecondSign}},
		"another GPU of the same pod": {func(s *site) {
			s.measures("n3", "anomaly/sm-clock", semconv.GPUClock+"{sm}", func(c *bus.Condition) { c.Event.Data.Target.GPU = "GPU-other" })
		}, []guard.Name{guard.SecondSign}},
		"another node":            {func(s *site) { s.measures("n2", "anomaly/sm-clock", semconv.GPUClock+"{sm}") }, []guard.Name{guard.SecondSign}},
		"what a slow rank causes": {func(s *site) { s.measures("n3", "anomaly/utilization", semconv.HWGPUUtilization+"{general}") }, []guard.Name{guard.SecondSign}},
		"the power that it draws": {func(s *site) { s.measures("n3", "anomaly/power", semconv.HWPower) }, []guard.Name{guard.SecondSign}},
		"it ended": {func(s *site) {
			s.measures("n3", "anomaly/sm-clock", semconv.GPUClock, func(c *bus.Condition) { c.Active = false })
		}, []guard.Name{guard.SecondSign}},
		"a person has declared the node healthy since": {func(s *site) {
			s.measures("n3", "pcie/aer", "kernel log", fault)
			s.said.cleared = func(string) time.Time { return s.now.Add(time.Second) }
		}, []guard.Name{guard.SecondSign}},
		"it was of another boot": {func(s *site) {
			s.measures("n3", "anomaly/sm-clock", semconv.GPUClock, func(c *bus.Condition) { c.BootID = "earlier" })
		}, []guard.Name{guard.SecondSign}},
		"it is as it was for hours": {func(s *site) {
			s.measures("n3", "anomaly/pcie-width", semconv.GPUPCIeLinkWidth, func(c *bus.Condition) { c.Event.Data.Onset = s.now.Add(-3 * time.Hour) })
		}, []guard.Name{guard.SecondSign}},
		"the agent is silent": {func(s *site) {
			s.measures("n3", "anomaly/sm-clock", semconv.GPUClock)
			s.quiet["n3"] = true
		}, []guard.Name{guard.SecondSign}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.sets("gw", s.event)
			c.set(s)
			if got, f := s.refused(13 * time.Second); !slices.Equal(got, c.want) {
				t.Errorf("refused by %v, want %v: %+v", got, c.want, f)
			}
		})
	}
}

func fault(c *bus.Condition) { c.Event.Type, c.Event.Data.Severity = event.Fault, event.Warning }

func elsewhere(c *bus.Condition) {
	c.Event.Data.Target.GPU, c.Event.Data.Target.PodUID, c.Event.Data.Target.PCI = "GPU-other", "", "0000:aa:00"
}

// A training pod can forge its ring and the metrics that it sends: its steps, its waits, its launches, what GPU it says that it has. It must not
// come to a second family by that.
func TestAForgedRingCordonsNoNode(t *testing.T) {
	for _, x := range anomaly.Catalogue {
		if x.Name == "" || x.About != anomaly.Rank {
			continue
		}
		t.Run(x.Name, func(t *testing.T) {
			s := newSite(t)
			s.sets("gw", s.event)
			s.measures("n3", "anomaly/"+x.Name, x.Metric+"{"+x.Value+"}")
			if got, f := s.refused(13 * time.Second); !slices.Equal(got, []guard.Name{guard.SecondSign}) {
				t.Errorf("refused by %v: %+v", got, f)
			}
		})
	}
	t.Run("all that a ring can say makes a compound finding of its own", func(t *testing.T) {
		s := newSite(t)
		s.event = s.names("anomaly/launch-latency", 3)
		s.event.Source, s.event.Data.Severity = event.Source("c", "n3", "detector"), event.Critical
		s.event.Data.Evidence.Signal = semconv.TrainLaunchLatency
		s.event.Data.Evidence.Signals = []event.Witness{{Signal: semconv.TrainStepDuration}, {Signal: semconv.TrainComputeDuration}}
		s.measures("n3", "anomaly/launch-latency", semconv.TrainLaunchLatency, func(c *bus.Condition) { e := s.event; c.Event = &e })
		if got, f := s.refused(13 * time.Second); !slices.Equal(got, []guard.Name{guard.SecondSign}) {
			t.Errorf("refused by %v: %+v", got, f)
		}
		s.event.Data.Evidence.Signals = append(s.event.Data.Evidence.Signals, event.Witness{Signal: throttles}) // DCGM says so too
		s.measures("n3", "anomaly/launch-latency", semconv.TrainLaunchLatency, func(c *bus.Condition) { e := s.event; c.Event = &e })
		if got, f := s.refused(13 * time.Second); len(got) > 0 {
			t.Errorf("refused by %v: %+v", got, f)
		}
	})
	t.Run("it names the GPU of another pod", func(t *testing.T) {
		s := newSite(t)
		s.event.Data.Target.GPU = "GPU-other"
		s.sets("gw", s.event)
		s.measures("n3", "anomaly/sm-clock", semconv.GPUClock+"{sm}", func(c *bus.Condition) {
			c.Event.Data.Target.GPU, c.Event.Data.Target.PodUID = "GPU-other", "pod-of-another-tenant"
		})
		if got, f := s.refused(13 * time.Second); !slices.Equal(got, []guard.Name{guard.SecondSign}) {
			t.Errorf("refused by %v: %+v", got, f)
		}
	})
}

func TestFindingsThatContradictEachOtherMoveNothing(t *testing.T) {
	throttled := func(s *site, node string) {
		s.measures(node, "anomaly/thermal-throttle", throttles, func(c *bus.Condition) {
			rank := int(node[1] - '0')
			c.Event.Data.Severity, c.Event.Data.Target.Rank = event.Critical, &rank
		})
	}
	for name, c := range map[string]struct {
		set  func(*site)
		want []guard.Name
		says string
	}{
		"peers name rank 3, its hardware is spotless, and rank 2 throttles": {func(s *site) { throttled(s, "n2") }, []guard.Name{guard.SecondSign, guard.OneCulprit},
			"anomaly/thermal-throttle names rank 2 on node n2"},
		"rank 3 throttles, and so does rank 2": {func(s *site) { throttled(s, "n2"); throttled(s, "n3") }, []guard.Name{guard.OneCulprit}, "rank 2 on node n2"},
		"peers name two ranks on two nodes":    {func(s *site) { throttled(s, "n3"); s.sets("gw", s.names(straggler, 1)) }, []guard.Name{guard.OneCulprit}, "half of the ranks"},
		"most ranks became slow together":      {func(s *site) { throttled(s, "n3"); s.sets("gw", s.names(slowdown, 0)) }, []guard.Name{guard.OneCulprit}, "most ranks"},
		"half of the ranks, on one node": {func(s *site) {
			throttled(s, "n3")
			other := s.names(straggler, 2)
			other.Data.Target.Node = "n3"
			s.sets("gw", other)
		}, []guard.Name{guard.OneCulprit}, "half of the ranks"},
		"a person muted it": {func(s *site) {
			throttled(s, "n3")
			s.event.Data.Evidence.Told = []string{event.MutedBy + "ada until 2026-11-22T04:24:20Z"}
			s.sets("gw", s.event)
		}, []guard.Name{guard.OneCulprit}, "a person muted it"},
		"another gateway says the same": {func(s *site) { throttled(s, "n3"); s.sets("gw-1", s.event) }, nil, ""},
		"a rank of another job is slow too": {func(s *site) {
			throttled(s, "n3")
			other := s.names(straggler, 1)
			other.Data.Target.Job, other.Data.Target.PodUID = &event.Job{UID: "other"}, "pod-x"
			s.sets("gw", other)
		}, nil, ""},
		"what it was before the attempt": {func(s *site) {
			throttled(s, "n3")
			other, earlier := s.names(straggler, 1), -1
			other.Data.Target.Attempt = &earlier
			s.sets("gw", other)
		}, nil, ""},
		"it is over": {func(s *site) {
			throttled(s, "n3")
			s.sets("gw", s.names(straggler, 1))
			s.sets("gw-", s.names(straggler, 1))
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.sets("gw", s.event)
			c.set(s)
			got, f := s.refused(13 * time.Second)
			if !slices.Equal(got, c.want) || !strings.Contains(strings.Join(f.Against, "; "), c.says) {
				t.Errorf("refused by %v, want %v: %+v", got, c.want, f)
			}
		})
	}
}

func TestAFindingMustLastBeWorthItAndBeFresh(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		set   func(*site)
		want  []guard.Name
	}{
		"after 12.9 s":                {12900 * time.Millisecond, func(*site) {}, []guard.Name{guard.Lasts}},
		"after 13 s: 15 of its onset": {13 * time.Second, func(*site) {}, nil},
		"a gateway's clock that runs ahead": {13 * time.Second, func(s *site) {
			s.event.Time, s.event.Data.Onset = s.event.Time.Add(time.Hour), s.event.Data.Onset.Add(time.Hour)
		}, nil},
		"a loss that an hour does not pay": {13 * time.Second, func(s *site) { s.event.Data.Evidence.LostGPUSeconds = .25 }, []guard.Name{guard.WorthIt}}, // 450 of 2·480
		"a job that ends in a minute": {13 * time.Second, func(s *site) {
			s.gang.Annotations = map[string]string{EndsAt: s.now.Add(time.Minute).Format(time.RFC3339)}
		}, []guard.Name{guard.WorthIt}},
		"a job that runs for days": {13 * time.Second, func(s *site) {
			s.event.Data.Evidence.LostGPUSeconds = .25
			s.gang.Annotations = map[string]string{EndsAt: s.now.Add(72 * time.Hour).Format(time.RFC3339)}
		}, nil},
		"an end that nobody can read": {13 * time.Second, func(s *site) { s.gang.Annotations = map[string]string{EndsAt: "soon"} }, nil},
		"its gateway fell silent": {13 * time.Second, func(s *site) {
			s.said.found["gw\n"+straggler+" rank/3"].at = s.now.Add(-time.Hour)
			s.said.found["gw\n"+straggler+" rank/3"].active = false
		}, []guard.Name{guard.Fresh}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.measures("n3", "anomaly/sm-clock", semconv.GPUClock+"{sm}", func(b *bus.Condition) {})
			s.sets("gw", s.event)
			c.set(s)
			if f := s.said.found["gw\n"+straggler+" rank/3"]; f.active {
				s.measures("n3", "anomaly/sm-clock", semconv.GPUClock+"{sm}", func(b *bus.Condition) { b.Event.Data.Onset = s.event.Data.Onset })
			}
			if got, f := s.refused(c.after); !slices.Equal(got, c.want) {
				t.Errorf("refused by %v, want %v: %+v", got, c.want, f)
			}
		})
	}
}

func TestWhatAGatewayFoundStandsAsLongAsAnyGatewaySetsIt(t *testing.T) {
	s := newSite(t)
	is := func(what string, want incident.Standing) {
		t.Helper()
		if got, why := s.said.Standing(s.event); got != want {
			t.Errorf("%s: %v (%s), want %v", what, got, why, want)
		}
	}
	is("nobody set it", incident.Unknown)
	s.sets("gw", s.event)
	other := s.event
	other.ID = "another-step"
	s.sets("gw-1", other)
	is("two gateways have it", incident.Holds)
	s.sets("gw-", s.event)
	is("one took it away", incident.Holds)
	s.now = s.now.Add(foundStale + time.Second)
	is("the other is silent", incident.Silent)
	s.sets("gw-1", other)
	is("it is back", incident.Holds)
	s.now = s.now.Add(time.Second)
	s.sets("gw-1-", other)
	is("nobody has it any more", incident.Ended)
	s.event.Data.Onset = s.now.Add(time.Minute)
	is("a later onset", incident.Unknown)
}

func TestABoardHoldsNoMoreOfGatewaysThanItsBound(t *testing.T) {
	s := newSite(t)
	for k := range maxFound + 10 {
		e := s.event
		s.said.setFound(bus.Condition{Gateway: "gw", Key: straggler + " " + itoa(k), Active: true, Event: &e}, time.Time{})
	}
	if n := len(s.said.found); n != maxFound {
		t.Errorf("%d", n)
	}
	s.now = s.now.Add(foundFor + time.Second)
	s.sets("gw", s.event)
	if n := len(s.said.found); n != 1 {
		t.Errorf("%d are left of what nobody set again", n)
	}
}

// What is found by subject is what a look at all findings would find, whatever was set, moved to another rank, taken away and forgotten before.
func TestFindingsAreFoundByTheirJobAsByALookAtAll(t *testing.T) {
	s := newSite(t)
	random := rand.New(rand.NewPCG(1, 2))
	jobNamed := func(uid string) *event.Job { return &event.Job{UID: uid} }
	anyEvent := func() event.Event {
		e := s.names([]string{straggler, imbalance}[random.IntN(2)], random.IntN(4))
		job := itoa(random.IntN(3))
		e.Data.Target.PodUID += job
		e.Data.Target.GPU = "GPU-" + itoa(random.IntN(6))
		if e.Data.Target.Job = nil; random.IntN(3) > 0 {
			e.Data.Target.Job = jobNamed(job)
		}
		return e
	}
	for range 3000 {
		e := anyEvent()
		c := bus.Condition{Gateway: "gw", Key: straggler + " " + itoa(random.IntN(40)), Active: random.IntN(4) > 0, Event: &e}
		if random.IntN(5) == 0 {
			c.Event = nil
		}
		s.said.setFound(c, time.Time{})
		if s.now = s.now.Add(time.Duration(random.IntN(20)) * time.Second); random.IntN(10) == 0 {
			s.said.mu.Lock()
			s.said.forgetFound(s.now)
			s.said.mu.Unlock()
		}
		asked := anyEvent()
		scan, same := 0, 0
		for _, f := range s.said.found {
			if sameFinding(f.event, asked) {
				scan++
			}
		}
		for _, f := range s.said.foundAt(subjects(asked.Data.Target)) {
			if sameFinding(f.event, asked) {
				same++
			}
		}
		if scan != same || (s.said.newestFound(asked) == nil) != (scan == 0) {
			t.Fatalf("%d by subject, %d in all, of %+v", same, scan, asked.Data.Target)
		}
	}
	s.now = s.now.Add(time.Hour)
	s.said.forgetFound(s.now)
	if len(s.said.found)+len(s.said.foundOf) != 0 {
		t.Errorf("%d findings and %d subjects are left", len(s.said.found), len(s.said.foundOf))
	}
}

// BenchmarkAHeldFindingLooksAtItsJob asks what speaks against a finding while gateways report as many as there is room for.
func BenchmarkAHeldFindingLooksAtItsJob(b *testing.B) {
	s := newSite(b)
	for k := range maxFound - 1 {
		e := s.event
		e.Data.Target.PodUID, e.Data.Target.GPU, e.Data.Target.Job = "other-"+itoa(k), "GPU-"+itoa(k), &event.Job{UID: "job-" + itoa(k)}
		s.said.setFound(bus.Condition{Gateway: "gw", Key: straggler + " " + itoa(k), Active: true, Event: &e}, time.Time{})
	}
	s.sets("gw", s.event)
	for b.Loop() {
		if out := s.said.against(s.event, s.gang); len(out) != 0 {
			b.Fatal(out)
		}
		s.said.latest(s.event)
	}
}

// The families are of what a node measures. A row of the catalogue that a pod reports is in none.
func TestEveryFamilyIsOfAMetricThatTheNodeMeasures(t *testing.T) {
	pods, nodes := map[string]bool{}, map[string]bool{}
	for _, x := range anomaly.Catalogue {
		if x.About == anomaly.Rank {
			pods[x.Metric] = true
		} else {
			nodes[x.Metric] = true
		}
	}
	for metric := range metricFamilies {
		if pods[metric] || !nodes[metric] {
			t.Errorf("%s is in a family: of a pod %v, of a node %v", metric, pods[metric], nodes[metric])
		}
	}
	for signal := range causeFamilies {
		kind, _, _ := strings.Cut(signal, "/")
		if !slices.ContainsFunc(policy.SignalKinds(), func(k policy.SignalKind) bool { return k.Kind == kind }) {
			t.Errorf("%s is no signal", signal)
		}
	}
}

func TestOccurrencesAreCountedOncePerGPUWithinTheTime(t *testing.T) {
	o := newOccurrences()
	at := func(id, gpu string, ago time.Duration, count int) event.Event {
		return event.Event{ID: id, Type: event.Fault, Time: noon.Add(-ago), Data: event.Data{Target: event.Target{Node: "n1", PCI: gpu}, Cause: event.Cause{Kind: "xid", Code: "63"}, Count: count}}
	}
	last := at("d", "a", 0, 1)
	for _, e := range []event.Event{at("a", "a", 30*time.Hour, 1), at("b", "a", 3*time.Hour, 1), at("b", "a", 3*time.Hour, 1), at("c", "other", time.Hour, 5), last} {
		o.add(e)
	}
	for within, want := range map[time.Duration]int{time.Hour: 1, 24 * time.Hour: 2, 48 * time.Hour: 3} {
		if n := o.times(last, within, noon); n != want {
			t.Errorf("within %s: %d, want %d", within, n, want)
		}
	}
	o.add(at("d", "a", 0, 4)) // the same, reported once more with a higher count
	if n := o.times(last, time.Hour, noon); n != 4 {
		t.Errorf("%d", n)
	}
	if n := (*occurrences)(nil).times(at("e", "a", 0, 3), time.Hour, noon); n != 3 {
		t.Errorf("without a memory %d", n)
	}
	for k := range 3 * maxOccurrences {
		o.add(at(itoa(k), "b", 0, 1))
	}
	if n := o.times(at("0", "b", 0, 1), time.Hour, noon); n > maxOccurrences {
		t.Errorf("%d are kept", n)
	}
}
