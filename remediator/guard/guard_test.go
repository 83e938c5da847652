package guard_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// fleet is a policy's scope of n nodes, the first of which Pitcrew holds.
func fleet(n, quarantined int) (total int, taken []guard.Place) {
	for i := range quarantined {
		taken = append(taken, guard.Place{Node: fmt.Sprintf("n%02d", i), Pool: "train"})
	}
	return n, taken
}

// action is one that every guard allows on the state of fleet(40, 0).
func action(v policy.Verb) guard.Action {
	p := policy.Policy{Spec: policy.Spec{Guards: policy.DefaultGuards()}}
	return guard.Action{Verb: v, Policy: p, Incident: "me", Node: policy.Node{Name: "n39"}, Disruptive: 2, Seen: ago(time.Second),
		Job: policy.Job{Namespace: "ml", Name: "llm", UID: "j", NamespaceLabels: map[string]string{guard.OptInLabel: guard.OptInValue}}}
}

// did is another incident's grant.
func did(id, node string, open bool, at time.Time, verbs ...policy.Verb) guard.Grant {
	g := guard.Grant{Incident: id, Job: "other", At: at, Active: open, Charged: 2, Nodes: []guard.Place{{Node: node}}}
	for _, v := range verbs {
		g.Did = append(g.Did, guard.Done{Verb: v, Node: node, At: at})
		if v == policy.Uncordon {
			g.Nodes = nil
		}
	}
	if !open {
		g.End(at)
	}
	return g
}

func TestAVerdictReadsAsASentenceAlsoWhereNothingIsCounted(t *testing.T) {
	for want, v := range map[string]guard.Verdict{
		"kill-switch: allows (off)":                                  {Guard: guard.KillSwitch, Current: "off", Limit: "off"},
		"namespace-opt-in: allows (pitcrew.dev/heal is true)":        {Guard: guard.OptIn, Current: "true", Limit: "true"},
		"cooldown-per-node: allows (last: never, at least 2h apart)": {Guard: guard.Cooldown, Current: "never", Limit: "2h"},
		"max-event-age: allows (0s old, at most 1m)":                 {Guard: guard.EventAge, Current: "0s", Limit: "1m"},
		"max-concurrent-incidents: allows (0 of 2)":                  {Guard: guard.Concurrent, Current: "0", Limit: "2"},
		"hold: allows": {Guard: guard.Hold},
	} {
		v.Asked, v.Allowed = true, true
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestEachGuardRefusesWhatItIsFor(t *testing.T) {
	window, err := policy.ParseWindow("11:00-13:00 UTC")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		verb    policy.Verb
		change  func(*guard.State, *guard.Action)
		refused []guard.Name
		says    string // of the first that refuses
	}{
		"an ordinary cordon is allowed":     {verb: policy.Cordon, change: func(*guard.State, *guard.Action) {}},
		"an ordinary restart is allowed":    {verb: policy.RestartJob, change: func(*guard.State, *guard.Action) {}},
		"the kill switch stops a cordon":    {policy.Cordon, func(s *guard.State, _ *guard.Action) { s.Kill = guard.Kill{On: true, Reason: "upgrade"} }, []guard.Name{guard.KillSwitch}, "upgrade"},
		"the kill switch stops an uncordon": {policy.Uncordon, func(s *guard.State, _ *guard.Action) { s.Kill.On = true }, []guard.Name{guard.KillSwitch}, "no reason given"},
		"the kill switch lets one be told":  {policy.Notify, func(s *guard.State, _ *guard.Action) { s.Kill.On = true }, nil, ""},
		"a held node is left alone": {policy.Cordon, func(_ *guard.State, a *guard.Action) {
			a.Node.Annotations = map[string]string{guard.HoldAnnotation: "debugging"}
		}, []guard.Name{guard.Hold}, "node n39 is held: debugging"},
		"a held job is left alone": {policy.RestartJob, func(_ *guard.State, a *guard.Action) {
			a.Job.Annotations = map[string]string{guard.HoldAnnotation: ""}
		}, []guard.Name{guard.Hold}, "job ml/llm is held: no reason given"},
		"a hold that says false is none": {policy.Cordon, func(_ *guard.State, a *guard.Action) {
			a.Node.Annotations = map[string]string{guard.HoldAnnotation: "false"}
		}, nil, ""},
		"a namespace that did not opt in keeps its jobs": {policy.RestartJob, func(_ *guard.State, a *guard.Action) { a.Job.NamespaceLabels = nil },
			[]guard.Name{guard.OptIn}, "kubectl label namespace ml pitcrew.dev/heal=true"},
		"a job may opt out of what its namespace wants": {policy.RestartJob, func(_ *guard.State, a *guard.Action) {
			a.Job.Annotations = map[string]string{guard.OptInLabel: "false"}
		}, []guard.Name{guard.OptIn}, "job ml/llm says pitcrew.dev/heal=false itself"},
		"a job may opt in by itself": {policy.RestartJob, func(_ *guard.State, a *guard.Action) {
			a.Job.NamespaceLabels, a.Job.Labels = nil, map[string]string{guard.OptInLabel: "enabled"}
		}, nil, ""},
		"a namespace that did not opt in does not save a bad node": {policy.Cordon, func(_ *guard.State, a *guard.Action) { a.Job.NamespaceLabels = nil }, nil, ""},
		"nothing starts in a blackout": {policy.Cordon, func(_ *guard.State, a *guard.Action) {
			a.Policy.Spec.Guards.Blackout = []policy.Window{window}
		}, []guard.Name{guard.Blackout}, "until 2026-11-21T13:00:00Z"},
		"what has started goes on in a blackout": {policy.RestartJob, func(s *guard.State, a *guard.Action) {
			a.Policy.Spec.Guards.Blackout = []policy.Window{window}
			s.Grants = append(s.Grants, did("me", "n39", true, ago(time.Minute), policy.Cordon))
		}, nil, ""},
		"an uncordon is done in a blackout": {policy.Uncordon, func(_ *guard.State, a *guard.Action) {
			a.Policy.Spec.Guards.Blackout = []policy.Window{window}
		}, nil, ""},
		"the breaker counts taints":                            {policy.Cordon, func(s *guard.State, _ *guard.Action) { s.Total, s.Quarantined = fleet(40, 2) }, []guard.Name{guard.Breaker}, "2 of 2"},
		"the breaker lets the last one within the limit pass":  {policy.Cordon, func(s *guard.State, _ *guard.Action) { s.Total, s.Quarantined = fleet(40, 1) }, nil, ""},
		"the breaker allows one on a tiny cluster":             {policy.Cordon, func(s *guard.State, _ *guard.Action) { s.Total, s.Quarantined = fleet(2, 0) }, nil, ""},
		"the breaker refuses the second one on a tiny cluster": {policy.Cordon, func(s *guard.State, _ *guard.Action) { s.Total, s.Quarantined = fleet(4, 1) }, []guard.Name{guard.Breaker}, "1 of 1"},
		"the breaker takes the count where it is smaller":      {policy.Cordon, func(s *guard.State, _ *guard.Action) { s.Total, s.Quarantined = fleet(1000, 5) }, []guard.Name{guard.Breaker}, "5 of 5"},
		"the breaker never blocks an uncordon":                 {policy.Uncordon, func(s *guard.State, _ *guard.Action) { s.Total, s.Quarantined = fleet(40, 30) }, nil, ""},
		"the breaker does not block a restart":                 {policy.RestartJob, func(s *guard.State, _ *guard.Action) { s.Total, s.Quarantined = fleet(40, 30) }, nil, ""},
		"a node that is quarantined already costs nothing": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 2)
			a.Node.Name = "n00"
		}, nil, ""},
		"the breaker counts intents that no taint shows yet": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 1)
			a.Policy.Spec.Guards.MaxConcurrentIncidents = 9
			s.Grants = append(s.Grants, did("x", "n07", true, ago(3*time.Hour), policy.Cordon))
		}, []guard.Name{guard.Breaker}, "2 of 2"},
		"an intent and its taint are one": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 1)
			s.Grants = append(s.Grants, did("x", "n00", true, ago(3*time.Hour), policy.Cordon))
		}, nil, ""},
		"an intent that was undone is none": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 1)
			s.Grants = append(s.Grants, did("x", "n07", true, ago(3*time.Hour), policy.Cordon, policy.Uncordon))
		}, nil, ""},
		"a cordon of a closed incident counts by its taint only": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 1)
			s.Grants = append(s.Grants, did("x", "n07", false, ago(3*time.Hour), policy.Cordon))
		}, nil, ""},
		"the breaker looks at the policy's own nodes": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 1)
			s.InScope = func(node string) bool { return node != "n07" }
			s.Grants = append(s.Grants, did("x", "n07", true, ago(3*time.Hour), policy.Cordon))
		}, nil, ""},
		"the breaker judges all nodes of a plan together": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 1)
			a.Wants = []guard.Place{{Node: "n38"}, {Node: "n39"}}
		}, []guard.Name{guard.Breaker}, "1 of 2"},
		"a grant counts before its node is cordoned": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 1)
			s.Grants = append(s.Grants, did("x", "n07", true, ago(3*time.Hour)))
		}, []guard.Name{guard.Breaker}, "2 of 2"},
		"an incident that was let in is not refused by the trip of another": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Tripped = ago(time.Second)
			s.Grants = append(s.Grants, did("me", "n39", true, ago(2*time.Second)), did("x", "n07", true, ago(2*time.Second)))
		}, nil, ""},
		"an incident that was let in is refused a further node beyond the limit": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			a.Wants = []guard.Place{{Node: "n38"}, {Node: "n39"}}
			s.Grants = append(s.Grants, did("me", "n39", true, ago(2*time.Second)), did("x", "n07", true, ago(2*time.Second)))
		}, []guard.Name{guard.Breaker}, "2 of 2"},
		"an incident that waits takes no node that it has not cordoned": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			x := did("x", "n07", true, ago(3*time.Hour))
			x.Active = false
			s.Total, s.Quarantined = fleet(40, 1)
			s.Grants = append(s.Grants, x)
		}, nil, ""},
		"an incident that has waited is refused as others are": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			own := did("me", "n39", true, ago(3*time.Hour))
			own.Active = false
			s.Total, s.Quarantined = fleet(40, 2)
			s.Grants = append(s.Grants, own)
		}, []guard.Name{guard.Breaker}, "2 of 2"},
		"a breaker that tripped stays open for a while": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Tripped = ago(9 * time.Minute)
		}, []guard.Name{guard.Breaker}, "refused a cordon 9m ago and stays open for 10m, until 2026-11-21T12:01:00Z"},
		"a breaker closes again": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Tripped = ago(10 * time.Minute)
		}, nil, ""},
		"two incidents acting are enough": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Total = 400
			s.Grants = append(s.Grants, did("x", "n01", true, ago(3*time.Hour), policy.Checkpoint), did("y", "n02", true, ago(3*time.Hour), policy.Checkpoint))
		}, []guard.Name{guard.Concurrent}, "2 of 2"},
		"incidents that wait or have ended do not count": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			x, y := did("x", "n00", true, ago(3*time.Hour), policy.Cordon), did("y", "n00", true, ago(3*time.Hour))
			x.Active, y.Active = false, false
			s.Grants = append(s.Grants, x, y, did("z", "n03", false, ago(3*time.Hour), policy.Cordon))
		}, nil, ""},
		"incidents of another policy do not count": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			x, y := did("x", "n00", true, ago(3*time.Hour), policy.Checkpoint), did("y", "n00", true, ago(3*time.Hour), policy.Checkpoint)
			x.Policy, y.Policy = "other", "other"
			s.Grants = append(s.Grants, x, y)
		}, nil, ""},
		"an incident that has waited needs a place again": {policy.RestartJob, func(s *guard.State, _ *guard.Action) {
			own := did("me", "n39", true, ago(time.Hour), policy.Cordon)
			own.Active = false
			s.Grants = append(s.Grants, own, did("x", "n39", true, ago(3*time.Hour), policy.Checkpoint), did("y", "n39", true, ago(3*time.Hour), policy.Checkpoint))
		}, []guard.Name{guard.Concurrent}, "2 of 2"},
		"what another incident of the same cause did to the node is no repetition": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			a.Causes = []string{"e1"}
			g := did("x", "n39", false, ago(time.Second), policy.Cordon)
			g.Causes = []string{"e0", "e1"}
			s.Grants = append(s.Grants, g)
		}, nil, ""},
		"an incident under way is not stopped by others": {policy.RestartJob, func(s *guard.State, _ *guard.Action) {
			s.Grants = append(s.Grants, did("me", "n39", true, ago(time.Minute), policy.Cordon), did("x", "n01", true, ago(3*time.Hour), policy.Checkpoint), did("y", "n02", true, ago(3*time.Hour), policy.Checkpoint))
		}, nil, ""},
		"a node is left to cool down": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Grants = append(s.Grants, did("x", "n39", false, ago(time.Hour), policy.Cordon))
		}, []guard.Name{guard.Cooldown}, "last: 1h, at least 2h apart), since incident x did the same to the node, until 2026-11-21T13:00:00Z"},
		"a node has cooled down": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Grants = append(s.Grants, did("x", "n39", false, ago(2*time.Hour), policy.Cordon))
		}, nil, ""},
		"a rank restarted in place does not keep a bad node in service": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Grants = append(s.Grants, did("x", "n39", false, ago(time.Minute), policy.Checkpoint, policy.RestartJob))
		}, nil, ""},
		"a restart in place is no repetition of a restart elsewhere": {policy.RestartJob, func(s *guard.State, a *guard.Action) {
			a.Wants = []guard.Place{{Node: "n39"}}
			s.Grants = append(s.Grants, did("x", "n39", false, ago(time.Minute), policy.Checkpoint, policy.RestartJob))
		}, nil, ""},
		"a restart elsewhere is one": {policy.RestartJob, func(s *guard.State, a *guard.Action) {
			a.Wants = []guard.Place{{Node: "n39"}}
			s.Grants = append(s.Grants, did("x", "n39", false, ago(time.Minute), policy.Cordon, policy.RestartJob))
		}, []guard.Name{guard.Cooldown}, "last: 1m"},
		"an uncordon starts no cooldown": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			s.Grants = append(s.Grants, did("x", "n39", false, ago(time.Minute), policy.Uncordon, policy.Notify))
		}, nil, ""},
		"the budget is charged for the whole plan": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			for i := range 19 {
				s.Grants = append(s.Grants, did(fmt.Sprint(i), "n01", false, ago(time.Duration(i+1)*time.Hour), policy.Cordon, policy.Checkpoint, policy.Notify))
			}
		}, []guard.Name{guard.ActBudget}, "19 of 20 per 24h), 2 more wanted, until 2026-11-21T17:00:00Z"},
		"an open incident is charged for what it still means to do": {policy.Cordon, func(s *guard.State, a *guard.Action) {
			a.Policy.Spec.Guards.ActionBudget.Count = 3
			s.Grants = append(s.Grants, did("x", "n01", true, ago(3*time.Hour), policy.Cordon))
		}, []guard.Name{guard.ActBudget}, "2 of 3"},
		"the budget forgets": {policy.Cordon, func(s *guard.State, _ *guard.Action) {
			for i := range 30 {
				s.Grants = append(s.Grants, did(fmt.Sprint(i), "n01", false, ago(24*time.Hour), policy.Cordon))
			}
		}, nil, ""},
		"a stale event never acts":         {policy.Cordon, func(_ *guard.State, a *guard.Action) { a.Seen = ago(61 * time.Second) }, []guard.Name{guard.EventAge}, "1m1s old, at most 1m"},
		"an event of a week ago":           {policy.RestartJob, func(_ *guard.State, a *guard.Action) { a.Seen = ago(7 * 24 * time.Hour) }, []guard.Name{guard.EventAge}, "ask the node"},
		"an event from the future":         {policy.Cordon, func(_ *guard.State, a *guard.Action) { a.Seen = now.Add(2 * time.Minute) }, []guard.Name{guard.EventAge}, "a clock is wrong"},
		"clocks a little apart":            {policy.Cordon, func(_ *guard.State, a *guard.Action) { a.Seen = now.Add(2 * time.Second) }, nil, ""},
		"an event of unknown age is stale": {policy.Cordon, func(_ *guard.State, a *guard.Action) { a.Seen = time.Time{} }, []guard.Name{guard.EventAge}, "ask the node"},
		"a long checkpoint does not make the incident stale": {policy.RestartJob, func(s *guard.State, a *guard.Action) {
			a.Seen = ago(10 * time.Minute)
			s.Grants = append(s.Grants, did("me", "n39", true, ago(9*time.Minute), policy.Cordon, policy.Checkpoint))
		}, nil, ""},
		"a job is restarted three times a day": {policy.RestartJob, func(s *guard.State, _ *guard.Action) {
			for i, h := range []time.Duration{3, 5, 7} {
				in := did(fmt.Sprint(i), "n01", false, ago(h*time.Hour), policy.RestartJob)
				in.Job = "j"
				s.Grants = append(s.Grants, in)
			}
		}, []guard.Name{guard.PerJob}, "3 of 3 per 24h), restarts of the job, until 2026-11-22T05:00:00Z"},
		"the policy says how often a job is restarted": {policy.RestartJob, func(s *guard.State, a *guard.Action) {
			a.With = &policy.With{MaxPerJob: 1}
			in := did("x", "n01", false, ago(3*time.Hour), policy.RestartJob)
			in.Job = "j"
			s.Grants = append(s.Grants, in)
		}, []guard.Name{guard.PerJob}, "1 of 1"},
		"its own restart, seen again after a crash, does not count": {policy.RestartJob, func(s *guard.State, a *guard.Action) {
			a.With = &policy.With{MaxPerJob: 1}
			in := did("me", "n39", true, ago(time.Second), policy.Cordon, policy.RestartJob)
			in.Job = "j"
			s.Grants = append(s.Grants, in)
		}, nil, ""},
		"a verb nobody knows is asked everything": {"melt", func(s *guard.State, a *guard.Action) {
			s.Total, s.Quarantined = fleet(40, 2)
			s.Kill.On, a.Seen, a.Job.NamespaceLabels = true, time.Time{}, nil
		}, []guard.Name{guard.KillSwitch, guard.OptIn, guard.Breaker, guard.EventAge}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, a := guard.State{Total: 40}, action(c.verb)
			c.change(&s, &a)
			vs := guard.Check(s, a, now)
			var refused []guard.Name
			says := ""
			for _, v := range guard.Blocking(vs) {
				refused = append(refused, v.Guard)
				says += v.String() + "\n"
			}
			if d := cmp.Diff(c.refused, refused); d != "" {
				t.Errorf("%s%s", d, says)
			}
			if !strings.Contains(says, c.says) {
				t.Errorf("says %s, want %s", says, c.says)
			}
			if len(vs) != 16 {
				t.Errorf("%d verdicts; an incident records every guard's", len(vs))
			}
			rand.Shuffle(len(s.Grants), func(i, j int) { s.Grants[i], s.Grants[j] = s.Grants[j], s.Grants[i] })
			rand.Shuffle(len(s.Quarantined), func(i, j int) { s.Quarantined[i], s.Quarantined[j] = s.Quarantined[j], s.Quarantined[i] })
			if d := cmp.Diff(vs, guard.Check(s, a, now)); d != "" {
				t.Errorf("a new leader that lists in another order judges otherwise: %s", d)
			}
		})
	}
}

func TestOnlyTheLimitItselfTripsTheBreakerSoThatItsHoldEnds(t *testing.T) {
	// A refusal during the hold must not be recorded as a new trip, or incidents that retry would keep it open for ever.
	breaker := func(s guard.State) guard.Verdict {
		for _, v := range guard.Check(s, action(policy.Cordon), now) {
			if v.Guard == guard.Breaker {
				return v
			}
		}
		t.Fatal("no breaker")
		return guard.Verdict{}
	}
	total, taken := fleet(40, 2)
	if v := breaker(guard.State{Total: total, Quarantined: taken}); v.Allowed || !v.Tripped {
		t.Errorf("at the limit: %+v", v)
	}
	if v := breaker(guard.State{Total: 40, Tripped: ago(time.Minute)}); v.Allowed || v.Tripped {
		t.Errorf("in the hold: %+v", v)
	}
}

func TestVerdictsComeInTheOrderOfJudgement(t *testing.T) {
	var got []guard.Name
	for _, v := range guard.Check(guard.State{}, action(policy.Cordon), now) {
		got = append(got, v.Guard)
	}
	want := []guard.Name{guard.KillSwitch, guard.Hold, guard.OptIn, guard.Blackout, guard.Breaker, guard.Concurrent, guard.Cooldown, guard.ActBudget, guard.EventAge, guard.PerJob,
		guard.Lasts, guard.SecondSign, guard.OneCulprit, guard.WorthIt, guard.Fresh, guard.NotInVain}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
