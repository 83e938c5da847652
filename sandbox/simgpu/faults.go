package simgpu

import (
	"fmt"
	"time"
)

// All names every GPU of the node where a method takes a GPU.
const All = -1

// Fields that the methods below set, by DCGM field id.
const (
	fieldSBEVolatile      = 310
	fieldSBELifetime      = 312
	fieldRemapCorrectable = 394
	fieldRemapPending     = 396
	fieldRecoveryAction   = 1523
)

// Lose makes the GPU fall off the bus: still listed by the engine, status lost, every value blank.
func (n *Node) Lose(gpu int) error {
	return n.change(gpu, func() { n.state[gpu] = "lost" })
}

// Remove makes the GPU unknown to the engine, as after a restart of the host engine on a node that lost it.
func (n *Node) Remove(gpu int) error {
	return n.change(gpu, func() { n.state[gpu] = "gone" })
}

// Restore brings a lost or removed GPU back.
func (n *Node) Restore(gpu int) error {
	return n.change(gpu, func() { delete(n.state, gpu) })
}

// XID makes the driver report the code: the violation is called back once, and the gauge keeps the code from then on.
func (n *Node) XID(gpu, code int) error {
	return n.event(gpu, fmt.Sprintf("xid %s %d", slot(gpu), code))
}

// Violate raises a policy violation: dbe, pci, pages, thermal, power or nvlink; a and b are its numbers (pages: SBE and DBE pages,
// nvlink: field and counter, the others: one number).
func (n *Node) Violate(gpu int, kind string, a, b int) error {
	return n.event(gpu, fmt.Sprintf("violation %s %s %d %d", slot(gpu), kind, a, b))
}

func (n *Node) event(gpu int, line string) error {
	return n.change(gpu, func() {
		n.eventID++
		n.events = append(n.events, fmt.Sprintf("%s id=%d", line, n.eventID))
		if len(n.events) > MaxEvents {
			n.events = n.events[len(n.events)-MaxEvents:]
		}
	})
}

// Set holds a field at a value.
func (n *Node) Set(gpu int, field uint16, value float64) error {
	return n.signal(gpu, field, fmt.Sprintf("const %v", value))
}

// Ramp lets a field rise from a value by perSecond, from now on, never beyond limit.
func (n *Node) Ramp(gpu int, field uint16, from, perSecond, limit float64) error {
	return n.signal(gpu, field, fmt.Sprintf("ramp %v %v max=%v since=%s", from, perSecond, limit, seconds(n.now())))
}

// Noise lets a field wander around a value by at most amplitude, the same way in every run of one seed.
func (n *Node) Noise(gpu int, field uint16, around, amplitude float64) error {
	return n.signal(gpu, field, fmt.Sprintf("noise %v %v", around, amplitude))
}

// Blank makes a field answer DCGM's blank; how is blank, notfound, notsupported or noperm.
func (n *Node) Blank(gpu int, field uint16, how string) error {
	return n.signal(gpu, field, "blank "+how)
}

func (n *Node) signal(gpu int, field uint16, s string) error {
	return n.change(gpu, func() { n.setSignal(gpu, field, s) })
}

func (n *Node) setSignal(gpu int, field uint16, s string) {
	if n.fields[gpu] == nil {
		n.fields[gpu] = map[uint16]string{}
	}
	n.fields[gpu][field] = s
}

// RampECC makes the GPU's memory degrade while it goes on working: corrected errors rise by perSecond, a row remap becomes
// pending, and the driver asks for a reset at the next chance.
func (n *Node) RampECC(gpu int, perSecond float64) error {
	since := seconds(n.now())
	return n.change(gpu, func() {
		n.setSignal(gpu, fieldSBEVolatile, fmt.Sprintf("ramp 0 %v since=%s", perSecond, since))
		n.setSignal(gpu, fieldSBELifetime, fmt.Sprintf("ramp 3 %v since=%s", perSecond, since))
		n.setSignal(gpu, fieldRemapCorrectable, "const 1")
		n.setSignal(gpu, fieldRemapPending, "const 1")
		n.setSignal(gpu, fieldRecoveryAction, "const 1")
	})
}

// Health adds a health incident: system is pcie, nvlink, pmu, mcu, mem, sm, inforom, thermal, power or driver; result is warn or fail.
func (n *Node) Health(gpu int, system, result string, code int, message string) error {
	return n.change(gpu, func() {
		n.health = append(n.health, fmt.Sprintf("health %s %s %s %d %q", slot(gpu), system, result, code, message))
	})
}

// NVLink sets one link's state (up, down, disabled, notsupported), or with link All each of the GPU's.
func (n *Node) NVLink(gpu, link int, state string) error {
	return n.change(gpu, func() { n.links[[2]int{gpu, link}] = state })
}

// Hang makes calls of the named DCGM function ("dcgmEntitiesGetLatestValues", or "*" for all) block for d, or until Answer.
func (n *Node) Hang(call string, d time.Duration) error {
	return n.change(All, func() { n.calls[call] = fmt.Sprintf("hang %s %v", call, d.Seconds()) })
}

// Fail makes calls of the named DCGM function return the code (a dcgmReturn_t, such as -3), until Answer.
func (n *Node) Fail(call string, code int) error {
	return n.change(All, func() { n.calls[call] = fmt.Sprintf("fail %s %d", call, code) })
}

// Answer ends a hang or failure of the named function.
func (n *Node) Answer(call string) error {
	return n.change(All, func() { delete(n.calls, call) })
}

// EngineDown stops the host engine (connections break, new ones are refused), or starts it again.
func (n *Node) EngineDown(down bool) error {
	return n.change(All, func() { n.down = down })
}

// RestartEngine restarts the host engine at once: connections break, new ones are taken.
func (n *Node) RestartEngine() error {
	return n.change(All, func() { n.restart++ })
}

// Heal takes every fault of one GPU back: state, fields, links and health. What it reported stays reported.
func (n *Node) Heal(gpu int) error {
	return n.change(gpu, func() {
		delete(n.state, gpu)
		delete(n.fields, gpu)
		for k := range n.links {
			if k[0] == gpu {
				delete(n.links, k)
			}
		}
		n.health = without(n.health, "health "+slot(gpu)+" ")
		n.events = without(n.events, "xid "+slot(gpu)+" ")
	})
}
