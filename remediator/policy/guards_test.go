package policy_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// withSpec is a policy of one rule with lines of its spec.
func withSpec(lines string) string {
	return strings.Replace(oneRule("when: {signal: xid/79}\nsteps: [{do: notify}]"), "order: 1\n", "order: 1\n  "+strings.ReplaceAll(lines, "\n", "\n  ")+"\n", 1)
}

func TestAPolicyWithoutGuardsGetsEveryDefault(t *testing.T) {
	for name, text := range map[string]string{
		"no guards":   withSpec("mode: observe"),
		"one guard":   withSpec("guards: {maxEventAge: 60s}"),
		"empty parts": withSpec("guards: {deadlines: {wait: 24h}}"),
	} {
		ps, err := policy.Parse("f.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(policy.DefaultGuards(), ps[0].Spec.Guards, ignore); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if ps[0].Spec.Uncordon != (policy.Uncordoning{}) {
			t.Errorf("%s: uncordons by itself: %+v", name, ps[0].Spec.Uncordon)
		}
	}
}

func TestGuardsAreReadAsWritten(t *testing.T) {
	ps, err := policy.Parse("f.yaml", []byte(withSpec(`guards:
  scope: cluster
  maxNodesQuarantined: {perRack: 2, perPool: 3, perJob: 1}
  approvalWithin: 4h
  deadlines: {wait: 1h, stopped: 2m}
  unsteered: undo
  kernelConditionMaxAge: 48h
  oneCause: {nodes: 5}
uncordon: {afterRepair: true, after: 72h}`)))
	if err != nil {
		t.Fatal(err)
	}
	want := policy.DefaultGuards()
	want.Scope, want.Unsteered = policy.PerCluster, policy.UnsteeredUndo
	want.MaxNodesQuarantined = policy.Share{Count: 5, Percent: 5, PerRack: 2, PerPool: 3, PerJob: 1} // count and percent stay on
	want.ApprovalWithin, want.KernelConditionMaxAge = policy.Duration(4*time.Hour), policy.Duration(48*time.Hour)
	want.Deadlines = policy.Deadlines{Report: policy.Duration(2 * time.Minute), Wait: policy.Duration(time.Hour), Stopped: policy.Duration(2 * time.Minute)}
	want.OneCause.Nodes = 5
	if d := cmp.Diff(want, ps[0].Spec.Guards, ignore); d != "" {
		t.Error(d)
	}
	if got := ps[0].Spec.Uncordon; got != (policy.Uncordoning{AfterRepair: true, After: policy.Duration(72 * time.Hour)}) {
		t.Errorf("uncordon %+v", got)
	}
	if got := want.MaxNodesQuarantined.String(); got != "5 or 5%, 2 per rack, 3 per pool, 1 per job" {
		t.Errorf("breaker reads %q", got)
	}
	text, err := policy.Marshal(ps)
	if err != nil {
		t.Fatal(err)
	}
	again, err := policy.Parse("f.yaml", text)
	if err != nil || again[0].Hash() != ps[0].Hash() {
		t.Errorf("%v: written and read again it differs\n%s", err, text)
	}
	if err := validate(t, schema(t), text); err != nil {
		t.Error(err)
	}
}

func TestAGuardThatWouldDoHarmOrNothingIsALoadError(t *testing.T) {
	for spec, want := range map[string]string{
		"guards: {scope: fleet}":                               `f.yaml:6:19: policy p: guards.scope: unknown scope "fleet"; one of policy, cluster`,
		"guards: {scope: clutser}":                             `did you mean cluster?`,
		"guards: {unsteered: delete}":                          `guards.unsteered: unknown value "delete"; one of allow, undo`,
		"guards: {maxNodesQuarantined: {perRack: 0}}":          `f.yaml:6:43: policy p: guards.maxNodesQuarantined.perRack: must be above 0; leave it out`,
		"guards: {maxNodesQuarantined: {count: 0, perJob: 1}}": `maxNodesQuarantined.count: must be above 0`,
		"guards: {maxNodesQuarantined: {perPool: -1}}":         `perPool: must be at least 1`,
		"guards: {maxNodesQuarantined: {perRak: 1}}":           `unknown field "perRak"; did you mean perRack?`,
		"guards: {approvalWithin: 0s}":                         `guards.approvalWithin: must be longer than 0s`,
		"guards: {deadlines: {wait: 0s}}":                      `deadlines.wait: must be longer than 0s`,
		"guards: {deadlines: {stopped: 30}}":                   `"30" is not a duration`,
		"guards: {deadlines: {report: 1h}}":                    `deadlines.report: must not be longer than deadlines.stopped (30m)`,
		"guards: {deadlines: {report: 25h, stopped: 30h}}":     `must not be longer than deadlines.wait (24h)`,
		"guards: {deadlines: {waits: 1h}}":                     `unknown field "waits"; did you mean wait?`,
		"guards: {kernelConditionMaxAge: 0s}":                  `kernelConditionMaxAge: must be longer than 0s`,
		"guards: {kernelConditionMaxAge: 721h}":                `must be at most 720h: the ids of handled events are remembered that long`,
		"uncordon: {after: soon}":                              `"soon" is not a duration`,
		"uncordon: {afterRepair: yes}":                         `must be true or false`,
		"uncordon: {after_repair: true}":                       `unknown field "after_repair"; did you mean afterRepair?`,
	} {
		_, err := policy.Parse("f.yaml", []byte(withSpec(spec)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\ngot  %v\nwant %s", spec, err, want)
		}
	}
}

func TestGuardsOfAnOlderRecordGetTheDefaultsTheyLack(t *testing.T) {
	old := policy.Guards{MaxConcurrentIncidents: 7, MaxNodesQuarantined: policy.Share{Percent: 3}, CooldownPerNode: policy.Duration(time.Hour),
		ActionBudget: policy.Budget{Count: 1, Per: policy.Duration(time.Hour)}, MaxEventAge: policy.Duration(time.Second)}
	want := policy.DefaultGuards()
	want.MaxConcurrentIncidents, want.MaxNodesQuarantined, want.CooldownPerNode = old.MaxConcurrentIncidents, old.MaxNodesQuarantined, old.CooldownPerNode
	want.ActionBudget, want.MaxEventAge, want.TakeUpWithin = old.ActionBudget, old.MaxEventAge, 0 // 0 means never there
	if d := cmp.Diff(want, old.Complete(), ignore); d != "" {
		t.Error(d)
	}
}

func TestARackIsNamedByItsLabel(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"":                                    {"kubernetes.io/hostname": "n1"},
		"pitcrew.dev/rack=r1":                 {"pitcrew.dev/rack": "r1", "cloud.provider.com/topology-rack": "r2"},
		"cloud.provider.com/topology-rack=r2": {"cloud.provider.com/topology-rack": "r2"},
		"topology.k8s.aws/network-node-layer-3=nn-1": {"topology.k8s.aws/network-node-layer-1": "nn-0", "topology.k8s.aws/network-node-layer-3": "nn-1"},
	} {
		if got := policy.RackOf(labels); got != want {
			t.Errorf("%v: rack %q, want %q", labels, got, want)
		}
	}
}

func TestEveryProvidersRackLabelIsATierOfPlacement(t *testing.T) {
	for _, l := range policy.RackLabels()[1:] {
		if !slices.Contains(placement.Tiers(), l) {
			t.Errorf("rack label %s is not a tier of placement", l)
		}
	}
}

func TestEveryRackLabelIsInTheReference(t *testing.T) {
	doc, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	if want := "`" + strings.Join(policy.RackLabels(), "`, `") + "`"; !strings.Contains(string(doc), want) {
		t.Errorf("docs/policy.md does not list the rack labels as %s", want)
	}
}

func TestAGroupingThatMeansNothingIsRefused(t *testing.T) {
	for grouping, bad := range map[string]string{
		"{nodes: 1}": "oneCause.nodes", "{nodes: -3}": "oneCause.nodes", "{within: 0s}": "oneCause.within", "{within: 11m}": "oneCause.within", "{nodes: 0}": "", "{nodes: 2, within: 10m}": "",
	} {
		_, err := policy.Parse("f.yaml", []byte(withSpec("guards: {oneCause: "+grouping+"}")))
		if (err != nil) != (bad != "") || err != nil && !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", grouping, err)
		}
	}
}
