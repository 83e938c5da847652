package remediator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// ward is a cluster with one quarantined node, n1, and what was written to it.
type ward struct {
	node  fleet.Node
	since time.Time
	err   error
	wrote []string
}

func (w *ward) QuarantinedNodes() []cluster.Quarantine {
	if w.node.Quarantined == "" {
		return nil
	}
	return []cluster.Quarantine{{Node: "n1", Incident: "inc-1", Since: w.since}}
}
func (w *ward) Node(string) (*fleet.Node, error) { n := w.node; return &n, w.err }
func (w *ward) Uncordon(_ context.Context, node, incident string) (cluster.Cordoned, error) {
	w.wrote, w.node.Quarantined = append(w.wrote, "uncordon "+node+" "+incident), ""
	return cluster.Cordoned{Changed: true}, nil
}
func (w *ward) SetCondition(_ context.Context, node string, healthy bool, reason, _ string) error {
	w.wrote = append(w.wrote, fmt.Sprintf("condition %s %v %s", node, healthy, reason))
	return nil
}
func (w *ward) NodeRef(name string) cluster.Ref { return cluster.Ref{Kind: "Node", Name: name} }
func (w *ward) Event(_ context.Context, about cluster.Ref, _, reason, _ string) error {
	w.wrote = append(w.wrote, "event "+about.Name+" "+reason)
	return nil
}

// recovery is a case in which n1 may be uncordoned after a repair, and by age from two days on.
type recovery struct {
	*uncordoner
	ward     *ward
	rule     policy.Uncordoning
	mode     policy.Mode
	at       time.Time
	i        incident.Incident
	missing  error
	wantedBy string
	kill     guard.Kill
	deposed  bool
	undone   []string
}

func newRecovery(rule policy.Uncordoning) *recovery {
	fault := holds("gpu/ecc", "gpu/GPU-1")
	r := &recovery{ward: &ward{node: fleet.Node{Name: "n1", Ready: true, Unschedulable: true, Quarantined: "inc-1"}, since: noon}, rule: rule, mode: policy.Enforce, at: noon.Add(time.Hour)}
	r.i = incident.Incident{ID: "inc-1", State: incident.Closed, Plan: &incident.Plan{Policy: "p"}, Faults: []incident.Fault{{Event: *fault.Event, Signal: "gpu/ecc", Node: "n1"}}}
	b := aboard(fault, holds("gpu/ecc", "gpu/GPU-1", ended))
	b.clock = func() time.Time { return r.at }
	r.uncordoner = &uncordoner{nodes: r.ward, policies: r, said: b, log: slog.New(slog.DiscardHandler),
		kill: func() guard.Kill { return r.kill }, now: func() time.Time { return r.at },
		fence: func() error {
			if r.deposed {
				return cluster.ErrDeposed
			}
			return nil
		},
		incident: func(context.Context, string) (incident.Incident, error) { return r.i, r.missing },
		unwanted: func(_ string, do func()) string {
			if r.wantedBy == "" {
				do()
			}
			return r.wantedBy
		},
		undid: func(_ context.Context, id, node string) error { r.undone = append(r.undone, id+" "+node); return nil }}
	return r
}

func (r *recovery) current() *policy.Book {
	return policy.NewBook([]policy.Policy{{Metadata: policy.Metadata{Name: "p"}, Spec: policy.Spec{Mode: r.mode, Uncordon: r.rule}}})
}

// pass lets d go by in rounds of a minute and reports whether n1 was uncordoned.
func (r *recovery) pass(t *testing.T, d time.Duration) bool {
	t.Helper()
	for end := r.at.Add(d); !r.at.After(end); r.at = r.at.Add(uncordonEvery) {
		r.round(t.Context())
	}
	return len(r.ward.wrote) > 0
}

var (
	onRepair = policy.Uncordoning{AfterRepair: true}
	byAge    = policy.Uncordoning{After: policy.Duration(48 * time.Hour)}
)

func TestANodeIsUncordonedAfterItsRepairAndThatIsRecorded(t *testing.T) {
	r := newRecovery(onRepair)
	if r.pass(t, calmFor-2*uncordonEvery) {
		t.Fatalf("it did not wait for calm: %v", r.ward.wrote)
	}
	if !r.pass(t, 3*uncordonEvery) {
		t.Fatal("it was not uncordoned")
	}
	if got := strings.Join(r.ward.wrote, ", "); got != "uncordon n1 inc-1, condition n1 true Uncordoned, event n1 PitcrewUncordoned" {
		t.Errorf("wrote %s", got)
	}
	if len(r.undone) != 1 || r.undone[0] != "inc-1 n1" {
		t.Errorf("the ledger heard %v", r.undone)
	}
}

func TestANodeIsUncordonedByAgeWithoutARepair(t *testing.T) {
	r := newRecovery(byAge)
	r.i.Faults = nil
	if r.pass(t, 46*time.Hour) {
		t.Fatal("too early")
	}
	if !r.pass(t, 2*time.Hour) {
		t.Error("it stays cordoned for ever")
	}
}

// Each row breaks one condition of an uncordon that otherwise takes place.
func TestEachThingThatSpeaksAgainstAnUncordonKeepsTheNodeCordoned(t *testing.T) {
	both := policy.Uncordoning{AfterRepair: true, After: policy.Duration(time.Minute)}
	fatal := func(c *bus.Condition) { c.Event.Data.Severity = event.Fatal }
	for name, c := range map[string]struct {
		rule   policy.Uncordoning
		breaks func(*recovery)
	}{
		"no policy asks for it":           {policy.Uncordoning{}, func(*recovery) {}},
		"the kill switch is on":           {both, func(r *recovery) { r.kill = guard.Kill{On: true} }},
		"the node is gone":                {both, func(r *recovery) { r.ward.err = cluster.ErrNotFound }},
		"another incident quarantines it": {both, func(r *recovery) { r.ward.node.Quarantined = "inc-2" }},
		"the node is on hold":             {both, func(r *recovery) { r.ward.node.Held = "RMA" }},
		"the node is out of service":      {both, func(r *recovery) { r.ward.node.OutOfService = "off" }},
		"the node is not ready":           {both, func(r *recovery) { r.ward.node.Ready = false }},
		"its agent is silent":             {both, func(r *recovery) { r.said.heard = func(string) bool { return false } }},
		"its incident is unknown":         {both, func(r *recovery) { r.missing = bus.ErrNotFound }},
		"its incident cannot be read":     {both, func(r *recovery) { r.missing = errors.New("timeout") }},
		"its incident is open":            {both, func(r *recovery) { r.i.State = incident.Placed }},
		"its incident has no plan":        {both, func(r *recovery) { r.i.Plan = nil }},
		"another open incident has it":    {both, func(r *recovery) { r.wantedBy = "inc-7" }},
		"its policy is gone":              {both, func(r *recovery) { r.i.Plan.Policy = "q" }},
		"its policy only observes":        {both, func(r *recovery) { r.mode = policy.Observe }},
		"its policy asks a person":        {both, func(r *recovery) { r.mode = policy.Approve }},
		"something critical is active":    {both, func(r *recovery) { r.said.set(holds("gpu/lost", "gpu/GPU-2", fatal)) }},
		"a young line of the kernel log":  {both, func(r *recovery) { r.said.set(holds("xid/79", "gpu/GPU-2", byLine)) }},
		"this leader is deposed":          {both, func(r *recovery) { r.deposed = true }},
		"the fault is not repaired":       {onRepair, func(r *recovery) { r.said = aged(time.Hour, aboard()) }},
		"only some faults are repaired": {onRepair, func(r *recovery) {
			r.i.Faults = append(r.i.Faults, incident.Fault{Signal: "gpu/pcie", Node: "n1", Event: *holds("gpu/pcie", "gpu/GPU-1").Event})
		}},
		"the record names no fault of the node": {onRepair, func(r *recovery) { r.i.Faults[0].Node = "n2" }},
		"nobody knows since when":               {byAge, func(r *recovery) { r.ward.since = time.Time{} }},
		"not old enough":                        {byAge, func(*recovery) {}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecovery(c.rule)
			if c.breaks(r); r.pass(t, 2*calmFor) {
				t.Errorf("wrote %v", r.ward.wrote)
			}
		})
	}
}

func TestAFaultThatComesAndGoesKeepsItsNodeCordoned(t *testing.T) {
	r := newRecovery(onRepair)
	for range 5 {
		if r.pass(t, calmFor-2*uncordonEvery) {
			t.Fatalf("wrote %v", r.ward.wrote)
		}
		r.said.set(holds("gpu/ecc", "gpu/GPU-1"))
		r.round(t.Context())
		r.said.set(holds("gpu/ecc", "gpu/GPU-1", ended))
	}
}

func TestOnlyTheSourcesOwnWordIsARepair(t *testing.T) {
	boot1 := func(c *bus.Condition) { c.BootID = "boot-1" }
	for name, c := range map[string]struct {
		said   []bus.Condition
		about  bus.Condition
		silent bool
		want   bool
	}{
		"nothing was reported":              {nil, holds("gpu/ecc", "gpu/GPU-1"), false, false},
		"it is active":                      {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1")}, holds("gpu/ecc", "gpu/GPU-1"), false, false},
		"its end was reported":              {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1", ended)}, holds("gpu/ecc", "gpu/GPU-1"), false, true},
		"the node booted":                   {[]bus.Condition{holds("xid/79", "gpu/GPU-1", byLine, boot1)}, holds("xid/79", "gpu/GPU-1"), false, true},
		"the node booted and is silent":     {[]bus.Condition{holds("xid/79", "gpu/GPU-1", byLine, boot1)}, holds("xid/79", "gpu/GPU-1"), true, false},
		"a line that is only old":           {[]bus.Condition{holds("xid/79", "gpu/GPU-1", byLine)}, holds("xid/79", "gpu/GPU-1"), false, false},
		"a line, and the GPU is well again": {[]bus.Condition{holds("xid/48", "gpu/GPU-1", byLine), holds("gpu/ecc", "gpu/GPU-1", ended)}, holds("xid/48", "gpu/GPU-1"), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := aged(60*24*time.Hour, aboard(c.said...))
			b.heard = func(string) bool { return !c.silent }
			if got, why := b.repaired(*c.about.Event); got != c.want {
				t.Errorf("%v (%s), want %v", got, why, c.want)
			}
		})
	}
}
