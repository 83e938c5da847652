package remediator

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// chart is what placement was told, by node.
type chart struct {
	conditions map[string]string
	faults     map[string]time.Time
}

func newChart() *chart { return &chart{map[string]string{}, map[string]time.Time{}} }

func (c *chart) Fleet() (out []*fleet.Node) {
	for name, condition := range c.conditions {
		out = append(out, &fleet.Node{Name: name, Condition: condition})
	}
	return out
}
func (c *chart) NoteCondition(node, condition string) { c.conditions[node] = condition }
func (c *chart) NoteFault(node string, at time.Time)  { c.faults[node] = at }

func TestPlacementIsToldWhatHoldsOfANodeAndWhenItHadAFault(t *testing.T) {
	m, b := newChart(), aboard()
	noteCondition(m, b, holds("gpu/ecc", "gpu/GPU-1"))
	if m.conditions["n1"] == "" || !m.faults["n1"].Equal(noon) {
		t.Errorf("condition %q, fault %s", m.conditions["n1"], m.faults["n1"])
	}
	noteCondition(m, b, holds("gpu/ecc", "gpu/GPU-1", ended))
	if m.conditions["n1"] != "" || !m.faults["n1"].Equal(noon) {
		t.Errorf("after its end: condition %q, fault %s", m.conditions["n1"], m.faults["n1"])
	}
}

func TestOnlyAGraveFaultOfTheNodeItselfCountsAgainstIt(t *testing.T) {
	for name, c := range map[string]bus.Condition{
		"a rank's":  holds("rank/dead", "pod/u/rank/1"),
		"a warning": holds("fabric/flap", "port/mlx5_0/1", func(c *bus.Condition) { c.Event.Data.Severity = event.Warning }),
		"an end":    holds("gpu/ecc", "gpu/GPU-1", ended),
	} {
		m := newChart()
		if noteFault(m, *c.Event); len(m.faults) > 0 {
			t.Errorf("%s counts: %v", name, m.faults)
		}
	}
}

func TestAConditionOfAnEarlierBootIsTakenBackFromPlacement(t *testing.T) {
	m, b, boot := newChart(), aboard(), "boot-2"
	b.boot = func(string) (string, error) { return boot, nil }
	noteCondition(m, b, holds("gpu/ecc", "gpu/GPU-1"))
	boot = "boot-3"
	if refreshConditions(m, b); m.conditions["n1"] != "" {
		t.Errorf("still %q", m.conditions["n1"])
	}
}

func TestAFaultThatIsReportedWithoutEndDoesNotChangeTheFleetEachTime(t *testing.T) {
	m, times := newChart(), map[time.Time]bool{}
	for k := range 100 {
		e := *holds("gpu/ecc", "gpu/GPU-1").Event
		e.Time = noon.Add(time.Duration(k) * time.Second)
		noteFault(m, e)
		times[m.faults["n1"]] = true
	}
	if len(times) != 1 {
		t.Errorf("%d different times in 100 s", len(times))
	}
}
