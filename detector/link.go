package detector

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// LinkValue is one value of what carries traffic between GPUs or nodes: the NVLinks of a GPU or of an NVSwitch, an NVSwitch itself, or a port of
// an adapter.
type LinkValue struct {
	Metric string
	Kind   string // tells values of one metric apart: the error, the state of the links, the class of an SXid
	ID     string // of the GPU, the switch or the port
	PCI    string
	Number int // of the NVLink; -1: the value is of all of them
	Time   time.Time
	V      float64
}

// bearer is what a value is of.
type bearer uint8

const (
	ofGPU bearer = iota
	ofSwitch
	ofPort
)

var bearerNames = [...]string{"gpu", "switch", "port"}

// linkMode is how a rule reads its values. above and below are those of gpuRules.
type linkMode uint8

const (
	linkAbove linkMode = iota
	linkBelow
	linkAdds  // counters grew by more than the limit within the window
	linkFewer // fewer links are up than were, and some are down
	linkLess  // the value is below the limit's share of the most that was seen while the port is ACTIVE
	linkCode  // the value is the code of the last SXid
)

// linkRule is a certain condition of a link, a switch or a port. docs/dcgm.md and docs/fabric.md say where its figures come from.
type linkRule struct {
	metric   string
	kinds    []string // nil: any. Several are added up
	mode     linkMode
	limit    float64
	window   time.Duration
	cause    event.Cause
	severity event.Severity
	advice   string
	unit     string
}

const checkFabric = "check-nvlink/fabric"

var linkRules = []linkRule{
	{semconv.NVLinkLinks, nil, linkFewer, 0, 0, event.Cause{Kind: "nvlink", Name: "down"}, event.Critical, checkFabric, "{link}"},
	{semconv.GPUNVLinkErrors, []string{"crc_flit", "crc_data"}, linkAdds, 15, 15 * time.Minute, event.Cause{Kind: "nvlink", Name: "crc"}, event.Warning, checkFabric, "{error}"},
	{semconv.GPUNVLinkErrors, []string{"replay"}, linkAdds, 10, 10 * time.Minute, event.Cause{Kind: "nvlink", Name: "replay"}, event.Warning, checkFabric, "{error}"},
	{semconv.GPUNVLinkErrors, []string{"recovery"}, linkAdds, 0, 10 * time.Minute, event.Cause{Kind: "nvlink", Name: "recovery"}, event.Warning, checkFabric, "{error}"},
	{semconv.GPUNVLink5Recoveries, []string{"failed"}, linkAdds, 0, 10 * time.Minute, event.Cause{Kind: "nvlink", Name: "recovery-failed"}, event.Critical, checkFabric, "{event}"},
	{semconv.NVSwitchLinkErrors, []string{"crc"}, linkAdds, 15, 15 * time.Minute, event.Cause{Kind: "nvlink", Name: "crc"}, event.Warning, checkFabric, "{error}"},
	{semconv.NVSwitchLinkErrors, []string{"replay"}, linkAdds, 10, 10 * time.Minute, event.Cause{Kind: "nvlink", Name: "replay"}, event.Warning, checkFabric, "{error}"},
	{semconv.NVSwitchLinkErrors, []string{"recovery"}, linkAdds, 0, 10 * time.Minute, event.Cause{Kind: "nvlink", Name: "recovery"}, event.Warning, checkFabric, "{error}"},
	{semconv.NVSwitchLinkErrors, []string{"ecc"}, linkAdds, 0, 10 * time.Minute, event.Cause{Kind: "nvlink", Name: "ecc"}, event.Warning, checkFabric, "{error}"},

	{semconv.NVSwitchStatus, nil, linkBelow, 1, 0, event.Cause{Kind: "nvswitch", Name: "lost"}, event.Critical, "reboot-node", "1"},
	{semconv.NVSwitchResetRequired, nil, linkAbove, 0, 0, event.Cause{Kind: "nvswitch", Name: "reset-required"}, event.Critical, "reboot-node", "1"},
	{semconv.GPUHealth, []string{"nvswitch_fatal"}, linkAbove, healthWarning, 0, event.Cause{Kind: "nvswitch", Name: "unhealthy"}, event.Critical, checkFabric, "1"},
	{semconv.NVSwitchSXID, []string{"fatal"}, linkCode, 0, 0, event.Cause{Kind: "sxid"}, "", "", ""},
	{semconv.NVSwitchSXID, []string{"non_fatal"}, linkCode, 0, 0, event.Cause{Kind: "sxid"}, "", "", ""},

	{semconv.FabricLinkDowns, nil, linkAdds, 2, 6 * time.Hour, event.Cause{Kind: "fabric", Name: "unstable"}, event.Warning, checkFabric, "{transition}"},
	{semconv.FabricErrors, []string{"symbol_error"}, linkAdds, 120, time.Hour, event.Cause{Kind: "fabric", Name: "symbol-errors"}, event.Warning, checkFabric, "{error}"},
	{semconv.FabricErrors, []string{"link_error_recovery"}, linkAdds, 25, 5 * time.Minute, event.Cause{Kind: "fabric", Name: "recovery"}, event.Warning, checkFabric, "{error}"},
	{semconv.FabricErrors, []string{"local_link_integrity", "excessive_buffer_overrun"}, linkAdds, 0, 10 * time.Minute, event.Cause{Kind: "fabric", Name: "integrity"}, event.Warning, checkFabric, "{error}"},
	{semconv.FabricErrors, []string{"receive"}, linkAdds, 3000, 5 * time.Minute, event.Cause{Kind: "fabric", Name: "receive-errors"}, event.Warning, checkFabric, "{error}"},
	{semconv.FabricErrors, []string{"transmit_discard"}, linkAdds, 30000, 5 * time.Minute, event.Cause{Kind: "fabric", Name: "discards"}, event.Warning, checkFabric, "{packet}"},
	{semconv.HWNetworkBandwidthLimit, nil, linkLess, 0.95, 0, event.Cause{Kind: "fabric", Name: "slow-link"}, event.Warning, checkFabric, "By/s"},
}

const stateUp, stateDown = "up", "down"

// rulesOf are the rules of a metric, by their place in linkRules.
var rulesOf = func() map[string][]int {
	m := map[string][]int{semconv.HWNetworkUp: nil}
	for i, r := range linkRules {
		m[r.metric] = append(m[r.metric], i)
	}
	return m
}()

// WantsLink reports whether Link reads values of the metric.
func WantsLink(metric string) bool {
	_, wanted := rulesOf[metric]
	return wanted && metric != semconv.GPUHealth // of which GPU passes on what is a switch's
}

// Bounds of what is kept of links.
const (
	maxCarriers   = 512
	maxSwitches   = 64 // of them, which alone have counters by link
	maxLinkNumber = 255
	maxLinkID     = 256 // bytes
)

// carrier is a GPU, a switch or a port, with what is remembered of its links.
type carrier struct {
	of      bearer
	id, pci string
	touched bool // in this batch
	at      map[int]time.Time
	values  map[int]float64 // of above, below and less: the last one
	most    map[int]float64 // of fewer and less: the most that was seen
	links   map[string]float64
	fresh   bool // links came in this batch
	up      bool
	counts  map[int]*growth
	codes   map[int]float64
	since   map[int]time.Time // when what stands began, by rule
	down    [(maxLinkNumber + 1) / 64]uint64
}

func (c *carrier) name() string { return bearerNames[c.of] + "/" + c.id }

// Link takes in one value. What it means is said by Settle, when the batch is whole.
func (e *Engine) Link(v LinkValue) []finding.Finding {
	e.tick(v.Time)
	if math.IsNaN(v.V) || math.IsInf(v.V, 0) || v.Time.IsZero() || v.ID == "" || len(v.ID) > maxLinkID || len(v.PCI) > maxLinkID || v.Number > maxLinkNumber {
		e.counts.Malformed++
		return e.take()
	}
	e.link(v)
	return e.take()
}

func bearerOf(metric string) bearer {
	switch {
	case strings.HasPrefix(metric, "pitcrew.nvswitch."):
		return ofSwitch
	case strings.HasPrefix(metric, "pitcrew.fabric."), strings.HasPrefix(metric, "hw.network."):
		return ofPort
	}
	return ofGPU
}

// isSwitch reports whether the id is one of an NVSwitch: their status comes with every round, before all else about them.
func (e *Engine) isSwitch(id string) bool {
	c, ok := e.carriers.get(id)
	return ok && c.of == ofSwitch
}

func (e *Engine) switches() (n int) {
	e.carriers.each(func(_ string, c *carrier) {
		if c.of == ofSwitch {
			n++
		}
	})
	return n
}

func (e *Engine) link(v LinkValue) {
	c, ok := e.carriers.get(v.ID)
	if !ok {
		of := bearerOf(v.Metric)
		if of == ofSwitch && e.switches() >= maxSwitches {
			e.counts.Malformed++
			return
		}
		c = &carrier{
			of: of, id: v.ID, at: map[int]time.Time{}, values: map[int]float64{}, most: map[int]float64{}, links: map[string]float64{},
			counts: map[int]*growth{}, codes: map[int]float64{}, since: map[int]time.Time{},
		}
		e.carriers.put(v.ID, c)
	}
	if v.PCI != "" {
		c.pci = v.PCI
	}
	if v.Metric == semconv.HWNetworkUp {
		c.up = v.V > 0
	}
	for _, i := range rulesOf[v.Metric] {
		r := &linkRules[i]
		kind := slices.Index(r.kinds, v.Kind)
		if r.kinds != nil && kind < 0 {
			continue
		}
		if r.mode != linkAdds { // those have a time for each counter
			if last := c.at[i]; v.Time.Before(last) && last.Sub(v.Time) < lateWithin {
				continue
			}
			c.at[i] = v.Time
		}
		switch r.mode {
		case linkAdds:
			g := c.counts[i]
			if g == nil {
				g = &growth{}
				c.counts[i] = g
			}
			if c.of != ofSwitch {
				v.Number = -1
			}
			g.add(max(kind, 0), v.Number, v.Time, v.V, r)
		case linkFewer:
			c.links[v.Kind], c.fresh = v.V, true
		case linkCode:
			e.lastSXid(i, c, v)
			continue
		default:
			c.values[i] = v.V
		}
		if !c.touched {
			c.touched = true
			e.touched = append(e.touched, c)
		}
	}
}

// LinkChanged takes in that an NVLink changed its state: which links are down stands in what is said of their GPU or switch.
func (e *Engine) LinkChanged(id string, number int, to string, at time.Time) []finding.Finding {
	e.tick(at)
	c, ok := e.carriers.get(id)
	if !ok || number < 0 || number > maxLinkNumber {
		return e.take()
	}
	bit := uint64(1) << (number % 64)
	c.down[number/64] &^= bit
	if to == stateDown {
		c.down[number/64] |= bit
	}
	return e.take()
}

// lastSXid takes in the code of a switch's last SXid. A code that is there when it is first seen is of an unknown time; one that the kernel
// log reported already is open under the same key.
func (e *Engine) lastSXid(i int, c *carrier, v LinkValue) {
	last, known := c.codes[i]
	c.codes[i] = v.V
	if !known || v.V == last || v.V < 1 || v.V > math.MaxInt32 {
		return
	}
	word := verdict.NonFatal
	if v.Kind == "fatal" {
		word = verdict.Fatal
	}
	e.judge(Kernel{
		Line: verdict.Line{Kind: verdict.SXid, Code: int(v.V), PCI: c.pci, Word: word, CodeOnly: true}, Time: v.Time, BootID: e.o.BootID, Signal: v.Metric,
		Raw:       fmt.Sprintf("DCGM: last %s SXid of %s is %d", strings.ReplaceAll(v.Kind, "_", "-"), c.name(), int(v.V)),
		component: "detector",
	})
}

// settleLinks judges what came of links in this batch.
func (e *Engine) settleLinks() {
	for _, c := range e.touched {
		c.touched = false
		for i := range linkRules {
			e.settleLink(i, c)
		}
		c.fresh = false
	}
	e.touched = e.touched[:0]
	e.sayRisen()
}

func (e *Engine) settleLink(i int, c *carrier) {
	r := &linkRules[i]
	ev := event.Evidence{Signal: r.metric, Unit: r.unit, Baseline: "table", WindowS: r.window.Seconds()}
	value, known := c.values[i]
	bad, well := false, false
	switch r.mode {
	case linkAdds:
		g := c.counts[i]
		if g == nil {
			return
		}
		value = g.increase()
		bad, well = value > r.limit, g.covered(r) && value <= r.limit/2
		ev.Upper, ev.Raw = num(r.limit), g.where(r)
		c.at[i] = g.last
	case linkFewer:
		if !c.fresh {
			return
		}
		up := c.links[stateUp]
		c.most[i] = max(c.most[i], up, e.stoodAt(i, c))
		value = up
		bad = min(c.most[i]-up, c.links[stateDown]) > 0
		well = !bad
		ev.Expected, ev.Lower, ev.Raw = num(c.most[i]), num(c.most[i]), c.whichAreDown(c.most[i])
	case linkLess:
		if !known || !c.up {
			return
		}
		c.most[i] = max(c.most[i], value, e.stoodAt(i, c))
		bad = value < r.limit*c.most[i]
		well = !bad
		ev.Expected, ev.Lower = num(c.most[i]), num(r.limit*c.most[i])
	case linkAbove:
		bad, well = known && value > r.limit, known && value <= r.limit
		ev.Upper = num(r.limit)
	case linkBelow:
		bad, well = known && value < r.limit, known && value >= r.limit
		ev.Expected, ev.Lower = num(r.limit), num(r.limit)
	default:
		return
	}
	ev.Value = num(value)
	switch {
	case bad:
		e.rise(i, c, ev)
	case well:
		e.fall(i, c, ev)
	}
}

// whichAreDown says how many links are left, and which are down as far as that was told.
func (c *carrier) whichAreDown(of float64) string {
	out := fmt.Sprintf("%g of %g NVLinks of %s are up", c.links[stateUp], of, c.name())
	sep := "; down: "
	for n := range maxLinkNumber + 1 {
		if c.down[n/64]&(1<<(n%64)) != 0 {
			out += fmt.Sprint(sep, n)
			sep = ", "
		}
	}
	return out
}
