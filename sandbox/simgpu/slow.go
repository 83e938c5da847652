package simgpu

import "fmt"

// Fields of a device that works, and works slowly.
const (
	fieldSMClock         = 100
	fieldClockReasons    = 112
	fieldTemperature     = 150
	fieldPCIeReplays     = 202
	fieldPCIeGeneration  = 237
	fieldPCIeWidth       = 238
	fieldNVLinkDataCRC   = 419
	fieldNVLinkReplays   = 429
	fieldPCIeCorrectable = 1501

	reasonHWThermal    = 0x40
	reasonHWPowerBrake = 0x80

	throttledFrom = 48 // degrees Celsius: the temperature of a healthy device
	throttledUpTo = 92
)

// Throttling is how a device that gets too hot behaves.
type Throttling struct {
	CelsiusPerSecond float64
	MHz              float64 // of the SM clock, once it throttles
}

// Throttle lets the GPU heat up, lowers its clock, and gives heat as the reason.
func (n *Node) Throttle(gpu int, t Throttling) error {
	if t.MHz <= 0 || t.CelsiusPerSecond <= 0 {
		return fmt.Errorf("simgpu: throttling must heat the GPU and leave it a clock, got %+v", t)
	}
	since := seconds(n.now())
	return n.change(gpu, func() {
		n.setSignal(gpu, fieldTemperature, fmt.Sprintf("ramp %d %v max=%d since=%s", throttledFrom, t.CelsiusPerSecond, throttledUpTo, since))
		n.lowerClock(gpu, t.MHz, reasonHWThermal)
	})
}

// Brake lowers the GPU's clock as a supply that asserts the power brake does. The GPU stays as cool as it was.
func (n *Node) Brake(gpu int, mhz float64) error {
	if mhz <= 0 {
		return fmt.Errorf("simgpu: the clock of a braked GPU must be above 0, got %v", mhz)
	}
	return n.change(gpu, func() { n.lowerClock(gpu, mhz, reasonHWPowerBrake) })
}

func (n *Node) lowerClock(gpu int, mhz float64, reason int) {
	n.setSignal(gpu, fieldSMClock, fmt.Sprintf("noise %v 15", mhz))
	n.setSignal(gpu, fieldClockReasons, fmt.Sprintf("const %d", reason))
}

// PCIeErrors makes the GPU's PCIe link repeat packets: replays and correctable errors rise by perSecond.
func (n *Node) PCIeErrors(gpu int, perSecond float64) error {
	since := seconds(n.now())
	return n.change(gpu, func() {
		for _, field := range []uint16{fieldPCIeReplays, fieldPCIeCorrectable} {
			n.setSignal(gpu, field, fmt.Sprintf("ramp 0 %v since=%s", perSecond, since))
		}
	})
}

// NarrowPCIe makes the GPU's PCIe link train with fewer lanes and at a lower generation.
func (n *Node) NarrowPCIe(gpu, lanes, generation int) error {
	return n.change(gpu, func() {
		n.setSignal(gpu, fieldPCIeWidth, fmt.Sprintf("const %d", lanes))
		n.setSignal(gpu, fieldPCIeGeneration, fmt.Sprintf("const %d", generation))
	})
}

// NVLinkErrors makes the GPU's NVLinks repeat packets: replays and CRC errors of data rise by perSecond.
func (n *Node) NVLinkErrors(gpu int, perSecond float64) error {
	since := seconds(n.now())
	return n.change(gpu, func() {
		for _, field := range []uint16{fieldNVLinkReplays, fieldNVLinkDataCRC} {
			n.setSignal(gpu, field, fmt.Sprintf("ramp 0 %v since=%s", perSecond, since))
		}
	})
}
