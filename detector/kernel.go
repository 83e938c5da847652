package detector

import (
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// Kernel is a line of the kernel log as its receiver read it.
type Kernel struct {
	Kind     string // xid | sxid | gpu_lost | gpu_init | gsp | aer | mlx5 | lines_lost
	Code     int
	Time     time.Time
	GPU      string // UUID, where known
	PCI, MIG string
	PodUID   string // of the process on the line, where its receiver found it
	Raw      string
	BootID   string // empty: the engine's
	Seq      int64  // the kernel's number of the line; 0: unknown
	Count    int    // lines that the receiver folded into this one

	Name     string // what the receiver knows beyond the table; empty or zero: the table says
	Severity event.Severity
	Advice   string
	Clears   int // the code whose condition this one ends

	Fatal, Said bool // of an SXid: what the line says of itself, and whether it says it
	Echo, Burst bool // of a burst: follows from a line before it, and whether the receiver grouped bursts at all
	History     bool // of before this boot, or published already
}

// A key's lines beyond lineBurst are held to one a linePause, so that a driver that writes thousands a second gives a count and
// not thousands of events.
const (
	lineBurst = 100
	linePause = time.Second
)

// budget is a token bucket on the samples' clock.
type budget struct {
	tokens float64
	at     time.Time
	held   int // lines not published since the last one that was
}

func (b *budget) take(t time.Time) bool {
	b.tokens = min(lineBurst, b.tokens+max(0, t.Sub(b.at).Seconds()/linePause.Seconds()))
	if t.After(b.at) {
		b.at = t
	}
	if b.tokens < 1 {
		b.held++
		return false
	}
	b.tokens--
	return true
}

// Kernel judges one line.
func (e *Engine) Kernel(k Kernel) []finding.Finding {
	e.tick(k.Time)
	def(&k.BootID, e.o.BootID)
	signal, ok := kernelSignals[k.Kind]
	switch {
	case k.Time.IsZero() || !ok && k.Code <= 0:
		e.counts.Malformed++
	case k.History && k.BootID != e.o.BootID: // another boot's conditions ended with it
		e.counts.History++
	case k.Kind == "gpu_lost":
		e.kernelLost(k)
	case ok:
		e.kernelSignal(signal, k)
	default:
		e.kernelCode(k)
	}
	return e.take()
}

func (e *Engine) kernelLost(k Kernel) {
	if k.History {
		e.counts.History++
	}
	t := event.Target{GPU: k.GPU, PCI: k.PCI}
	o := lostOnset(t, k.Time)
	o.source, o.id, o.silent = fromLog, lineID(k), k.History
	o.evidence = event.Evidence{Signal: "kernel log", Baseline: "table", Raw: k.Raw}
	e.begin(o)
}

func (e *Engine) kernelCode(k Kernel) {
	row := Row{Severity: event.Warning}
	if e.o.Table != nil {
		row = e.o.Table.Lookup(k.Kind, k.Code, k.Fatal, k.Said)
	}
	t := event.Target{GPU: k.GPU, PCI: k.PCI, MIG: k.MIG, PodUID: k.PodUID}
	if !k.Severity.Valid() {
		k.Severity = row.Severity
	}
	if k.Kind == "xid" && !k.History && k.Severity.Valid() {
		e.xidsOf(t).take(k.Code, k.Severity, k.Time)
	}
	if k.Echo || row.Echo && !k.Burst {
		e.counts.Echoes++
		return
	}
	def(&k.Name, row.Name)
	def(&k.Advice, row.Advice)
	code := strconv.Itoa(k.Code)
	def(&k.Clears, row.Clears)
	if k.Clears > 0 {
		key := kernelKey(k.Kind, strconv.Itoa(k.Clears), t)
		if k.History {
			e.forget(key)
		}
		e.end(key, event.Evidence{Signal: k.Kind + "/" + code, Baseline: "table", Raw: k.Raw})
		return // good news is no condition of its own
	}
	key := kernelKey(k.Kind, code, t)
	if !k.History && e.sightedBefore(key, k.Time) {
		e.counts.Echoes++
		return
	}
	b, ok := e.lines.get(key)
	if !ok {
		b = &budget{tokens: lineBurst, at: k.Time}
		e.lines.put(key, b)
	}
	if !k.History && !b.take(k.Time) {
		e.counts.Suppressed++
		return
	}
	o := onset{
		key: key, target: t, cause: event.Cause{Kind: k.Kind, Code: code, Name: k.Name}, severity: k.Severity, advice: k.Advice,
		evidence: event.Evidence{Signal: k.Kind, Baseline: "table", Value: num(float64(k.Code)), Raw: k.Raw},
		at:       k.Time, source: fromLog, id: lineID(k), count: max(k.Count, 1) + b.held, silent: k.History,
	}
	b.held = 0
	if k.History {
		e.counts.History++
		e.begin(o) // a condition that stands already stays as it is
		return
	}
	// Every line is an occurrence of its own, so a repeated code is said again; the condition is one. A line that the receiver
	// reports once more, with a higher count, is no new occurrence.
	f := e.finding(o)
	if have, ok := e.open.get(key); ok && have.Event.ID == f.Event.ID {
		f.ConditionOnly = true
	}
	e.open.put(key, &finding.Open{Key: key, BootID: e.o.BootID, Seen: e.now, Event: f.Event})
	e.out = append(e.out, f)
}

func lineID(k Kernel) []string {
	if k.Seq > 0 {
		return []string{k.BootID, strconv.FormatInt(k.Seq, 10)}
	}
	return []string{k.BootID, strconv.FormatInt(k.Time.UnixNano(), 10), k.Raw}
}

func kernelKey(kind, code string, t event.Target) string { return kind + "/" + code + " " + about(t) }

// about names a GPU by what is known of it.
func about(t event.Target) string {
	switch {
	case t.GPU != "":
		return "gpu/" + t.GPU
	case t.PCI != "":
		return "pci/" + t.PCI
	default:
		return "node"
	}
}

func lostOnset(t event.Target, at time.Time) onset {
	return onset{
		key: gpuLost + about(t), target: t, cause: event.Cause{Kind: "gpu", Name: "lost"},
		severity: event.Fatal, advice: "reboot-node", at: at,
	}
}
