package foreign

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

const gpu = "GPU-01234567-89ab-cdef-0123-456789abcdef"

// rig is a watch and what it said.
type rig struct {
	*Watch
	at     time.Time
	events []event.Event
	set    map[string]bus.Condition
	refuse error
}

func newRig() *rig {
	r := &rig{at: t0, set: map[string]bus.Condition{}}
	r.Watch = New(Options{
		Cluster: "c", Now: func() time.Time { return r.at }, Log: slog.New(slog.DiscardHandler),
		Publish: func(e event.Event) error {
			if r.refuse != nil {
				return r.refuse
			}
			if err := e.Validate(); err != nil {
				return err
			}
			r.events = append(r.events, e)
			return nil
		},
		Set: func(_ context.Context, c bus.Condition) error { r.set[c.Key] = c; return nil },
	})
	return r
}

// signals lists what was said, a recovery with a minus before it.
func (r *rig) signals() []string {
	out := []string{}
	for _, e := range r.events {
		s := e.Data.Cause.Signal() + " " + string(e.Data.Severity)
		if e.Type == event.Recovery {
			s = "-" + e.Data.Cause.Signal()
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func condition(kind, status string) cluster.Said {
	return cluster.Said{Node: "n1", UID: "u1", BootID: "b1", Conditions: []cluster.Condition{{Type: kind, Status: status, Reason: "Why", Message: "what", Since: t0}}}
}

func TestEachWritersConditionIsBadInItsOwnWay(t *testing.T) {
	for _, c := range []struct {
		kind, status string
		want         []string
	}{
		{"Ready", "True", nil}, {"Ready", "False", []string{"k8s/NotReady warning"}}, {"Ready", "Unknown", []string{"k8s/NotReady warning"}},
		{"DiskPressure", "False", nil}, {"DiskPressure", "True", []string{"k8s/DiskPressure warning"}}, {"DiskPressure", "Unknown", nil},
		{"KernelDeadlock", "True", []string{"k8s/KernelDeadlock critical"}}, {"KernelDeadlock", "False", nil},
		{"AcceleratedHardwareReady", "False", []string{"k8s/AcceleratedHardwareReady critical"}}, {"AcceleratedHardwareReady", "True", nil},
		{"GpuMemWatch", "True", []string{"k8s/GpuMemWatch critical"}}, {"GpuMemWatch", "False", nil}, // NVSentinel's, by no row of the table
		{"GPUMissing", "True", []string{"k8s/GPUMissing critical"}}, {"SomethingHealthy", "False", []string{"k8s/SomethingHealthy critical"}}, {"SomethingHealthy", "True", nil},
		{"example.com/LinkFlaps", "True", []string{"k8s/LinkFlaps critical"}},
		{"PitcrewHealthy", "False", nil}, {"PitcrewHealthy", "True", nil},
		{"Not a name!", "True", nil}, {strings.Repeat("x", 200), "True", nil},
	} {
		r := newRig()
		r.Node(t.Context(), condition(c.kind, c.status))
		if got := r.signals(); !slices.Equal(got, c.want) {
			t.Errorf("%s=%s: said %q, want %q", c.kind, c.status, got, c.want)
		}
	}
}

func TestWhatStandsIsSaidOnceAndTakenBackWhenItEnds(t *testing.T) {
	r := newRig()
	bad := condition("KernelDeadlock", "True")
	for range 3 {
		r.Node(t.Context(), bad)
		r.at = r.at.Add(time.Minute)
	}
	if got := r.signals(); !reflect.DeepEqual(got, []string{"k8s/KernelDeadlock critical"}) {
		t.Fatalf("said %q", got)
	}
	c := r.set["k8s/KernelDeadlock node"]
	if !c.Active || c.Node != "n1" || c.BootID != "b1" || !c.Since.Equal(t0) || c.Event == nil || !Ours(c.Key) || !Stands(bad, c.Key) {
		t.Errorf("condition %+v", c)
	}
	e := r.events[0]
	if e.Source != "//c/node/n1/k8s" || !e.Time.Equal(t0) || e.Data.Evidence.Raw != "Why: what" || e.Data.Evidence.Signal != "node condition KernelDeadlock=True" {
		t.Errorf("event %+v", e)
	}
	r.Node(t.Context(), condition("KernelDeadlock", "False"))
	if got := r.signals(); !reflect.DeepEqual(got, []string{"-k8s/KernelDeadlock", "k8s/KernelDeadlock critical"}) {
		t.Errorf("said %q", got)
	}
	if end := r.set[c.Key]; end.Event == nil || end.Event.Type != event.Recovery {
		t.Errorf("the end does not say what ended: %+v", end)
	}
	if r.set[c.Key].Active || Stands(condition("KernelDeadlock", "False"), c.Key) {
		t.Error("the condition still stands")
	}
	again := condition("KernelDeadlock", "True")
	again.Conditions[0].Since = t0.Add(time.Hour)
	if r.Node(t.Context(), again); len(r.events) != 3 || r.events[2].ID == e.ID {
		t.Errorf("a second onset was not said, or under the first one's id: %q", r.signals())
	}
}

func TestTwoLeadersSayOneOnsetUnderOneID(t *testing.T) {
	a, b := newRig(), newRig()
	b.at = t0.Add(time.Hour)
	a.Node(t.Context(), condition("KernelDeadlock", "True"))
	b.Node(t.Context(), condition("KernelDeadlock", "True"))
	if a.events[0].ID != b.events[0].ID {
		t.Error("two ids")
	}
	other := condition("KernelDeadlock", "True")
	other.UID = "u2" // a node of the same name, made anew
	if b.Node(t.Context(), other); len(b.events) != 2 || b.events[1].ID == a.events[0].ID {
		t.Error("another node's onset goes under this one's id")
	}
}

func TestAConditionWithoutATimeIsSaidOnce(t *testing.T) {
	r := newRig()
	s := condition("GPUMissing", "True")
	s.Conditions[0].Since = time.Time{}
	for range 3 {
		r.Node(t.Context(), s)
		r.at = r.at.Add(time.Minute)
	}
	if got := r.signals(); len(got) != 1 {
		t.Errorf("said %q", got)
	}
}

func TestANodeThatIsGoneHasNoConditions(t *testing.T) {
	r := newRig()
	r.Node(t.Context(), condition("GPUMissing", "True"))
	r.Node(t.Context(), cluster.Said{Node: "n1", Gone: true})
	if r.set["k8s/GPUMissing node"].Active || len(r.standing) != 0 {
		t.Error("it is still remembered")
	}
}

func TestWhatCouldNotBePublishedIsSaidAtTheNextChange(t *testing.T) {
	r := newRig()
	r.refuse = errors.New("full")
	r.Node(t.Context(), condition("GPUMissing", "True"))
	r.refuse = nil
	r.Node(t.Context(), condition("GPUMissing", "True"))
	if got := r.signals(); len(got) != 1 {
		t.Errorf("said %q", got)
	}
}

func TestNVSentinelsQuarantineIsAFindingWithItsGPU(t *testing.T) {
	s := cluster.Said{Node: "n1", UID: "u1", Labels: map[string]string{sentinelState: "draining", sentinelCordoned: "2026-11-21T03-59-00Z"},
		Annotations: map[string]string{sentinelEvent: `{"checkName":"SysLogsXIDError","isFatal":true,"errorCode":["79"],"entitiesImpacted":[{"entityType":"GPU_UUID","entityValue":"` + gpu + `"}]}`}}
	r := newRig()
	r.Node(t.Context(), s)
	s.Labels = map[string]string{sentinelState: "remediating", sentinelCordoned: "2026-11-21T03-59-00Z"}
	r.Node(t.Context(), s)
	if got := r.signals(); !reflect.DeepEqual(got, []string{"k8s/nvsentinel-quarantined critical"}) {
		t.Fatalf("said %q: one quarantine is one finding, whatever step it is at", got)
	}
	if e := r.events[0]; e.Data.Target.GPU != gpu || !e.Time.Equal(t0.Add(-time.Minute)) || !strings.Contains(e.Data.Evidence.Raw, "SysLogsXIDError") {
		t.Errorf("event %+v", e)
	}
	s.Labels = map[string]string{sentinelState: sentinelSucceeded}
	if r.Node(t.Context(), s); len(r.events) != 2 || r.events[1].Type != event.Recovery {
		t.Errorf("said %q, want a recovery at the end", r.signals())
	}
}

func TestATaintForAFaultyGPUIsAFindingAndOthersAreNot(t *testing.T) {
	r := newRig()
	r.Node(t.Context(), cluster.Said{Node: "n1", UID: "u1", Taints: []cluster.Taint{
		{Key: "nvidia.com/gpu-error", Value: "fatal"}, {Key: "nvidia.com/gpu", Value: "present"}, {Key: "pitcrew.dev/quarantine", Value: "i-1"}, {Key: "node.kubernetes.io/unschedulable"}}})
	if got := r.signals(); !reflect.DeepEqual(got, []string{"k8s/gpu-error critical"}) {
		t.Errorf("said %q", got)
	}
}

func TestAGPUIsNamedWhereATextNamesOne(t *testing.T) {
	other := strings.Replace(gpu, "GPU-0", "GPU-1", 1)
	for text, want := range map[string]string{"GPU_UUID:" + gpu + " fell": gpu, gpu + gpu: gpu, gpu + " and " + other: "", "GPU-1234": "", "": ""} {
		if got := gpuIn(text); got != want {
			t.Errorf("%q names %q, want %q", text, got, want)
		}
	}
}

func TestAWarningIsSaidOnceAMinuteAndNotWhenItIsHistory(t *testing.T) {
	r := newRig()
	w := cluster.Warned{Node: "n1", UID: "e1", Reason: "KernelOops", Message: "BUG: unable to handle", By: "kernel-monitor", At: t0}
	r.Warning(w)
	for k := range 5 {
		w.At = t0.Add(time.Duration(k) * time.Second)
		r.Warning(w)
	}
	w.At, w.UID = t0.Add(warnEvery), "e2"
	r.Warning(w)
	old := w
	old.At, old.Reason = t0.Add(-2*publishAtAll), "TaskHung"
	r.Warning(old)
	for _, reason := range []string{"NodeNotReady", "", "no name"} {
		w.Reason = reason
		r.Warning(w)
	}
	w.Reason = "SomethingOfTheirs"
	r.Warning(w)
	if got := r.signals(); !reflect.DeepEqual(got, []string{"k8s/KernelOops warning", "k8s/KernelOops warning", "k8s/SomethingOfTheirs info"}) {
		t.Errorf("said %q", got)
	}
	if e := r.events[0]; e.Data.Evidence.Raw != "kernel-monitor: BUG: unable to handle" || e.Data.Target.Node != "n1" {
		t.Errorf("event %+v", e)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	r := newRig()
	for k := range 2 * maxRemember {
		r.Warning(cluster.Warned{Node: strings.Repeat("n", 1+k%50) + time.Duration(k).String(), UID: "e", Reason: "KernelOops", At: t0})
	}
	if n := len(r.warned); n > maxRemember {
		t.Errorf("%d reasons are remembered", n)
	}
	s := cluster.Said{Node: "n1", UID: "u1"}
	for k := range 10 * maxStanding {
		s.Conditions = append(s.Conditions, cluster.Condition{Type: "C" + strings.ReplaceAll(time.Duration(k).String(), "µ", "u"), Status: "True", Message: strings.Repeat("x", 1<<16)})
	}
	standing := Standing("c", s, t0)
	if len(standing) != maxStanding {
		t.Errorf("%d conditions of one node stand", len(standing))
	}
	for key, e := range standing {
		if len(e.Data.Evidence.Raw) > maxText {
			t.Errorf("%s: %d bytes of text", key, len(e.Data.Evidence.Raw))
		}
	}
}

func FuzzWhatIsSaidOfANode(f *testing.F) {
	f.Add("Ready", "False", "reason", gpu, "quarantined", "2026-11-21T03-59-00Z")
	f.Add("\xff", "True", "\x00", "GPU-", "x", "yesterday")
	f.Fuzz(func(t *testing.T, kind, status, reason, message, state, at string) {
		s := cluster.Said{Node: "n1", UID: "u1", Conditions: []cluster.Condition{{Type: kind, Status: status, Reason: reason, Message: message}},
			Labels: map[string]string{sentinelState: state, sentinelCordoned: at}, Annotations: map[string]string{sentinelEvent: message}}
		for key, e := range Standing("c", s, t0) {
			if err := e.Validate(); err != nil || !Stands(s, key) || len(e.Data.Evidence.Raw) > maxText {
				t.Fatalf("%s: %v", key, err)
			}
			if _, err := event.Encode(e); err != nil {
				t.Fatal(err)
			}
		}
	})
}
