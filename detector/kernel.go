package detector

import (
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
)

// Kinds of lines that are not in the table of signals, or not about a device.
const (
	kernelLost = "gpu_lost"
	linesLost  = "lines_lost"
)

// Kernel is what the kernel log reported, or DCGM in its place: facts without judgment.
type Kernel struct {
	verdict.Line
	Time   time.Time
	GPU    string // UUID, if known
	PodUID string // of the process on the line, if its receiver found it
	Signal string // what reported it; empty: the line's kind
	Raw    string
	BootID string // empty: the engine's
	Seq    int64  // the kernel's number of the line; 0: unknown
	Count  int    // lines alike that this one stands for; 0 reads as 1

	History   bool // written before this boot, published before, or too old
	Published bool // history that was published before

	component string // that reports it; empty: the receiver of the kernel log
	further   bool   // not the first line of its record
}

// Kernel judges one line.
func (e *Engine) Kernel(k Kernel) []finding.Finding {
	e.tick(k.Time)
	def(&k.BootID, e.o.BootID)
	_, signal := kernelSignals[k.Kind]
	switch {
	case k.Time.IsZero() || !signal && k.Kind != kernelLost && k.Code <= 0:
		e.counts.Malformed++
	case k.History && k.BootID != e.o.BootID: // conditions of another boot ended with it
		e.counts.History++
	default:
		e.judge(k)
	}
	return e.take()
}

// judge is the one place where a line gets its verdict, whoever reported it.
func (e *Engine) judge(k Kernel) {
	def(&k.Count, 1)
	def(&k.Signal, k.Kind)
	def(&k.component, fromLog)
	if k.History {
		e.counts.History++
	}
	if k.Kind == linesLost { // it is about the log, not about a device
		e.kernelSignal(kernelSignals[k.Kind], k, verdict.Verdict{})
		return
	}
	if !k.CodeOnly {
		k.further = e.further(&k)
	}
	r, outcome := e.bursts.Add(&k.Line, k.Count, verdict.Stamp{
		At: time.Duration(k.Time.UnixNano()), Boot: k.BootID, Seq: uint64(k.Seq), History: k.History, Published: k.Published,
	})
	signal, ok := kernelSignals[k.Kind]
	switch {
	case k.Kind == kernelLost:
		e.kernelLost(k)
	case ok:
		e.kernelSignal(signal, k, r.Verdict)
	default:
		e.kernelCode(k, r, outcome)
	}
}

func (e *Engine) kernelLost(k Kernel) {
	t := event.Target{GPU: k.GPU, PCI: k.PCI}
	o := lostOnset(t, k.Time)
	o.source, o.id, o.silent = k.component, lineID(k), k.History
	o.evidence = event.Evidence{Signal: "kernel log", Baseline: "table", Raw: k.Raw}
	e.begin(o)
}

// kernelCode turns the report on a line with a code into a finding, or into nothing.
func (e *Engine) kernelCode(k Kernel, r verdict.Report, outcome verdict.Outcome) {
	t := event.Target{GPU: k.GPU, PCI: k.PCI, MIG: k.MIG, PodUID: k.PodUID}
	if k.Kind == verdict.Xid && !k.History {
		e.xidsOf(t).note(k.Code, k.Time)
	}
	code, v := strconv.Itoa(k.Code), &r.Verdict
	key := kernelKey(k.Kind, code, t)
	ev := event.Evidence{Signal: k.Signal, Baseline: "table", Value: num(float64(k.Code)), Raw: k.Raw}
	switch {
	case outcome == verdict.Dropped:
		e.counts.Suppressed++
	case r.Echo:
		e.counts.Echoes++
	case v.Clears > 0:
		e.kernelClear(k, r, t, ev)
	case outcome == verdict.Repeat && e.repeated(key, k, r.Count):
	case !k.History && !k.CodeOnly && e.sightedBefore(key, k.Time, event.Severity(v.Severity)):
		e.counts.Echoes++
	default:
		e.occurred(onset{
			key: key, target: t, cause: event.Cause{Kind: k.Kind, Code: code, Name: v.Name}, severity: event.Severity(v.Severity), advice: string(v.Advice),
			evidence: ev, at: k.Time, source: k.component, id: lineID(k), count: r.Count, silent: k.History,
		})
	}
}

// kernelClear ends the condition that a line clears. Good news is no condition of its own. A fault that an earlier agent reported may be gone
// from the log: its condition is cleared although this engine does not know it.
func (e *Engine) kernelClear(k Kernel, r verdict.Report, t event.Target, ev event.Evidence) {
	cleared := strconv.Itoa(r.Verdict.Clears)
	key := kernelKey(k.Kind, cleared, t)
	have, open := e.open.get(key)
	switch {
	case open && e.outdated(k, have.Event):
		e.counts.History++
		return
	case !open && !k.History:
		f := e.finding(onset{
			key: key, typ: event.Recovery, target: t, cause: event.Cause{Kind: k.Kind, Code: cleared}, severity: event.Info, evidence: ev, at: k.Time,
			source: k.component, id: lineID(k), silent: true,
		})
		f.Active = false
		e.out = append(e.out, f)
		return
	case k.History:
		e.forget(key)
	}
	if !k.CodeOnly {
		ev.Signal, ev.Value = k.Kind+"/"+strconv.Itoa(k.Code), nil
	}
	e.end(key, ev)
}

// outdated reports whether a line of the kernel log is older than a fault that the log did not report. A clock that was set back makes no news
// old: the fault is in its future then.
func (e *Engine) outdated(k Kernel, fault event.Event) bool {
	reported := fault.Source == event.Source(e.o.Cluster, e.o.Node, fromLog)
	return !reported && k.Time.Before(fault.Data.Onset) && (k.History || e.ago(fault.Data.Onset) >= 0)
}

// repeated renews the open finding of a line that only counts. It reports false if there is none.
func (e *Engine) repeated(key string, k Kernel, count int) bool {
	have, ok := e.open.get(key)
	if !ok {
		return k.CodeOnly // DCGM repeats its codes; only a line proves that the fault goes on
	}
	have.Seen = e.now
	if k.CodeOnly || k.History || have.Event.Source != event.Source(e.o.Cluster, e.o.Node, k.component) {
		e.counts.Echoes++
		return true
	}
	have.Event.Data.Count, have.Raw = count, nil
	e.out = append(e.out, finding.Finding{Event: have.Event, Key: key, BootID: e.o.BootID, Active: true, ConditionOnly: true})
	return true
}

// occurred publishes an occurrence of its own and opens its condition, or renews it. What history reports only opens it.
func (e *Engine) occurred(o onset) {
	if o.silent {
		e.begin(o) // a condition that is open already stays as it is
		return
	}
	f := e.finding(o)
	if have, ok := e.open.get(o.key); ok && have.Event.ID == f.Event.ID {
		f.ConditionOnly = true
	}
	e.open.put(o.key, &finding.Open{Key: o.key, BootID: e.o.BootID, Seen: e.now, Event: f.Event})
	e.out = append(e.out, f)
}

// lineOfRecord names a line of a record of the kernel log.
type lineOfRecord struct {
	boot            string
	seq             int64
	kind, cause     string
	code            int
	device, section string
}

// further reports whether another line of the same record came before this one. It remembers the first line of each record.
func (e *Engine) further(k *Kernel) bool {
	line, first := lineOfRecord{k.BootID, k.Seq, k.Kind, k.Case, k.Code, k.PCI, k.MIG}, &e.first
	if first.boot != line.boot || first.seq != line.seq {
		*first = line
	}
	return *first != line
}

// lineID identifies the occurrence: the line by its record's number, a report of DCGM by what it is about. A further line of a record is
// identified by what it names, too.
func lineID(k Kernel) []string {
	if k.CodeOnly {
		return nil // by key and onset
	}
	if k.Seq > 0 {
		id := []string{k.BootID, strconv.FormatInt(k.Seq, 10)}
		if k.further {
			id = append(id, k.Kind, k.Case, strconv.Itoa(k.Code), k.PCI, k.MIG)
		}
		return id
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
