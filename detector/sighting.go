package detector

import (
	"fmt"
	"math"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Sighting is an Xid as DCGM tells it: by a violation of its policy, or because the field that holds a GPU's last Xid changed. It stands for
// the kernel's line where the kernel log cannot be read, and for nothing where it can.
type Sighting struct {
	Code     int
	GPU, PCI string
	Time     time.Time
	Signal   string // what told it
	Raw      string
}

// Bounds of what is kept of Xids, and of what is one and the same.
const (
	maxHeld    = 16               // sightings of which it is open whether the kernel log tells them
	maxTold    = 16               // codes that were told of one GPU
	sameWithin = 10 * time.Second // DCGM cuts a violation's time to seconds, and the kernel's clock is not the node's
	newsWithin = time.Minute      // an older sighting is history
	fromLog    = "xid"            // the component that reports the kernel's lines
	fromDCGM   = "dcgm"           // the component that reports Xids in its place
)

// xids is which codes were reported of one GPU, by whomever.
type xids struct{ told []toldXid }

type toldXid struct {
	code int
	at   time.Time
}

// gauge is the field that holds a GPU's last Xid.
type gauge struct {
	code  int // the last that was not 0
	at    time.Time
	known bool
}

// xidsOf is by PCI address where there is one: a line of the kernel log always has it.
func (e *Engine) xidsOf(t event.Target) *xids {
	key := "pci/" + t.PCI
	if t.PCI == "" {
		key = about(t)
	}
	x, ok := e.xids.get(key)
	if !ok {
		x = &xids{}
		e.xids.put(key, x)
	}
	return x
}

func (x *xids) note(code int, at time.Time) {
	if len(x.told) >= maxTold {
		x.told = append(x.told[:0], x.told[1:]...)
	}
	x.told = append(x.told, toldXid{code, at})
}

func (x *xids) toldSince(code int, t time.Time) bool {
	for _, k := range x.told {
		if k.code == code && !k.at.Before(t) {
			return true
		}
	}
	return false
}

// Sighted judges an Xid that a policy told.
func (e *Engine) Sighted(s Sighting) []finding.Finding {
	e.tick(s.Time)
	if s.Code <= 0 || s.Time.IsZero() || s.PCI == "" || len(s.PCI) > maxLinkID || len(s.GPU) > maxLinkID {
		e.counts.Malformed++
		return e.take()
	}
	e.sighted(s)
	return e.take()
}

// KernelLog takes in whether the kernel log can be read. While nobody said so it can.
func (e *Engine) KernelLog(readable bool) []finding.Finding {
	e.blind = !readable
	held := e.held
	e.held = nil
	if e.blind {
		for _, s := range held { // what happened as the log went, or before this was said
			if e.ago(s.Time) < sameWithin {
				e.sighted(s)
			}
		}
	}
	return e.take()
}

// ago is for how long something is over, also by a clock that was ahead and has been set back.
func (e *Engine) ago(t time.Time) time.Duration {
	if e.status.IsZero() {
		return e.now.Sub(t)
	}
	return e.status.Sub(t)
}

func (e *Engine) sighted(s Sighting) {
	if !e.blind {
		if len(e.held) >= maxHeld {
			e.held = append(e.held[:0], e.held[1:]...)
		}
		e.held = append(e.held, s)
		return
	}
	if e.ago(s.Time) >= newsWithin {
		e.counts.History++
		return
	}
	e.judge(Kernel{
		Line: verdict.Line{Kind: verdict.Xid, Code: s.Code, PCI: s.PCI, CodeOnly: true}, GPU: s.GPU, Time: s.Time, BootID: e.o.BootID,
		Signal: s.Signal, Raw: s.Raw, component: fromDCGM,
	})
}

// lastXid reads the field that holds a GPU's last Xid. It never clears, so what it holds when it is first seen is history; the same code again
// says nothing, be it that the host engine was started anew or that the fault came back.
func (e *Engine) lastXid(g *gpu, v Value) {
	if v.V < 0 || v.V > math.MaxInt32 {
		e.counts.Malformed++
		return
	}
	was := g.xid
	if was.known && v.Time.Before(was.at) && was.at.Sub(v.Time) < lateWithin {
		return
	}
	g.xid.known, g.xid.at = true, v.Time
	code := int(v.V)
	if code == 0 {
		return
	}
	g.xid.code = code
	t := g.target
	if !was.known || code == was.code || e.xidsOf(t).toldSince(code, was.at.Add(-sameWithin)) {
		return
	}
	e.sighted(Sighting{
		Code: code, GPU: t.GPU, PCI: t.PCI, Time: v.Time, Signal: semconv.GPUXID, Raw: fmt.Sprintf("DCGM: last Xid of %s is %d, was %d", t.GPU, code, was.code),
	})
}

// sightedBefore reports whether DCGM told what a line of the kernel log says, before the log could be read. A line that says worse is news.
func (e *Engine) sightedBefore(key string, at time.Time, severity event.Severity) bool {
	have, ok := e.open.get(key)
	if !ok || severity.Compare(have.Event.Data.Severity) > 0 || have.Event.Source == event.Source(e.o.Cluster, e.o.Node, fromLog) || at.Sub(have.Event.Data.Onset) > sameWithin {
		return false
	}
	have.Seen = e.now
	return true
}
