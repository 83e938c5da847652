package detectorconnector

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

// The driver's field and the kernel's line are two spellings of one table.
func TestEachRecoveryActionThatStoodBeforeTheAgentCameIsWhatTheTableSays(t *testing.T) {
	tables, err := rules.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range tables.Recoveries() {
		r := start(t, config(t))
		for _, after := range []time.Duration{0, 5 * time.Second, 15 * time.Second} {
			r.sample(t, samples(t0.Add(after), status(1), point{"pitcrew.gpu.recovery_action", float64(row.Value), map[string]any{"hw.id": "GPU-1"}}))
		}
		if row.Value == 0 {
			r.want(t)
			continue
		}
		e := r.want(t, "xid/154")[0]
		if d := e.Data; string(d.Severity) != string(row.Severity) || d.Advice != string(row.Advice) || d.Cause.Name != row.Action || d.Target.GPU != "GPU-1" || d.Target.PCI != "0000:1a:00" {
			t.Errorf("%s: %+v", row.Action, d)
		}
	}
}

func TestARecoveryActionThatNobodyKnowsIsTakenForSerious(t *testing.T) {
	r := start(t, config(t))
	for _, after := range []time.Duration{0, 15 * time.Second} {
		r.sample(t, samples(t0.Add(after), status(1), point{"pitcrew.gpu.recovery_action", 9, map[string]any{"hw.id": "GPU-1"}}))
	}
	if d := r.want(t, "xid/154")[0].Data; d.Severity != "critical" || d.Advice != "contact-support" || d.Cause.Name != "action 9" {
		t.Errorf("%+v", d)
	}
}
