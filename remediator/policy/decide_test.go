package policy_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

var update = flag.Bool("update", false, "rewrite golden files")

func fault(kind, name string, s event.Severity) event.Event {
	c := event.Cause{Kind: kind, Name: name}
	if strings.Trim(name, "0123456789") == "" {
		c = event.Cause{Kind: kind, Code: name}
	}
	return event.Event{ID: "e1", Source: "//c/node/a2/x", Type: event.Fault, Time: time.Date(2026, 11, 21, 4, 5, 6, 0, time.UTC),
		Data: event.Data{Target: event.Target{Node: "a2", GPU: "GPU-1"}, Cause: c, Severity: s}}
}

func load(t *testing.T, text string) []policy.Policy {
	t.Helper()
	ps, err := policy.Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

// doc is a policy with one rule on signal, in a mode.
func doc(name, mode string, order string, when string, extra ...string) string {
	return "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: " + name + "}\nspec:\n  mode: " + mode + "\n  order: " + order +
		"\n" + strings.Join(append(extra, ""), "\n") + "  rules:\n  - {name: rule-of-" + name + ", when: {" + when + "}, steps: [{do: cordon}]}\n---\n"
}

var node, job = policy.Node{Name: "a2", Labels: map[string]string{"pitcrew.dev/pool": "train"}, Ready: true},
	policy.Job{Namespace: "ml", Name: "llm", UID: "u1"}

func TestShippedPoliciesDoWhatTheirSignalsCallFor(t *testing.T) {
	move, stay := "cordon checkpoint restart-job:equivalent notify", "checkpoint restart-job:same-node notify"
	for _, c := range []struct {
		signal   string
		severity event.Severity
		node     policy.Node
		want     string
	}{
		{"xid/79", event.Fatal, node, "gpu-gone " + move + " reboot-node"},
		{"gpu/lost", event.Fatal, node, "gpu-gone " + move + " reboot-node"},
		{"node/lost", event.Fatal, node, "gpu-gone " + move + " reboot-node"},
		{"xid/119", event.Fatal, node, "gpu-gone " + move + " reboot-node"},
		{"xid/120", event.Fatal, node, "gpu-gone " + move + " reboot-node"},
		{"xid/48", event.Critical, node, "gpu-memory " + move},
		{"xid/63", event.Warning, node, "memory-remapped notify"},
		{"xid/92", event.Warning, node, "memory-remapped notify"},
		{"xid/64", event.Fatal, node, "gpu-memory " + move},
		{"xid/94", event.Critical, node, "contained-error " + stay},
		{"xid/95", event.Fatal, node, "gpu-memory " + move},
		{"gpu/ecc", event.Critical, node, "gpu-counters " + move},
		{"gpu/ecc", event.Warning, node, ""},
		{"gpu/row-remap", event.Critical, node, ""},
		{"gpu/row-remap", event.Fatal, node, "remap-failed " + move},
		{"gpu/unhealthy", event.Critical, node, "gpu-counters " + move},
		{"xid/74", event.Critical, node, "gpu-fabric " + move},
		{"nvlink/down", event.Critical, node, "links notify"},
		{"xid/13", event.Warning, node, "application-fault notify"},
		{"xid/31", event.Warning, node, "application-fault notify"},
		{"xid/43", event.Warning, node, "application-fault notify"},
		{"xid/45", event.Info, node, "application-fault notify"},
		{"rank/dead", event.Fatal, node, "rank-fault " + stay},
		{"rank/hung", event.Fatal, node, "rank-fault " + stay},
		{"rank/dead", event.Fatal, policy.Node{Name: "a2", Quarantined: true}, "rank-fault-on-cordoned-node " + move},
		{"rank/stalled", event.Warning, node, "rank-stalled notify"},
		{"rank/straggler", event.Warning, node, "slow-rank " + move},
		{"rank/imbalance", event.Warning, node, "slow-rank " + move},
		{"rank/absent", event.Warning, node, "rank-absent notify"},
		{"agent/lost", event.Warning, node, ""},
		{"xid/162", event.Info, node, ""},
	} {
		kind, name, _ := strings.Cut(c.signal, "/")
		for _, ps := range [][]policy.Policy{shipped(t), policy.WithMode(shipped(t), policy.Enforce)} {
			j := policy.Decide(fault(kind, name, c.severity), c.node, job, policy.Incident{}, ps)
			got := []string{j.Rule}
			for _, s := range j.Steps {
				w := string(s.Do)
				if s.With != nil {
					w += ":" + string(s.With.Placement)
				}
				got = append(got, w)
			}
			if d := cmp.Diff(c.want, strings.Join(got, " ")); d != "" {
				t.Errorf("%s %s: %s", c.signal, c.severity, d)
			}
			wantOutcome := map[policy.Mode]policy.Outcome{policy.Observe: policy.Record, policy.Enforce: policy.Act}[ps[0].Spec.Mode]
			if len(j.Steps) < 2 { // a rule of notify alone, or the default
				wantOutcome = policy.Tell
			}
			if j.Outcome != wantOutcome {
				t.Errorf("%s in mode %s: outcome %s, want %s", c.signal, ps[0].Spec.Mode, j.Outcome, wantOutcome)
			}
		}
	}
}

func TestTheLowestOrderThatMayActIsTakenAndTheOthersAreRecorded(t *testing.T) {
	e := fault("xid", "79", event.Fatal)
	for name, c := range map[string]struct {
		policies string
		outcome  policy.Outcome
		chosen   string
		why      map[string]policy.Why
	}{
		"two that enforce": {doc("late", "enforce", "20", "signal: xid/79") + doc("early", "enforce", "10", "signal: xid/79"),
			policy.Act, "early", map[string]policy.Why{"early": "", "late": policy.WhyShadowed}},
		"an observing one never hides one that enforces": {doc("trial", "observe", "10", "signal: xid/79") + doc("old", "enforce", "20", "signal: xid/79"),
			policy.Act, "old", map[string]policy.Why{"trial": policy.WhyObserving, "old": ""}},
		"only observing ones": {doc("a", "observe", "10", "signal: xid/79") + doc("b", "observe", "20", "signal: xid/79"),
			policy.Record, "a", map[string]policy.Why{"a": "", "b": policy.WhyObserving}},
		"one that asks": {doc("a", "approve", "10", "signal: xid/79") + doc("b", "enforce", "20", "signal: xid/79"),
			policy.Ask, "a", map[string]policy.Why{"a": "", "b": policy.WhyShadowed}},
		"one that is off": {doc("a", "off", "10", "signal: xid/79") + doc("b", "enforce", "20", "signal: xid/79"),
			policy.Act, "b", map[string]policy.Why{"a": policy.WhyOff, "b": ""}},
		"all off": {doc("a", "off", "10", "signal: xid/79"), policy.Nothing, "", map[string]policy.Why{"a": policy.WhyOff}},
		"no rule matches, and the first that applies has the say": {doc("a", "enforce", "10", "signal: xid/13", "  default: ignore") + doc("b", "enforce", "20", "signal: xid/13"),
			policy.Nothing, "", map[string]policy.Why{"a": policy.WhyNoRule, "b": policy.WhyNoRule}},
		"no rule matches, and it notifies": {doc("a", "enforce", "10", "signal: xid/13"),
			policy.Tell, "", map[string]policy.Why{"a": policy.WhyNoRule}},
		"another pool": {doc("a", "enforce", "10", "signal: xid/79", "  appliesTo: {pools: [h100-*]}"),
			policy.Nothing, "", map[string]policy.Why{"a": policy.WhyScope}},
		"the node's pool by glob": {doc("a", "enforce", "10", "signal: xid/79", "  appliesTo: {pools: ['tr*']}"),
			policy.Act, "a", map[string]policy.Why{"a": ""}},
		"another namespace": {doc("a", "enforce", "10", "signal: xid/79", "  appliesTo: {namespaces: [prod]}"),
			policy.Nothing, "", map[string]policy.Why{"a": policy.WhyScope}},
		"a label the node lacks": {doc("a", "enforce", "10", "signal: xid/79", "  appliesTo: {nodes: {managed: 'yes'}}"),
			policy.Nothing, "", map[string]policy.Why{"a": policy.WhyScope}},
	} {
		t.Run(name, func(t *testing.T) {
			ps := load(t, c.policies)
			j := policy.Decide(e, node, job, policy.Incident{}, ps)
			chosen, why := "", map[string]policy.Why{}
			for _, p := range j.Policies {
				why[p.Policy] = p.Why
				if p.Chosen {
					chosen = p.Policy
				}
			}
			if j.Outcome != c.outcome || chosen != c.chosen {
				t.Errorf("outcome %s by %q, want %s by %q", j.Outcome, chosen, c.outcome, c.chosen)
			}
			if d := cmp.Diff(c.why, why); d != "" {
				t.Error(d)
			}
			for range 5 { // whatever order they are given in
				rand.Shuffle(len(ps), func(a, b int) { ps[a], ps[b] = ps[b], ps[a] })
				if d := cmp.Diff(j, policy.Decide(e, node, job, policy.Incident{}, ps), ignore); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestARuleSaysWhyItDidNotMatch(t *testing.T) {
	e := fault("xid", "79", event.Critical)
	score := 0.5
	e.Data.Evidence.Score = &score
	for name, c := range map[string]struct {
		when   string
		why    policy.Why
		detail string
	}{
		"another signal":                {"signal: [xid/48, gpu/*]", policy.WhySignal, "xid/79 is none of xid/48, gpu/*"},
		"a lower severity":              {"signal: xid/*, severity: fatal", policy.WhySeverity, "severity is critical, wanted fatal or more"},
		"the severity asked for":        {"signal: xid/*, severity: critical", "", "signal xid/79 is xid/*, severity critical"},
		"a lone star":                   {"signal: '*'", "", ""},
		"a character class":             {"signal: 'xid/[78]9'", "", ""},
		"an expression that is not":     {"signal: xid/79, expr: event.evidence.score >= 0.9", policy.WhyExpr, "event.evidence.score >= 0.9"},
		"an expression that is":         {"signal: xid/79, expr: event.evidence.score < 0.9 && node.ready && job.name == 'llm' && 'rank/dead' in incident.signals", "", ""},
		"an expression that fails":      {"signal: xid/79, expr: \"node.labels['rack'] == 'r1'\"", policy.WhyExprError, "no such key: rack"},
		"an expression that asks first": {"signal: xid/79, expr: \"'rack' in node.labels && node.labels['rack'] == 'r1'\"", policy.WhyExpr, ""},
		"an unknown rank is -1":         {"signal: xid/79, expr: event.target.rank == -1", "", ""},
		"time":                          {"signal: xid/79, expr: \"event.time > timestamp('2026-01-01T00:00:00Z')\"", "", ""},
		"an expression without end":     {"signal: xid/79, expr: '[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, a+b+c+d+e+f+event.count > 0))))))'", policy.WhyExprError, "cost limit"},
	} {
		t.Run(name, func(t *testing.T) {
			j := policy.Decide(e, node, job, policy.Incident{Signals: []string{"xid/79", "rank/dead"}}, load(t, doc("p", "enforce", "1", c.when)))
			r := j.Policies[0].Rules[0]
			if r.Why != c.why || r.Matched != (c.why == "") || !strings.Contains(r.Detail, c.detail) {
				t.Errorf("got %q (%s), want %q (%s)", r.Why, r.Detail, c.why, c.detail)
			}
		})
	}
}

func TestReportsAndInformationNeverAct(t *testing.T) {
	ps := load(t, doc("p", "enforce", "1", "signal: '*'"))
	lost := fault("agent", "lost", event.Fatal)
	recovered := fault("xid", "79", event.Fatal)
	recovered.Type = event.Recovery
	own := fault("xid", "79", event.Fatal)
	own.Type = event.Incident
	alone := fault("anomaly", "sm-clock", event.Info)
	alone.Type = event.Anomaly
	for _, e := range []event.Event{lost, recovered, own, alone} {
		j := policy.Decide(e, node, job, policy.Incident{}, ps)
		if j.Outcome == policy.Act || len(j.Steps) > 0 || j.Why != policy.WhyNeverActs {
			t.Errorf("%s %s: %s %v", e.Type, j.Signal, j.Outcome, j.Steps)
		}
	}
}

func TestTheShippedPoliciesActOnStatisticalFindingsUnderTermsAndTellOfWarnings(t *testing.T) {
	for _, mode := range []policy.Mode{policy.Observe, policy.Enforce} {
		for signal, severity := range map[string]event.Severity{"thermal-throttle": event.Critical, "launch-latency": event.Warning, "degraded": event.Critical} {
			e := fault("anomaly", signal, severity)
			e.Type = event.Anomaly
			j := policy.Decide(e, node, job, policy.Incident{}, policy.WithMode(shipped(t), mode))
			if severity == event.Warning {
				if j.Outcome != policy.Tell || j.Rule != "borne-out" || j.Terms != nil {
					t.Errorf("%s in %s: %s by rule %q", signal, mode, j.Outcome, j.Rule)
				}
				continue
			}
			want := map[policy.Mode]policy.Outcome{policy.Observe: policy.Record, policy.Enforce: policy.Act}[mode]
			if j.Outcome != want || j.Rule != "slow-hardware" || j.Terms == nil || !j.Terms.Statistical || j.Verify.Signal != policy.Pace {
				t.Errorf("%s in %s: %s by rule %q, terms %+v", signal, mode, j.Outcome, j.Rule, j.Terms)
			}
		}
	}
}

func TestApproveAsksBeforeEveryStepButNotBeforeTelling(t *testing.T) {
	j := policy.Decide(fault("xid", "79", event.Fatal), node, job, policy.Incident{}, policy.WithMode(shipped(t), policy.Approve))
	for _, s := range j.Steps {
		if s.NeedsApproval != (s.Do != policy.Notify) {
			t.Errorf("%s: needs approval %v", s.Do, s.NeedsApproval)
		}
	}
	j = policy.Decide(fault("xid", "79", event.Fatal), node, job, policy.Incident{}, policy.WithMode(shipped(t), policy.Enforce))
	for _, s := range j.Steps {
		if s.NeedsApproval != (s.Do == policy.RebootNode) || s.Recommendation != (s.Do == policy.RebootNode) {
			t.Errorf("%s: needs approval %v, recommendation %v", s.Do, s.NeedsApproval, s.Recommendation)
		}
	}
	if j.Disruptive() != 2 {
		t.Errorf("%d disruptive steps, want cordon and restart-job", j.Disruptive())
	}
}

func TestTheExplanationReadsAsItDid(t *testing.T) {
	ps := append(policy.WithMode(shipped(t), policy.Enforce), load(t, doc("h100-only", "enforce", "50", "signal: '*'", "  appliesTo: {pools: [h100]}"))...)
	got := policy.Decide(fault("xid", "48", event.Critical), node, job, policy.Incident{}, ps).String()
	hashes := []string{}
	for _, p := range ps {
		hashes = append(hashes, p.Hash(), "hash-of-"+p.Metadata.Name)
	}
	got = strings.NewReplacer(hashes...).Replace(got)
	file := filepath.Join("testdata", "explain.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Error(d)
	}
}

func TestASharesBoundIsTheSmallerRoundedUpAndAtLeastOne(t *testing.T) {
	for _, c := range []struct {
		s           policy.Share
		total, want int
	}{
		{policy.Share{Count: 5, Percent: 5}, 4, 1}, {policy.Share{Count: 5, Percent: 5}, 21, 2}, {policy.Share{Count: 5, Percent: 5}, 20, 1},
		{policy.Share{Count: 5, Percent: 5}, 1000, 5}, {policy.Share{Count: 5}, 1, 5}, {policy.Share{Percent: 10}, 0, 1},
		{policy.Share{Percent: 7}, 100, 7}, {policy.Share{Percent: 16.1}, 1000, 161}, {policy.Share{Percent: 100}, 3, 3}, {policy.Share{}, 100, 1},
	} {
		if got := c.s.Of(c.total); got != c.want {
			t.Errorf("%s of %d nodes: %d, want %d", c.s, c.total, got, c.want)
		}
	}
}

func TestAWindowHoldsOverMidnightOverSundayAndOverSummerTime(t *testing.T) {
	for _, c := range []struct{ window, at, until string }{
		{"22:00-06:00 UTC", "2026-11-21T23:00:00Z", "2026-11-22T06:00:00Z"},
		{"22:00-06:00 UTC", "2026-11-21T05:59:59Z", "2026-11-21T06:00:00Z"},
		{"22:00-06:00 UTC", "2026-11-21T06:00:00Z", ""},
		{"22:00-06:00 UTC", "2026-11-21T22:00:00Z", "2026-11-22T06:00:00Z"},
		{"00:00-24:00 UTC", "2026-11-21T12:00:00Z", "2026-11-22T00:00:00Z"},
		{"Fri 18:00-Mon 06:00 Europe/Berlin", "2026-11-22T12:00:00Z", "2026-11-23T05:00:00Z"}, // a Sunday, winter time
		{"Fri 18:00-Mon 06:00 Europe/Berlin", "2026-11-20T16:59:00Z", ""},
		{"Fri 18:00-Mon 06:00 Europe/Berlin", "2026-11-20T17:00:00Z", "2026-11-23T05:00:00Z"},
		{"Sat 00:00-Mon 00:00 Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T23:00:00Z"}, // the clock goes back in between
		{"Tue 09:00-Tue 17:00 UTC", "2026-11-25T10:00:00Z", ""},
	} {
		w, err := policy.ParseWindow(c.window)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := time.Parse(time.RFC3339, c.at)
		until, in := w.Contains(at)
		got := ""
		if in {
			got = until.UTC().Format(time.RFC3339)
		}
		if got != c.until {
			t.Errorf("%s at %s: until %q, want %q", c.window, c.at, got, c.until)
		}
	}
}
