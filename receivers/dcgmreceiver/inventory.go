package dcgmreceiver

import (
	"fmt"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/pitcrew/pitcrew/semconv"
)

// fleet says how many GPUs there are and how each is. All points have one time: they are one observation.
func (b *builder) fleet(t *batch, all []presence, answering, expected int) {
	for _, g := range all {
		p := t.own(semconv.GPUStatus)
		p.Attributes().PutStr(semconv.HWID, g.id())
		if pci := g.pci(); pci != "" {
			p.Attributes().PutStr(semconv.HWPCI, pci)
		}
		if g.ok {
			p.SetIntValue(1)
		} else {
			p.SetIntValue(0)
		}
	}
	t.own(semconv.GPUCount).SetIntValue(int64(answering))
	t.own(semconv.GPUExpected).SetIntValue(int64(expected))
}

// maxSwitches bounds the switches that are remembered; an engine lists twelve at most.
const maxSwitches = 64

// switchStatus says which switches are there, and which were.
func (b *builder) switchStatus(t *batch, here []Switch) {
	listed := map[string]bool{}
	for _, s := range here {
		listed[s.id()] = true
		if _, known := b.switches[s.id()]; known || len(b.switches) < maxSwitches {
			b.switches[s.id()] = s
		}
	}
	for id, s := range b.switches {
		p := t.own(semconv.NVSwitchStatus)
		a := p.Attributes()
		a.PutStr(semconv.HWID, id)
		a.PutInt(semconv.NVSwitchIndex, int64(s.ID))
		if s.PCI != "" {
			a.PutStr(semconv.HWPCI, Device{PCI: s.PCI}.pci())
		}
		if listed[id] {
			p.SetIntValue(1)
		} else {
			p.SetIntValue(0)
		}
	}
}

// info says which card is which, how each is divided, and how they reach each other.
func (b *builder) info(t *batch, all []presence, inv Inventory, paths []Path) {
	ids := map[uint]Device{}
	for _, g := range all {
		p := t.own(semconv.GPUInfo)
		p.SetIntValue(1)
		a := p.Attributes()
		a.PutStr(semconv.HWID, g.id())
		a.PutInt(semconv.GPUIndex, int64(g.ID))
		optional(a, semconv.HWPCI, g.pci(), semconv.HWModel, g.Model, semconv.HWSerialNumber, g.Serial, semconv.HWDriverVersion, g.Driver)
		ids[g.ID] = g.Device
	}
	for _, in := range inv.Instances {
		of, here := ids[in.GPU]
		for _, c := range in.Compute {
			if !here {
				break
			}
			p := t.own(semconv.GPUMIGInfo)
			p.SetIntValue(1)
			a := p.Attributes()
			a.PutStr(semconv.HWID, in.id(of))
			a.PutStr(semconv.HWParent, of.id())
			a.PutInt(semconv.GPUIndex, int64(of.ID))
			a.PutStr(semconv.MIG, fmt.Sprintf("%d/%d", in.GI, c.CI))
			optional(a, semconv.MIGProfile, in.Profile, semconv.MIGUUID, c.UUID)
		}
	}
	for _, path := range paths {
		from, here := ids[path.A]
		to, there := ids[path.B]
		if !here || !there {
			continue
		}
		p := t.own(semconv.GPUTopology)
		p.SetIntValue(1)
		a := p.Attributes()
		a.PutStr(semconv.HWID, from.id())
		a.PutStr(semconv.GPUPeer, to.id())
		a.PutStr(semconv.GPUPath, path.Kind)
	}
}

// optional puts the pairs of key and value that have a value.
func optional(a pcommon.Map, pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			a.PutStr(pairs[i], pairs[i+1])
		}
	}
}

func (b *builder) stale(t *batch, age time.Duration) {
	t.own(semconv.DCGMStale).SetDoubleValue(max(0, age.Seconds()))
}

// health says how each GPU and switch is: the worst of its systems as system "all", each system with an incident, and once more each
// that had one and is well again.
func (b *builder) health(t *batch, inv Inventory, incidents []Incident) {
	b.know(inv)
	for _, d := range inv.Devices {
		if d.Answer {
			b.healthOf(t, d.id(), entity{GPULevel, d.ID}, incidents)
		}
	}
	for _, s := range inv.Switches {
		b.healthOf(t, s.id(), entity{SwitchLevel, s.ID}, incidents)
	}
}

func (b *builder) healthOf(t *batch, id string, e entity, incidents []Incident) {
	worst, systems := int64(0), map[string]int64{}
	for _, in := range incidents {
		if in.Of != e.of || in.ID != e.id {
			continue
		}
		level := int64(1)
		if in.Fail {
			level = 2
		}
		worst = max(worst, level)
		systems[in.System] = max(systems[in.System], level)
		b.ailing[[2]string{id, in.System}] = true
	}
	for k := range b.ailing {
		if k[0] != id {
			continue
		}
		if _, still := systems[k[1]]; !still {
			systems[k[1]] = 0
			delete(b.ailing, k)
		}
	}
	systems["all"] = worst
	for system, level := range systems {
		p := t.own(semconv.GPUHealth)
		p.Attributes().PutStr(semconv.HWID, id)
		p.Attributes().PutStr(semconv.GPUHealthSystem, system)
		p.SetIntValue(level)
	}
}
