package podlabels

import (
	"testing"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/collector/promexporter"
	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
)

func TestOnlyTheFamiliesThatAreServedArePassedOn(t *testing.T) {
	for families, want := range map[string][]string{
		promexporter.AllFamilies:     {"hw.temperature", "DCGM_FI_DEV_GPU_TEMP"},
		promexporter.DCGMFamilies:    {"DCGM_FI_DEV_GPU_TEMP"},
		promexporter.PitcrewFamilies: {"hw.temperature"},
	} {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		for scope, name := range map[string]string{"": "hw.temperature", dcgmreceiver.DCGMNamesScope: "DCGM_FI_DEV_GPU_TEMP"} {
			sm := rm.ScopeMetrics().AppendEmpty()
			sm.Scope().SetName(scope)
			m := sm.Metrics().AppendEmpty()
			m.SetName(name)
			p := m.SetEmptyGauge().DataPoints().AppendEmpty()
			p.SetIntValue(40)
			p.Attributes().PutStr("hw.id", "GPU-a")
			p.Attributes().PutStr("UUID", "GPU-a")
		}
		l := newRig(t).labeller
		l.families = families
		got := map[string]bool{}
		for _, rm := range l.label(md).ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					got[m.Name()] = true
				}
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: passed on %v, want %v", families, got, want)
		}
		for _, name := range want {
			if !got[name] {
				t.Errorf("%s: %s is left out", families, name)
			}
		}
	}
}
