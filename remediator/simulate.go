package remediator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Simulation is what is assumed where stored events do not say it.
type Simulation struct {
	Policies []policy.Policy
	Labels   map[string]map[string]string // by node; others have none. Its nodes, and those of the events, are the fleet
	Lasts    time.Duration                // how long an incident is taken to be open
	Mends    time.Duration                // how long a cordoned node is taken to stay so
}

// Would is an incident that would have been opened.
type Would struct {
	Time     time.Time `json:"time"`
	Signal   string    `json:"signal"`
	Node     string    `json:"node,omitempty"`
	GPU      string    `json:"gpu,omitempty"`
	Job      string    `json:"job,omitempty"` // namespace/name, where the event says it
	Policy   string    `json:"policy"`
	Rule     string    `json:"rule"`
	Mode     string    `json:"mode"`
	Decision string    `json:"decision"` // act, ask or observe; wait or refuse where a guard stands against it
	Actions  []string  `json:"actions"`
	Refused  string    `json:"refused,omitempty"` // by which guard, and why
	Events   int       `json:"events"`            // that opened or joined it
	EventID  string    `json:"event_id"`
	Price    *Price    `json:"price,omitempty"` // of a statistical finding
}

// decisions by the mode of the policy.
var decisions = map[policy.Mode]string{policy.Enforce: "act", policy.Approve: "ask", policy.Observe: "observe"}

// Simulate judges events in the order of their times by the remediator's own judge and guards, as if every incident that no guard refuses
// had acted: budgets, cooldowns and the breaker count what would have been done. Not known, and so assumed: that each namespace has opted
// in, that nothing was held, paused or cordoned by people, that a job was where the event says and a node for it was free.
func Simulate(events []event.Event, s Simulation) []Would {
	f := simulatedFleet{}
	for node, labels := range s.Labels {
		f[node] = &fleet.Node{Name: node, Ready: true, Labels: labels, Pool: policy.PoolOf(labels)}
	}
	for _, e := range events {
		if n := e.Data.Target.Node; n != "" && f[n] == nil {
			f[n] = &fleet.Node{Name: n, Ready: true}
		}
	}
	run := simulated{Simulation: s, fleet: f, given: map[string]time.Time{}, findings: map[int]*simulatedFinding{}, members: map[string][]cluster.Member{}}
	run.said = newBoard(func(string) (string, error) { return "", nil })
	run.said.clock = func() time.Time { return run.now }
	run.judge = &judge{policies: fixed{policy.NewBook(s.Policies)}, nodes: f, kill: func() guard.Kill { return guard.Kill{} }, said: run.said, seen: newOccurrences()}
	seen := map[string]bool{}
	for _, e := range slices.SortedStableFunc(slices.Values(events), func(a, b event.Event) int { return a.Time.Compare(b.Time) }) {
		run.elapse(e.Time)
		run.hear(e)
		if (e.Type == event.Fault || e.Type == event.Anomaly) && !seen[e.ID] {
			run.judge.seen.add(e)
			run.take(e)
		}
		run.ripen(e.Time)
		seen[e.ID] = true
	}
	run.finish()
	return run.would
}

// simulatedFleet is the nodes of a simulation.
type simulatedFleet map[string]*fleet.Node

func (f simulatedFleet) Node(name string) (*fleet.Node, error) {
	if n := f[name]; n != nil {
		return n, nil
	}
	return nil, cluster.ErrNotFound
}

// Fleet is another slice each time, since nodes change in place.
func (f simulatedFleet) Fleet() (out []*fleet.Node) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		out = append(out, f[name])
	}
	return out
}

type simulated struct {
	Simulation
	fleet simulatedFleet
	judge *judge
	book  ledger.Book
	all   []*incident.Incident // of each would-be incident its record, in the same order
	would []Would
	given map[string]time.Time // when a cordoned node is given back

	now      time.Time
	said     *board
	findings map[int]*simulatedFinding   // by the place of their incident
	members  map[string][]cluster.Member // by the UID of a job: pods that events named
}

// elapse lets the time come at which incidents are over and nodes are mended.
func (s *simulated) elapse(now time.Time) {
	for node, at := range s.given {
		if !at.After(now) {
			s.set(node, "")
			delete(s.given, node)
		}
	}
	s.ripen(now)
	s.now = now
	for k, i := range s.all {
		if s.waits(k) {
			continue
		}
		if i.Open() && now.Sub(i.Opened) >= s.Lasts {
			i.State, i.ClosedAt = incident.Closed, i.Opened.Add(s.Lasts)
			if g := s.book.Grant(i.ID); g != nil {
				g.End(i.ClosedAt)
			}
		}
	}
}

func (s *simulated) take(e event.Event) {
	t, now := e.Data.Target, e.Time
	node, _ := s.fleet.Node(t.Node)
	gang := &cluster.Gang{OptIn: true, NamespaceLabels: map[string]string{guard.OptInLabel: guard.OptInValue}}
	if t.Job != nil {
		gang.Job, gang.Members = *t.Job, s.members[t.Job.UID]
	}
	at := slices.IndexFunc(s.all, func(i *incident.Incident) bool {
		return i.Open() && (t.Job != nil && i.Job != nil && i.Job.UID == t.Job.UID || (t.Job == nil || i.Job == nil) && t.Node != "" && i.Faults[0].Node == t.Node)
	})
	if at < 0 && t.Job == nil && node != nil && node.Quarantined != "" {
		return // an echo of what was dealt with
	}
	facts := incident.Facts{Now: now, Node: node, Gang: gang, Seen: now}
	if at >= 0 {
		facts.Incident = s.all[at]
	}
	plan, _ := s.judge.Plan(e, facts)
	if plan == nil {
		if at >= 0 {
			s.would[at].Events++
		}
		return
	}
	certain := at >= 0 && s.waits(at) && (plan.Terms == nil || !plan.Terms.Statistical) // it does not wait for the guards of a finding
	if at >= 0 && !certain && (s.all[at].Plan.Has(policy.Cordon) || !plan.Has(policy.Cordon)) {
		s.would[at].Events++
		return
	}
	i := &incident.Incident{ID: fmt.Sprintf("would-%d", len(s.all)), State: incident.Correlated, Opened: now, StateAt: now, Job: t.Job, Plan: plan,
		WorldSize: t.WorldSize, Faults: []incident.Fault{{EventID: e.ID, Signal: e.Data.Cause.Signal(), Node: t.Node, Moves: plan.Has(policy.Cordon), Event: e, At: e.Time, Seen: now}}}
	w := Would{Time: now, Signal: e.Data.Cause.Signal(), Node: t.Node, GPU: t.GPU, Events: 1, EventID: e.ID}
	if t.Job != nil {
		w.Job = t.Job.Namespace + "/" + t.Job.Name
	}
	if at >= 0 { // it turns out to be worse than it began
		i.ID, i.Opened, w.Time, w.Events = s.all[at].ID, s.all[at].Opened, s.would[at].Time, s.would[at].Events+1
		s.all[at], s.would[at] = i, w
	} else {
		at = len(s.all)
		s.all, s.would = append(s.all, i), append(s.would, w)
	}
	facts.Incident = i
	if node != nil && plan.Has(policy.Cordon) {
		facts.Wants = []guard.Place{guard.PlaceOf(node)}
	}
	s.finding(at, e, plan, facts)
	s.judged(&s.would[at], i, plan, s.judge.Guards(plan, facts, &s.book))
}

// judged says what would have become of an incident, and lets it have its effect on the guards.
func (s *simulated) judged(w *Would, i *incident.Incident, plan *incident.Plan, verdicts []guard.Verdict) {
	w.Policy, w.Rule, w.Mode, w.Decision = plan.Policy, plan.Rule, string(plan.Mode), decisions[plan.Mode]
	w.Actions = nil
	for _, v := range plan.Verbs() {
		w.Actions = append(w.Actions, string(v))
	}
	for _, r := range plan.Recommended() {
		w.Actions = append(w.Actions, r+" (by a person)")
	}
	i.Guards = verdicts
	if refused := guard.Blocking(verdicts); len(refused) > 0 {
		w.Decision = "wait"
		for _, v := range refused {
			if !incident.Passes(v.Guard) {
				w.Decision = "refuse"
			}
		}
		w.Refused = strings.ReplaceAll(refused[0].String(), ": refuses", "")
		return // it takes in what comes, and counts as nothing done
	}
	i.State, w.Refused = incident.Restarted, ""
	s.grant(w, i, plan)
	if plan.Has(policy.Cordon) && s.fleet[w.Node] != nil {
		s.set(w.Node, i.ID)
		s.given[w.Node] = s.now.Add(s.Mends)
	}
}

// set gives a node another view, as the watch does: views do not change.
func (s *simulated) set(node, quarantined string) {
	n := *s.fleet[node]
	n.Quarantined, n.Unschedulable = quarantined, quarantined != ""
	s.fleet[node] = &n
}

// grant writes into the book what the incident would have been allowed and would have done.
func (s *simulated) grant(w *Would, i *incident.Incident, plan *incident.Plan) {
	g := guard.Grant{Incident: i.ID, Policy: plan.Policy, Active: true, At: s.now, Charged: plan.Disruptive(), Restart: plan.Has(policy.RestartJob), Causes: []string{w.EventID}}
	if i.Job != nil {
		g.Job = i.Job.UID
	}
	if n := s.fleet[w.Node]; n != nil && plan.Has(policy.Cordon) {
		g.Nodes = []guard.Place{guard.PlaceOf(n)}
	}
	for _, v := range plan.Verbs() {
		g.Did = append(g.Did, guard.Done{Verb: v, Node: w.Node, At: s.now})
	}
	if have := s.book.Grant(i.ID); have != nil {
		*have = g
		return
	}
	s.book.Grants = append(s.book.Grants, g)
}
