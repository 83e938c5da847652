package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

// Faults that slow a rank and that its node confirms: the stub DCGM and the kernel log report a cause. The slowness is simulated: the trainer
// reads its GPU's Pace and takes as much longer.
const (
	Straggler       FaultKind = "straggler"        // the supply asserts the power brake: the clock falls, and the GPU stays cool
	ThermalThrottle FaultKind = "thermal-throttle" // the device heats up and is throttled, 2 % slower each second up to 1.4 times
	LaunchLatency   FaultKind = "launch-latency"   // 60 ms between issuing a step's work and its start; the host's PCIe link repeats packets
	NVLinkDegraded  FaultKind = "nvlink-degraded"  // the GPU's NVLinks repeat packets
	PCIeNarrow      FaultKind = "pcie-narrow"      // the GPU's PCIe link has trained with 4 of 16 lanes
)

// Faults that slow a rank and that nothing on its node confirms: they are found and reported, and nothing is moved for them.
const (
	SlowRank    FaultKind = "slow-rank"    // each step takes its rank 1.3 times as long
	LaunchSpike FaultKind = "launch-spike" // the launch latency of LaunchLatency, for 15 s
)

// SlowFaults lists the faults that slow a rank and that its node confirms, in a fixed order.
var SlowFaults = []FaultKind{Straggler, ThermalThrottle, LaunchLatency, NVLinkDegraded, PCIeNarrow}

// UnconfirmedFaults lists the faults that slow a rank and that nothing on its node confirms, in a fixed order.
var UnconfirmedFaults = []FaultKind{SlowRank, LaunchSpike}

// The measures of the slow faults.
const (
	SlowFactor   = 1.3
	SpikeLatency = 60 * time.Millisecond
	SpikeLasts   = 15 * time.Second
	DriftRate    = 0.02 // a second
	DriftLimit   = 1.4

	throttledMHz   = 1250
	brakedMHz      = 1380
	narrowLanes    = 4
	narrowGen      = 1
	errorsASecond  = 5.0 // of a link that repeats packets
	heatsPerSecond = 1.0 // degrees Celsius
)

// Pace is how fast a simulated device works. It follows the state's byte in the GPU's file; of a healthy device nothing does.
type Pace struct {
	Slow   float64 `json:"slow,omitempty"`     // compute time by this factor
	PerS   float64 `json:"per_s,omitempty"`    // and by so much more each second
	Since  float64 `json:"since,omitempty"`    // Unix time, seconds
	Limit  float64 `json:"limit,omitempty"`    // of both together
	Launch float64 `json:"launch_s,omitempty"` // seconds from issuing work to its start
	Until  float64 `json:"until,omitempty"`    // Unix time after which the launch latency is as ever; 0: it stays
}

// paceBytes is how much of the file a pace takes.
const paceBytes = 255

// setPace changes how fast the device works, in place and in one write.
func (g GPU) setPace(p Pace) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if len(raw) > paceBytes {
		return fmt.Errorf("sandbox: pace of %d bytes", len(raw))
	}
	f, err := os.OpenFile(g.File, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	if p == (Pace{}) {
		return f.Truncate(1)
	}
	_, err = f.WriteAt(fmt.Appendf(nil, "%-*s", paceBytes, raw), 1)
	return err
}

// slowness is what a slow fault does to the device, and how the node shows it; nil: nothing on the node does.
type slowness struct {
	pace func(at float64) Pace
	show func(n *Node, g GPU) error
}

func slower(float64) Pace { return Pace{Slow: SlowFactor} }

var slowFaults = map[FaultKind]slowness{
	SlowRank: {pace: slower},
	LaunchSpike: {pace: func(at float64) Pace {
		return Pace{Launch: SpikeLatency.Seconds(), Until: at + SpikeLasts.Seconds()}
	}},
	Straggler: {slower, func(n *Node, g GPU) error { return n.DCGM.Brake(g.Index, brakedMHz) }},
	ThermalThrottle: {
		func(at float64) Pace { return Pace{Slow: 1, PerS: DriftRate, Since: at, Limit: DriftLimit} },
		func(n *Node, g GPU) error {
			return n.DCGM.Throttle(g.Index, simgpu.Throttling{CelsiusPerSecond: heatsPerSecond, MHz: throttledMHz})
		},
	},
	LaunchLatency:  {func(float64) Pace { return Pace{Launch: SpikeLatency.Seconds()} }, (*Node).repeatPCIe},
	NVLinkDegraded: {slower, func(n *Node, g GPU) error { return n.DCGM.NVLinkErrors(g.Index, errorsASecond) }},
	PCIeNarrow: {slower, func(n *Node, g GPU) error {
		if err := n.DCGM.NarrowPCIe(g.Index, narrowLanes, narrowGen); err != nil {
			return err
		}
		return n.repeatPCIe(g)
	}},
}

// repeatPCIe makes the GPU's PCIe link repeat packets: its counters rise, and the kernel logs an error that was not corrected.
func (n *Node) repeatPCIe(g GPU) error {
	if err := n.DCGM.PCIeErrors(g.Index, errorsASecond); err != nil {
		return err
	}
	return n.kmsg.write(kernWarning, "nvidia "+g.PCI+".0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)")
}

func (n *Node) slow(in Injected) error {
	f := slowFaults[in.Kind]
	if f.show != nil {
		if err := f.show(n, in.GPU); err != nil {
			return err
		}
	}
	return in.GPU.setPace(f.pace(float64(in.At.UnixMilli()) / 1000))
}
