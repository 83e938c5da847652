package remediator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

const simulatedPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: p}
spec:
  mode: observe
  order: 1
  appliesTo: {pools: [train]}
  guards:
    maxNodesQuarantined: {count: 2}
    cooldownPerNode: 2h
  rules:
  - name: lost
    when: {signal: [xid/79, gpu/lost]}
    steps: [{do: cordon}, {do: checkpoint}, {do: restart-job}, {do: reboot-node, approval: required}]
  - name: dead
    when: {signal: rank/dead}
    steps: [{do: restart-job, with: {placement: same-node}}]
`

// storm is a list of events: minutes since noon, signal, node and job.
func storm(lines ...string) (out []event.Event) {
	for n, l := range lines {
		var minute int
		var signal, node, job string
		_, _ = fmt.Sscan(l, &minute, &signal, &node, &job)
		kind, name, _ := strings.Cut(signal, "/")
		e := event.Event{ID: fmt.Sprint("e", n), Type: event.Fault, Time: noon.Add(time.Duration(minute) * time.Minute),
			Data: event.Data{Target: event.Target{Node: node}, Cause: event.Cause{Kind: kind, Code: name}, Severity: event.Fatal}}
		if job != "" {
			e.Data.Target.Job = &event.Job{Kind: "Job", Namespace: "ml", Name: job, UID: job}
		}
		out = append(out, e)
	}
	return out
}

func simulate(t *testing.T, events []event.Event) []string {
	t.Helper()
	ps, err := policy.Parse("p.yaml", []byte(simulatedPolicy))
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]map[string]string{"other": nil}
	for _, n := range []string{"n1", "n2", "n3", "n4"} {
		labels[n] = map[string]string{"pitcrew.dev/pool": "train"}
	}
	var out []string
	for _, w := range Simulate(events, Simulation{Policies: ps, Labels: labels, Lasts: 5 * time.Minute, Mends: 24 * time.Hour}) {
		out = append(out, fmt.Sprintf("%d %s %s %s %s %s x%d", int(w.Time.Sub(noon).Minutes()), w.Signal, w.Node, w.Rule, w.Decision, strings.Join(w.Actions, "+"), w.Events))
		if (w.Refused == "") != (w.Decision == "observe") {
			t.Errorf("%s, refused %q", w.Decision, w.Refused)
		}
	}
	return out
}

func TestASimulationJudgesAsTheRemediatorWouldHave(t *testing.T) {
	const all = "cordon+checkpoint+restart-job+reboot-node (by a person)"
	for name, c := range map[string]struct{ events, want []string }{
		"an incident, and its echoes":        {[]string{"0 xid/79 n1 a", "1 gpu/lost n1 a", "2 xid/79 n1 a"}, []string{"0 xid/79 n1 lost observe " + all + " x3"}},
		"no rule speaks of it":               {[]string{"0 xid/31 n1 a"}, nil},
		"a node out of scope":                {[]string{"0 xid/79 other a"}, nil},
		"an order that is not that of time":  {[]string{"9 xid/79 n2 b", "0 xid/79 n1 a"}, []string{"0 xid/79 n1 lost observe " + all + " x1", "9 xid/79 n2 lost observe " + all + " x1"}},
		"an echo of a node that is cordoned": {[]string{"0 xid/79 n1 a", "60 xid/79 n1"}, []string{"0 xid/79 n1 lost observe " + all + " x1"}},
		"the same again after a while":       {[]string{"0 rank/dead n1 a", "60 rank/dead n1 a"}, []string{"0 rank/dead n1 dead observe restart-job x1", "60 rank/dead n1 dead wait restart-job x1"}},
		"the same again after the cooldown":  {[]string{"0 rank/dead n1 a", "130 rank/dead n1 a"}, []string{"0 rank/dead n1 dead observe restart-job x1", "130 rank/dead n1 dead observe restart-job x1"}},
		"it is worse than it began":          {[]string{"0 rank/dead n1 a", "1 xid/79 n1 a"}, []string{"0 xid/79 n1 lost observe " + all + " x2"}},
		"the breaker": {[]string{"0 xid/79 n1 a", "10 xid/79 n2 b", "20 xid/79 n3 c", "1480 xid/79 n4 d"}, []string{"0 xid/79 n1 lost observe " + all + " x1",
			"10 xid/79 n2 lost observe " + all + " x1", "20 xid/79 n3 lost wait " + all + " x1", "1480 xid/79 n4 lost observe " + all + " x1"}},
		"two at once, and a third": {[]string{"0 rank/dead n1 a", "1 rank/dead n2 b", "2 rank/dead n3 c"}, []string{"0 rank/dead n1 dead observe restart-job x1",
			"1 rank/dead n2 dead observe restart-job x1", "2 rank/dead n3 dead wait restart-job x1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := simulate(t, storm(c.events...)); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestASimulationCountsADoubledEventOnce(t *testing.T) {
	events := storm("0 xid/79 n1 a")
	if got := simulate(t, append(events, events...)); len(got) != 1 || !strings.HasSuffix(got[0], "x1") {
		t.Errorf("%q", got)
	}
}
