package simgpu

import "fmt"

// Fields and the bit of a throttled device.
const (
	fieldSMClock      = 100
	fieldClockReasons = 112
	fieldTemperature  = 150
	reasonHWThermal   = 0x40
	throttledFrom     = 48 // degrees Celsius: where a healthy device stands
	throttledUpTo     = 92
)

// Throttling is how a device that gets too hot behaves.
type Throttling struct {
	CelsiusPerSecond float64
	MHz              float64 // of the SM clock, once it throttles
}

// Throttle lets the GPU heat up, lowers its clock, and gives heat as the reason.
func (n *Node) Throttle(gpu int, t Throttling) error {
	if t.MHz <= 0 || t.CelsiusPerSecond <= 0 {
		return fmt.Errorf("simgpu: throttling by %+v is none", t)
	}
	since := seconds(n.now())
	return n.change(gpu, func() {
		n.setSignal(gpu, fieldTemperature, fmt.Sprintf("ramp %d %v max=%d since=%s", throttledFrom, t.CelsiusPerSecond, throttledUpTo, since))
		n.setSignal(gpu, fieldSMClock, fmt.Sprintf("noise %v 15", t.MHz))
		n.setSignal(gpu, fieldClockReasons, fmt.Sprintf("const %d", reasonHWThermal))
	})
}
