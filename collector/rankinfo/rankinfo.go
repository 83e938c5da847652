package rankinfo

import (
	"strings"
	"sync"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/receivers/torchreceiver"
	"github.com/pitcrew/pitcrew/semconv"
)

const (
	rankMetric = semconv.TrainInfo
	gpuMetric  = semconv.GPUInfo
	migMetric  = semconv.GPUMIGInfo

	maxGPUs = 1024 // of one node, its MIG instances too
	maxText = 128  // bytes of a model or driver
)

// card is what a GPU is.
type card struct{ model, driver string }

// describer knows the node's GPUs by what passes.
type describer struct {
	mu   sync.Mutex
	gpus map[string]card // by UUID, those of MIG instances too
}

// pass takes note of GPUs and gives what ranks say. The batch, which others may share, stays as it is.
func (d *describer) pass(md pmetric.Metrics) pmetric.Metrics {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := pmetric.NewMetrics()
	for _, rm := range md.ResourceMetrics().All() {
		d.learn(rm)
		if !ranks(rm) {
			continue
		}
		own := out.ResourceMetrics().AppendEmpty()
		rm.CopyTo(own)
		own.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool { return sm.Scope().Name() != torchreceiver.ScopeName })
		for _, sm := range own.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() == rankMetric && m.Type() == pmetric.MetricTypeGauge {
					for _, p := range m.Gauge().DataPoints().All() {
						d.describe(p.Attributes())
					}
				}
			}
		}
	}
	return out
}

// ranks says whether anything in it is the word of the node's rings.
func ranks(rm pmetric.ResourceMetrics) bool {
	for _, sm := range rm.ScopeMetrics().All() {
		if sm.Scope().Name() == torchreceiver.ScopeName {
			return true
		}
	}
	return false
}

func (d *describer) learn(rm pmetric.ResourceMetrics) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if name := m.Name(); name != gpuMetric && name != migMetric || m.Type() != pmetric.MetricTypeGauge {
				continue
			}
			for _, p := range m.Gauge().DataPoints().All() {
				a := p.Attributes()
				if m.Name() == gpuMetric {
					d.put(text(a, semconv.HWID), card{text(a, semconv.HWModel), text(a, semconv.HWDriverVersion)})
				} else if whole, known := d.gpus[text(a, semconv.HWParent)]; known {
					d.put(text(a, semconv.MIGUUID), card{strings.TrimSpace(whole.model + " " + text(a, semconv.MIGProfile)), whole.driver})
				}
			}
		}
	}
}

func (d *describer) put(id string, c card) {
	if _, known := d.gpus[id]; id != "" && c != (card{}) && (known || len(d.gpus) < maxGPUs) {
		d.gpus[id] = c
	}
}

// describe puts on a rank's point what its GPU is.
func (d *describer) describe(to pcommon.Map) {
	id := text(to, semconv.HWID)
	c, known := d.gpus[id]
	if !known && !strings.HasPrefix(id, "MIG-") {
		c, known = d.alike()
	}
	if !known {
		return
	}
	for name, v := range map[string]string{semconv.HWModel: c.model, semconv.HWDriverVersion: c.driver} {
		if v != "" {
			to.PutStr(name, v)
		}
	}
}

// alike is what all GPUs of the node are, where they are all the same.
func (d *describer) alike() (one card, ok bool) {
	for _, c := range d.gpus {
		if ok && c != one {
			return card{}, false
		}
		one, ok = c, true
	}
	return one, ok
}

func text(a pcommon.Map, name string) string {
	if v, ok := a.Get(name); ok && v.Type() == pcommon.ValueTypeStr && len(v.Str()) <= maxText {
		return v.Str()
	}
	return ""
}
