package detector

import (
	"math"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Value is one value of a GPU or of the node's GPU count.
type Value struct {
	Metric string
	Maker  string // whose exporter says it; empty: NVIDIA's. Read of counts and of a GPU's status
	Series string // tells series of one metric and GPU apart, and is otherwise not read
	Kind   string // of hw.errors: corrected | uncorrected; of pitcrew.gpu.health: the system
	GPU    string // UUID
	PCI    string
	Time   time.Time
	V      float64
}

// mode is how a rule reads its series.
type mode int

const (
	above mode = iota // the value is above the threshold
	below             // the value is below it
	rises             // a counter grew by more than the threshold since the value before; a fall is a reset
)

// gpuRule is a certain fault of a GPU.
type gpuRule struct {
	metric, kind string
	mode         mode
	limit        float64
	key, name    string // key differs where one signal has several conditions
	severity     event.Severity
	advice       string
	unit         string
	quiet        time.Duration // rises: so long without a rise ends the condition
}

// healthWarning is DCGM's word that a watched system is not well but works; above it the system failed.
const healthWarning = 1

// fabricHealthy is DCGM's word that the GPU's part of the NVLink fabric is well; 0 is unknown, 2 unhealthy, 3 less than it should be.
const fabricHealthy = 1

var gpuRules = []gpuRule{
	{semconv.GPUStatus, "", below, 1, "gpu/lost", "lost", event.Fatal, "reboot-node", "1", 0},
	{semconv.GPURowRemapFailed, "", above, 0, "gpu/row-remap.failed", "row-remap", event.Fatal, "drain-and-rma", "1", 0},
	{semconv.GPURowRemapPending, "", above, 0, "gpu/row-remap.pending", "row-remap", event.Critical, "reset-gpu", "1", 0},
	{semconv.GPURowRemapBanksExhausted, "", above, 0, "gpu/row-remap.banks", "row-remap", event.Warning, "drain-and-rma", "{bank}", 0},
	{semconv.HWErrors, "uncorrected", rises, 0, "gpu/ecc", "ecc", event.Critical, "reset-gpu", "{error}", 10 * time.Minute},
	{semconv.GPUECCSRAMExceeded, "", above, 0, "gpu/ecc.sram", "ecc", event.Warning, "drain-and-rma", "1", 0},
	{semconv.GPUMemoryUnrepairable, "", above, 0, "gpu/ecc.unrepairable", "ecc", event.Warning, "drain-and-rma", "1", 0},
	{semconv.GPUFabricHealth, "", above, fabricHealthy, "gpu/nvlink.fabric", "nvlink", event.Warning, checkFabric, "1", 0},
	{semconv.GPUHealth, "mem", above, healthWarning, "gpu/ecc.health", "ecc", event.Critical, "reset-gpu", "1", 0},
	{semconv.GPUHealth, "device", above, healthWarning, "gpu/unhealthy", "unhealthy", event.Critical, "contact-support", "1", 0}, // other makers' own word
	{semconv.GPUHealth, "thermal", above, healthWarning, "gpu/thermal", "thermal", event.Critical, "contact-support", "1", 0},
	{semconv.GPUHealth, "nvlink", above, healthWarning, "gpu/nvlink", "nvlink", event.Critical, "check-nvlink/fabric", "1", 0},
	{semconv.GPUHealth, "pcie", above, healthWarning, "gpu/pcie", "pcie", event.Critical, "reboot-node", "1", 0},
}

var gpuMetrics = func() map[string]bool {
	m := map[string]bool{semconv.GPUCount: true, semconv.GPUExpected: true, semconv.GPURecoveryAction: true, semconv.GPUXID: true, semconv.GPUFabricError: true}
	for _, r := range gpuRules {
		m[r.metric] = true
	}
	for _, r := range fabricRules {
		m[r.metric] = true
	}
	return m
}()

// WantsGPU reports whether the engine reads values of the metric, so that a skin need not translate the rest.
func WantsGPU(metric string) bool { return gpuMetrics[metric] }

type gpuSeries struct {
	v  float64
	at time.Time
}

type gpu struct {
	target event.Target
	maker  string
	heard  int64     // the batch that had its status last; 0: none, or it is missed no longer
	rose   time.Time // of a counter under a rule with quiet
	xid    gauge
	read   map[reading]time.Time
	asked  asked
	since  map[int]time.Time // by place in fabricRules

	fabricError float64
}

// reading is one series under one rule that reads values as they are.
type reading struct {
	rule   int // the place in gpuRules, or -1 less that in fabricRules
	series string
}

const (
	// lateWithin is how much older than the one before a value may be and be late: after a fault the driver is asked at once, and then comes
	// what DCGM had kept from the second before. An older one is of a clock that was set back.
	lateWithin  = 10 * time.Second
	maxReadings = 64 // of one GPU
)

// late reports whether a later value of the same series was judged before.
func (g *gpu) late(r reading, at time.Time) bool {
	last, known := g.read[r]
	if known && at.Before(last) && last.Sub(at) < lateWithin {
		return true
	}
	if g.read == nil || !known && len(g.read) >= maxReadings {
		g.read = map[reading]time.Time{}
	}
	g.read[r] = at
	return false
}

// GPU takes in one value. Findings about the count come from Settle.
func (e *Engine) GPU(v Value) []finding.Finding {
	e.tick(v.Time)
	switch {
	case math.IsNaN(v.V) || math.IsInf(v.V, 0) || v.Time.IsZero() || len(v.Maker) > maxMaker:
		e.counts.Malformed++
	case v.Metric == semconv.GPUCount:
		n := e.countOf(v.Maker)
		n.have, n.at = v.V, v.Time
	case v.Metric == semconv.GPUExpected:
		e.countOf(v.Maker).want = v.V
	case v.GPU == "":
		e.counts.Malformed++
	case v.Metric == semconv.GPUHealth && e.isSwitch(v.GPU):
		e.link(LinkValue{Metric: v.Metric, Kind: v.Kind, ID: v.GPU, Number: -1, Time: v.Time, V: v.V})
	default:
		e.gpuValue(v)
	}
	return e.take()
}

func (e *Engine) gpuValue(v Value) {
	g, ok := e.gpus.get(v.GPU)
	if !ok {
		g = &gpu{}
		e.gpus.put(v.GPU, g)
	}
	g.target.GPU = v.GPU
	if v.PCI != "" {
		g.target.PCI = v.PCI
	}
	if v.Metric == semconv.GPUStatus {
		g.maker, g.heard, e.status = v.Maker, e.batch, v.Time
	}
	if v.Metric == semconv.GPUXID {
		e.lastXid(g, v)
	}
	if v.Metric == semconv.GPURecoveryAction {
		e.recovery(g, v)
	}
	e.registration(g, v)
	for i := range gpuRules {
		if r := &gpuRules[i]; r.metric == v.Metric && (r.kind == "" || r.kind == v.Kind) {
			if r.mode == rises || !g.late(reading{i, v.Series}, v.Time) {
				e.gpuRule(r, g, v)
			}
		}
	}
}

func (e *Engine) gpuRule(r *gpuRule, g *gpu, v Value) {
	bad, ended := false, false
	upper, expected := num(r.limit), (*float64)(nil)
	switch r.mode {
	case above:
		bad = v.V > r.limit
		ended = !bad
	case below:
		bad = v.V < r.limit
		ended, upper, expected = !bad, nil, num(r.limit)
	case rises:
		id := v.Metric + "\x00" + v.GPU + "\x00" + v.Kind + "\x00" + v.Series
		s, known := e.series.get(id)
		if !known {
			s = &gpuSeries{v: v.V, at: v.Time}
			e.series.put(id, s)
		}
		if known && v.Time.Before(s.at) {
			return
		}
		bad = known && v.V-s.v > r.limit
		upper, expected = num(s.v), num(s.v)
		ended = v.V < s.v || !g.rose.IsZero() && v.Time.Sub(g.rose) >= r.quiet
		if _, open := e.open.get(r.key + " " + about(event.Target{GPU: v.GPU})); bad || open && g.rose.IsZero() {
			g.rose = v.Time
		}
		s.v, s.at = v.V, v.Time
	}
	key := r.key + " " + about(event.Target{GPU: v.GPU})
	ev := event.Evidence{Signal: v.Metric, Unit: r.unit, Value: num(v.V), Expected: expected, Upper: upper, Baseline: "table"}
	switch {
	case bad:
		e.begin(onset{
			key: key, target: g.target, cause: event.Cause{Kind: "gpu", Name: r.name}, severity: r.severity, advice: r.advice,
			evidence: ev, at: v.Time, maker: g.maker,
		})
	case ended:
		e.end(key, ev)
	}
}
