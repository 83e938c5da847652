package detector

import (
	"fmt"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// fabricRule is a state of a GPU's registration, or one of a part of its fabric. 0 of either is "not supported", and a status above 4 says that
// driver and DCGM do not know each other: of them nothing is said.
type fabricRule struct {
	metric     string
	shift      uint
	width      uint    // of the part, in bits
	least      float64 // the part's values that are bad
	most       float64
	stands     time.Duration // for so long at least
	ofSwitches bool          // only where there are NVSwitches: single cards and racks whose switches are elsewhere can stand so for good
	severity   event.Severity
	key, what  string
}

const (
	// registers is how long a registration may take after a boot.
	registers = 10 * time.Minute
	// failedFor lets the error, which comes right after the status, be known when the failure is told.
	failedFor = 30 * time.Second
	whole     = 62 // bits of a value that has no parts
)

var fabricRules = []fabricRule{
	{semconv.GPUFabricStatus, 0, whole, 1, 1, registers, true, event.Warning, "gpu/nvlink.unregistered", "its registration with the fabric has not begun: is the fabric manager running?"},
	{semconv.GPUFabricStatus, 0, whole, 2, 2, registers, false, event.Warning, "gpu/nvlink.registering", "its registration with the fabric does not come to an end"},
	{semconv.GPUFabricStatus, 0, whole, 4, 4, failedFor, false, event.Warning, "gpu/nvlink.registration", "its registration with the fabric failed"},
	{semconv.GPUFabricHealthMask, 0, 2, 1, 1, 0, false, event.Warning, "gpu/nvlink.bandwidth", "its bandwidth in the fabric is reduced"},
	{semconv.GPUFabricHealthMask, 2, 2, 1, 1, 0, false, event.Info, "gpu/nvlink.route-recovery", "its routes in the fabric are being recovered"},
	{semconv.GPUFabricHealthMask, 4, 2, 1, 1, 0, false, event.Warning, "gpu/nvlink.route", "its routes in the fabric are unhealthy"},
	{semconv.GPUFabricHealthMask, 6, 2, 1, 1, 0, false, event.Info, "gpu/nvlink.timeout-recovery", "the fabric recovers from a time-out of an access to it"},
	{semconv.GPUFabricHealthMask, 8, 4, 2, 15, 0, false, event.Warning, "gpu/nvlink.configuration", "its place in the fabric is wrongly configured"},
}

// registration judges a value of a GPU's registration with the fabric.
func (e *Engine) registration(g *gpu, v Value) {
	if v.Metric == semconv.GPUFabricError {
		g.fabricError = v.V
		return
	}
	for i := range fabricRules {
		if r := &fabricRules[i]; r.metric == v.Metric && !g.late(reading{-1 - i, v.Series}, v.Time) {
			e.fabricRule(i, r, g, v)
		}
	}
}

func (e *Engine) fabricRule(i int, r *fabricRule, g *gpu, v Value) {
	said := v.V >= 0 && v.V < 1<<whole
	part := 0.0
	if said {
		part = float64(uint64(v.V) >> r.shift & (1<<r.width - 1))
	}
	key := r.key + " " + about(event.Target{GPU: v.GPU})
	ev := event.Evidence{Signal: v.Metric, Unit: "1", Value: num(v.V), Baseline: "table"}
	if !said || part < r.least || part > r.most {
		delete(g.since, i)
		e.end(key, ev)
		return
	}
	since, known := g.since[i]
	if !known || v.Time.Before(since) {
		if g.since == nil {
			g.since = map[int]time.Time{}
		}
		since = v.Time
		g.since[i] = since
	}
	if v.Time.Sub(since) < r.stands || r.ofSwitches && e.switches() == 0 {
		return
	}
	ev.Raw = r.what
	if r.stands == failedFor {
		ev.Raw = fmt.Sprintf("%s: error %g", r.what, g.fabricError)
	}
	e.begin(onset{
		key: key, target: g.target, cause: event.Cause{Kind: "gpu", Name: "nvlink"}, severity: r.severity, advice: checkFabric, evidence: ev,
		at: v.Time, since: since, maker: g.maker,
	})
}
