package policy_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/rules"
)

// wantsAction are the advices of the Xid table that ask for something to be done.
var wantsAction = map[rules.Advice]bool{rules.RestartApp: true, rules.ResetGPU: true, rules.RebootNode: true, rules.DrainAndRMA: true, rules.CheckFabric: true}

// left reads which Xids docs/policy.md says no shipped rule acts on, and why.
func left(t *testing.T) map[int]string {
	t.Helper()
	doc, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(doc), "\n## Xids that no shipped rule acts on\n")
	if !ok {
		t.Fatal("docs/policy.md has lost its list of Xids that no rule acts on")
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	out := map[int]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9, –]+) \| (.+) \|$`).FindAllStringSubmatch(rest, -1) {
		for part := range strings.SplitSeq(row[1], ",") {
			from, to, isRange := strings.Cut(strings.TrimSpace(part), "–")
			a, err1 := strconv.Atoi(from)
			b := a
			var err2 error
			if isRange {
				b, err2 = strconv.Atoi(to)
			}
			if err1 != nil || err2 != nil {
				t.Fatalf("%q is no list of Xids", row[1])
			}
			for ; a <= b; a++ {
				if out[a] != "" {
					t.Errorf("Xid %d is listed twice", a)
				}
				out[a] = row[2]
			}
		}
	}
	return out
}

// Each row of the table that asks for an action has a rule that acts, or a sentence in the docs that says why not; and none has both.
func TestEachXidThatAsksForAnActionHasARuleOrAReason(t *testing.T) {
	tables, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	why := left(t)
	enforced := policy.WithMode(shipped(t), policy.Enforce)
	asks := map[int]bool{}
	for _, x := range tables.XIDs() {
		e := fault("xid", fmt.Sprint(x.Code), event.Severity(x.Severity))
		acts := policy.Decide(e, node, job, policy.Incident{}, enforced).Outcome == policy.Act
		reason := why[x.Code]
		asks[x.Code] = wantsAction[x.Advice]
		switch {
		case acts && reason != "":
			t.Errorf("Xid %d has a rule that acts, and docs/policy.md says that it has none: %s", x.Code, reason)
		case wantsAction[x.Advice] && !acts && reason == "":
			t.Errorf("Xid %d (%s): the table says %s; no shipped rule acts, and docs/policy.md does not say why", x.Code, x.Name, x.Advice)
		case acts && !wantsAction[x.Advice]:
			t.Errorf("Xid %d (%s): the table says %s, and a shipped rule acts on one of it", x.Code, x.Name, x.Advice)
		}
	}
	for code := range why {
		if !asks[code] {
			t.Errorf("docs/policy.md explains Xid %d, for which the table asks nothing", code)
		}
	}
}

func TestXidsThatAreToBeIgnoredActByHowOftenTheyCome(t *testing.T) {
	enforced := policy.NewBook(policy.WithMode(shipped(t), policy.Enforce))
	for _, c := range []struct {
		code  string
		times int
		rule  string
		acts  bool
	}{
		{"63", 1, "memory-remapped", false}, {"63", 2, "memory-remapped", false}, {"63", 3, "memory-degrades", true}, {"92", 3, "memory-degrades", true},
		{"94", 1, "contained-error", true}, {"94", 2, "contained-error-repeats", true},
		{"13", 99, "application-fault", false}, {"31", 99, "application-fault", false}, {"43", 99, "application-fault", false},
	} {
		asked := time.Duration(0)
		j := enforced.DecideSeen(fault("xid", c.code, event.Warning), node, job, policy.Incident{}, func(within time.Duration) int { asked = within; return c.times })
		if j.Rule != c.rule || (j.Outcome == policy.Act) != c.acts {
			t.Errorf("Xid %s, %d times: rule %s, %s", c.code, c.times, j.Rule, j.Outcome)
		}
		if c.code < "9" && c.code > "6" && asked != 24*time.Hour {
			t.Errorf("Xid %s: asked about %s", c.code, asked)
		}
		cordons := false
		for _, s := range j.Steps {
			cordons = cordons || s.Do == policy.Cordon
		}
		if cordons != (c.acts && c.rule != "contained-error") {
			t.Errorf("Xid %s, %d times: cordons %v", c.code, c.times, cordons)
		}
	}
	many := fault("xid", "63", event.Warning)
	many.Data.Count = 3
	if j := enforced.Decide(many, node, job, policy.Incident{}); j.Rule != "memory-degrades" {
		t.Errorf("an event that stands for three: rule %s", j.Rule)
	}
}

func TestTermsAreChecked(t *testing.T) {
	rule := func(text string) string {
		return "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\nspec:\n  order: 1\n  rules:\n  - " + text + "\n"
	}
	for text, want := range map[string]string{
		"{name: r, when: {signal: xid/63, count: 3}, steps: [{do: cordon}]}":                                                                            "needs within",
		"{name: r, when: {signal: xid/63, within: 24h}, steps: [{do: cordon}]}":                                                                         "means nothing without count",
		"{name: r, when: {signal: xid/63, count: 1, within: 24h}, steps: [{do: cordon}]}":                                                               "at least 2",
		"{name: r, when: {signal: xid/63, count: 0}, steps: [{do: cordon}]}":                                                                            "at least 2",
		"{name: r, when: {signal: xid/63, count: 3, within: 169h}, steps: [{do: cordon}]}":                                                              "at most 168h",
		"{name: r, when: {signal: rank/straggler}, for: 15s, steps: [{do: notify}]}":                                                                    "means nothing for a rule that only notifies",
		"{name: r, when: {signal: rank/straggler}, worth: {margin: 2}, steps: [{do: notify}]}":                                                          "means nothing for a rule that only notifies",
		"{name: r, when: {signal: rank/straggler}, worth: {margin: 0.5}, steps: [{do: cordon}]}":                                                        "at least 1",
		"{name: r, when: {signal: rank/straggler}, worth: {horizon: 0s}, steps: [{do: cordon}]}":                                                        "above 0",
		"{name: r, when: {signal: rank/straggler}, for: 15, steps: [{do: cordon}]}":                                                                     "is not a duration",
		"{name: r, when: {signal: rank/straggler}, for: 0s, worth: {horizon: 2h}, steps: [{do: cordon}]}":                                               "",
		"{name: r, when: {signal: xid/63, count: 3, within: 24h}, steps: [{do: cordon}]}":                                                               "",
		"{name: a, when: {signal: xid/63, count: 3, within: 24h}, steps: [{do: cordon}]}\n  - {name: b, when: {signal: xid/63}, steps: [{do: cordon}]}": "",
	} {
		_, err := policy.Parse("p.yaml", []byte(rule(text)))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n%v\nwant %q", text, err, want)
		}
	}
}

func TestAStatisticalFindingHasTermsWhateverItsRuleSays(t *testing.T) {
	ps, err := policy.Parse("p.yaml", []byte("apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nmetadata: {name: p}\nspec:\n  mode: enforce\n  order: 1\n  rules:\n"+
		"  - {name: r, when: {signal: [rank/straggler, rank/dead, anomaly/degraded, rule/mine]}, steps: [{do: cordon}]}\n"+
		"  - {name: s, when: {signal: rank/imbalance}, for: 1m, worth: {margin: 3}, steps: [{do: cordon}]}\n  - {name: t, when: {signal: xid/63}, for: 1m, steps: [{do: cordon}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	def := policy.DefaultWorth()
	high := def
	high.Margin = 3
	for signal, want := range map[string]*policy.Terms{
		"rank/straggler": {For: policy.DefaultFor, Worth: def, Statistical: true}, "anomaly/degraded": {For: policy.DefaultFor, Worth: def, Statistical: true},
		"rank/imbalance": {For: policy.Duration(time.Minute), Worth: high, Statistical: true}, "rank/dead": nil, "rule/mine": nil,
		"xid/63": {For: policy.Duration(time.Minute), Worth: def},
	} {
		kind, name, _ := strings.Cut(signal, "/")
		e := fault(kind, name, event.Critical)
		if kind == "anomaly" || kind == "rule" || signal == "rank/straggler" || signal == "rank/imbalance" {
			e.Type = event.Anomaly
		}
		got := policy.Decide(e, node, job, policy.Incident{}, ps).Terms
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %+v, want %+v", signal, got, want)
		}
	}
}

func TestTheLossOfAnHourIsOfAllRanksOfTheJob(t *testing.T) {
	e := fault("rank", "straggler", event.Warning)
	e.Data.Evidence.LostGPUSeconds, e.Data.Evidence.DurationS, e.Data.Target.WorldSize = 30, 10, 16
	e.Source = event.GatewaySource("c", "gw", "detector")
	if v := policy.LossPerHour(e); v != 3*3600 {
		t.Errorf("of a gateway %v", v)
	}
	if e.Source = event.Source("c", "n1", "detector"); policy.LossPerHour(e) != 16*3*3600 {
		t.Errorf("of a node %v", policy.LossPerHour(e))
	}
	for _, bad := range []func(*event.Evidence){func(v *event.Evidence) { v.DurationS = 0 }, func(v *event.Evidence) { v.LostGPUSeconds = -1 }} {
		x := e
		bad(&x.Data.Evidence)
		if v := policy.LossPerHour(x); v != 0 {
			t.Errorf("%v of %+v", v, x.Data.Evidence)
		}
	}
}
