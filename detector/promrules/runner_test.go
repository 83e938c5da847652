package promrules

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

var start = time.Unix(1_800_000_000, 0).UTC()

// bench is a runner with a clock of its own.
type bench struct {
	*Runner
	now time.Time
}

func newBench(t *testing.T, rules string, change ...func(*Options)) *bench {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Files: []string{file}, Cluster: "c1", Speaker: "gw", Interval: 5 * time.Second}
	for _, f := range change {
		f(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return &bench{Runner: r, now: start}
}

func (b *bench) put(v float64, pairs ...string) {
	b.Append(labels.FromStrings(pairs...), b.now.UnixMilli(), v)
}

// step moves the clock and evaluates.
func (b *bench) step(d time.Duration) []finding.Finding {
	b.now = b.now.Add(d)
	return b.Evaluate(context.Background(), b.now)
}

const hot = `
groups:
- name: thermal
  rules:
  - alert: GPUHot
    expr: DCGM_FI_DEV_GPU_TEMP > 85
    for: 15s
    keep_firing_for: 10s
    labels: {severity: critical}
    annotations:
      summary: 'GPU {{ $labels.gpu }} at {{ $value | printf "%.0f" }} C'
      runbook_url: https://example.com/gpu-hot
`

var gpu = []string{"__name__", "DCGM_FI_DEV_GPU_TEMP", "Hostname", "n7", "UUID", "GPU-1", "gpu", "3"}

func TestAnAlertFiresAfterItsForAndEndsAfterKeepFiringFor(t *testing.T) {
	b := newBench(t, hot)
	for i := range 3 {
		b.put(90, gpu...)
		if got := b.step(5 * time.Second); len(got) != 0 {
			t.Fatalf("evaluation %d: %v before for was over", i, got)
		}
	}
	b.put(91, gpu...)
	got := b.step(5 * time.Second)
	if len(got) != 1 || !got[0].Active {
		t.Fatalf("after for: %v", got)
	}
	e := got[0].Event
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
	d := e.Data
	if d.Target.Node != "n7" || d.Target.GPU != "GPU-1" || d.Target.Cluster != "c1" || d.Cause.Signal() != "rule/GPUHot" || d.Severity != event.Critical || event.GatewayOf(e.Source) != "gw" {
		t.Errorf("event says %+v", d)
	}
	if d.Evidence.Raw != "GPU 3 at 91 C · https://example.com/gpu-hot" || *d.Evidence.Value != 91 || d.Evidence.Signal != "DCGM_FI_DEV_GPU_TEMP > 85" {
		t.Errorf("evidence %+v", d.Evidence)
	}
	if want := start.Add(5 * time.Second); !d.Onset.Equal(want) {
		t.Errorf("onset %s, want the first evaluation that saw it, %s", d.Onset, want)
	}
	b.put(60, gpu...)
	if got := b.step(5 * time.Second); len(got) != 0 {
		t.Errorf("ended before keep_firing_for: %v", got)
	}
	b.step(5 * time.Second)
	got = b.step(5 * time.Second)
	if len(got) != 1 || got[0].Active || got[0].Event.Type != event.Recovery {
		t.Errorf("end: %v", got)
	}
}

func TestAGapStartsForAnew(t *testing.T) {
	b := newBench(t, hot)
	for range 3 {
		b.put(90, gpu...)
		b.step(5 * time.Second)
	}
	b.put(60, gpu...)
	b.step(5 * time.Second)
	for range 3 {
		b.put(90, gpu...)
		if got := b.step(5 * time.Second); len(got) != 0 {
			t.Fatalf("fired %v although the condition had a gap", got)
		}
	}
}

func TestARecordingRuleFeedsTheAlertAfterIt(t *testing.T) {
	b := newBench(t, `
groups:
- name: g
  labels: {team: ml}
  rules:
  - record: node:power:sum
    expr: sum by (Hostname) (power)
  - alert: NodePower
    expr: node:power:sum > 1000
  - alert: Seen
    expr: ALERTS{alertname="NodePower", alertstate="firing"} == 1
`)
	b.put(600, "__name__", "power", "Hostname", "n1", "gpu", "0")
	b.put(600, "__name__", "power", "Hostname", "n1", "gpu", "1")
	got := b.step(5 * time.Second)
	var names []string
	for _, f := range got {
		names = append(names, f.Event.Data.Cause.Name+" "+f.Event.Data.Target.Node)
	}
	if strings.Join(names, ", ") != "NodePower n1, Seen n1" {
		t.Errorf("found %v", names)
	}
	b.now = b.now.Add(5 * time.Second)
	b.put(1, "__name__", "power", "Hostname", "n1", "gpu", "0")
	b.put(1, "__name__", "power", "Hostname", "n1", "gpu", "1")
	if got := b.Evaluate(context.Background(), b.now); len(got) != 2 || got[0].Active || got[1].Active {
		t.Errorf("ALERTS of an alert that ended still fires: %v", got)
	}
}

func TestFilesThatPrometheusRefusesAreRefusedWithTheirPlace(t *testing.T) {
	rule := func(body string) string {
		return "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: up == 0\n  - " + body + "\n"
	}
	for name, c := range map[string]struct{ text, want string }{
		"bad expression":       {rule("alert: B\n    expr: sum(("), "6:"},
		"unknown field":        {rule("alert: B\n    expr: up\n    fro: 5m"), "fro"},
		"bad template":         {rule("alert: B\n    expr: up\n    annotations: {summary: '{{ $foo'}"), "annotation"},
		"no name":              {rule("expr: up"), "record"},
		"range beyond window":  {rule("alert: B\n    expr: rate(x[1h]) > 0"), "looks back 1h0m0s, and the window keeps 15m0s"},
		"offset beyond window": {rule("alert: B\n    expr: x > x offset 1d"), "looks back 24h0m0s"},
		"subquery beyond":      {rule("alert: B\n    expr: max_over_time(rate(x[5m])[20m:1m]) > 0"), "looks back 25m0s"},
		"at modifier":          {rule("alert: B\n    expr: x @ 5 > 0"), "rule B"},
		"not YAML":             {"groups: [", "rules.yaml"},
		"twice the group":      {"groups: [{name: g}, {name: g}]", "repeated"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "rules.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := New(Options{Files: []string{file}})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "rules.yaml") {
				t.Errorf("error %v does not say %q and the file", err, c.want)
			}
		})
	}
	if _, err := New(Options{Files: []string{"/nowhere.yaml"}}); err == nil || !strings.Contains(err.Error(), "/nowhere.yaml") {
		t.Errorf("missing file: %v", err)
	}
}

func TestWhatNamesNoTargetMakesNoFinding(t *testing.T) {
	b := newBench(t, "groups: [{name: g, rules: [{alert: Any, expr: 'sum by (namespace, pod) (a) or vector(1)'}]}]")
	b.put(1, "__name__", "a", "namespace", "ns", "pod", "p")
	if got := b.step(time.Second); len(got) != 0 {
		t.Errorf("a finding about nothing: %v", got)
	}
	if c, _ := b.Counts(); c.Homeless != 2 {
		t.Errorf("counts %+v", c)
	}
}

func TestARestartSaysNothingTwice(t *testing.T) {
	rules := "groups: [{name: g, rules: [{alert: Down, expr: 'ok == 0', for: 10s}]}]"
	fail := func(b *bench) (all []finding.Finding) {
		for range 4 {
			b.put(0, "__name__", "ok", "node", "n1:9100")
			all = append(all, b.step(5*time.Second)...)
		}
		return all
	}
	one := newBench(t, rules)
	if got := fail(one); len(got) != 1 || got[0].Event.Data.Target.Node != "n1" {
		t.Fatalf("before the restart: %v", got)
	}
	saved := one.Snapshot()

	two := newBench(t, rules)
	two.now = one.now.Add(time.Minute)
	two.Restore(saved, two.now)
	got := fail(two)
	if len(got) != 0 {
		t.Fatalf("after the restart the same alert is said again: %v", got)
	}
	two.put(1, "__name__", "ok", "node", "n1:9100")
	if got := two.step(5 * time.Second); len(got) != 1 || got[0].Event.Type != event.Recovery {
		t.Errorf("its end: %v", got)
	}

	three := newBench(t, rules)
	three.Restore(saved, three.now)
	if got := three.step(time.Minute); len(got) != 0 {
		t.Errorf("ended before its for, its interval and the window had a chance: %v", got)
	}
	if got := three.step(20 * time.Minute); len(got) != 1 || got[0].Event.Type != event.Recovery {
		t.Errorf("what never fires again stays open for ever: %v", got)
	}
}

func TestAFailingRuleKeepsItsStateAndTheOthersGoOn(t *testing.T) {
	b := newBench(t, "groups: [{name: g, rules: [{alert: Two, expr: 'a + on (node) group_left () b'}, {alert: One, expr: 'a > 0'}]}]")
	b.put(1, "__name__", "a", "node", "n")
	b.put(1, "__name__", "b", "node", "n", "x", "1")
	b.put(1, "__name__", "b", "node", "n", "x", "2")
	got := b.step(time.Second)
	if len(got) != 1 || got[0].Event.Data.Cause.Name != "One" {
		t.Errorf("found %v", got)
	}
	if c, _ := b.Counts(); c.Failures != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestMoreResultsThanTheLimitAreAnErrorAndNoStorm(t *testing.T) {
	b := newBench(t, "groups: [{name: g, limit: 3, rules: [{alert: Many, expr: 'a > 0'}]}]")
	for i := range 10 {
		b.put(1, "__name__", "a", "node", fmt.Sprint("n", i))
	}
	if got := b.step(time.Second); len(got) != 0 {
		t.Errorf("%d findings beyond the limit", len(got))
	}
}

func TestOnlyWhatARuleAsksForIsWanted(t *testing.T) {
	b := newBench(t, "groups: [{name: g, rules: [{alert: A, expr: 'rate(a[1m]) > on (node) {__name__=\"b\"}'}]}]")
	if !b.Wants("a") || !b.Wants("b") || b.Wants("c") {
		t.Errorf("wants a %t, b %t, c %t", b.Wants("a"), b.Wants("b"), b.Wants("c"))
	}
	if any := newBench(t, "groups: [{name: g, rules: [{alert: A, expr: 'count({node=\"n\"}) > 3'}]}]"); !any.Wants("c") {
		t.Error("a rule that asks by label alone does not see every metric")
	}
}

func TestAClockSetBackDoesNotSilenceARule(t *testing.T) {
	b := newBench(t, "groups: [{name: g, rules: [{alert: A, expr: 'a > 0', for: 10s}]}]")
	b.now = start.Add(time.Hour)
	b.put(1, "__name__", "a", "node", "n")
	b.step(5 * time.Second)
	b.now = start
	var got []finding.Finding
	for range 4 {
		b.put(1, "__name__", "a", "node", "n")
		got = append(got, b.step(5*time.Second)...)
	}
	if len(got) != 1 {
		t.Errorf("found %v", got)
	}
}
