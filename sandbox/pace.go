package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

// What makes a rank slow without ending it. These are simulations: the trainer reads its GPU's Pace and takes as much longer.
const (
	SlowRank     FaultKind = "slow-rank"     // each step takes its rank 1.3 times as long
	LaunchSpike  FaultKind = "launch-spike"  // 60 ms between issuing a step's work and its start, for 15 s
	ThermalDrift FaultKind = "thermal-drift" // the device heats up and is throttled, 2 % slower each second up to 1.4 times
)

// SlowFaults lists what a job lives through, in a fixed order: there is nothing to heal, and a culprit to name.
var SlowFaults = []FaultKind{SlowRank, LaunchSpike, ThermalDrift}

// The measures of the slow faults.
const (
	SlowFactor   = 1.3
	SpikeLatency = 60 * time.Millisecond
	SpikeLasts   = 15 * time.Second
	DriftRate    = 0.02 // a second
	DriftLimit   = 1.4
)

// Pace is how fast a simulated device works. It stands in the GPU's file after the state's byte; of a healthy one
// nothing does.
type Pace struct {
	Slow   float64 `json:"slow,omitempty"`     // compute time by this factor
	PerS   float64 `json:"per_s,omitempty"`    // and by so much more each second
	Since  float64 `json:"since,omitempty"`    // Unix time, seconds
	Limit  float64 `json:"limit,omitempty"`    // of both together
	Launch float64 `json:"launch_s,omitempty"` // seconds from issuing work to its start
	Until  float64 `json:"until,omitempty"`    // Unix time after which the launch latency is as ever
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

func (n *Node) slow(in Injected) error {
	g, at := in.GPU, float64(in.At.UnixMilli())/1000
	switch in.Kind {
	case SlowRank:
		return g.setPace(Pace{Slow: SlowFactor})
	case LaunchSpike:
		return g.setPace(Pace{Launch: SpikeLatency.Seconds(), Until: at + SpikeLasts.Seconds()})
	default:
		if err := n.DCGM.Throttle(g.Index, simgpu.Throttling{CelsiusPerSecond: 1, MHz: 1250}); err != nil {
			return err
		}
		return g.setPace(Pace{Slow: 1, PerS: DriftRate, Since: at, Limit: DriftLimit})
	}
}
