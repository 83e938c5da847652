package detector

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// A switch that dies takes links of every GPU with it. What begins on several carriers at about the same time is one finding of the node, which
// names them.
const (
	foldFrom   = 3                // so many carriers …
	foldWithin = 30 * time.Second // … of which a condition began within this are one finding
	joinWithin = 2 * time.Minute  // after its beginning others join it in silence
	maxNamed   = event.MaxSamples
	maxRaw     = 1024 // bytes of what names them
)

// rise is a condition of a carrier that began in this batch.
type rise struct {
	rule int
	c    *carrier
	ev   event.Evidence
}

func (r *linkRule) key(subject string) string { return r.cause.Signal() + " " + subject }

// rise takes in that a condition holds.
func (e *Engine) rise(i int, c *carrier, ev event.Evidence) {
	if _, stands := c.since[i]; stands {
		return
	}
	c.since[i] = c.at[i]
	e.risen = append(e.risen, rise{i, c, ev})
}

// fall takes in that a condition holds no longer.
func (e *Engine) fall(i int, c *carrier, ev event.Evidence) {
	r := &linkRules[i]
	delete(c.since, i)
	e.end(r.key(c.name()), ev)
	node, open := e.open.get(r.key("node"))
	if !open {
		return
	}
	left := slices.DeleteFunc(slices.Clone(node.Event.Data.Evidence.Signals), func(w event.Witness) bool { return w.Signal == c.name() })
	if len(left) == len(node.Event.Data.Evidence.Signals) {
		return
	}
	if len(left) == 0 {
		ev.Raw = "none of those it began with has it any more"
		e.end(r.key("node"), ev)
		return
	}
	node.Event.Data.Evidence.Signals, node.Raw = left, nil
}

// stoodAt is what was expected of the carrier by a finding that an earlier engine left open; 0: there is none.
func (e *Engine) stoodAt(i int, c *carrier) float64 {
	if _, known := c.most[i]; known {
		return 0
	}
	r := &linkRules[i]
	if o, open := e.open.get(r.key(c.name())); open && o.Event.Data.Evidence.Expected != nil {
		return *o.Event.Data.Evidence.Expected
	}
	if o, open := e.open.get(r.key("node")); open {
		for _, w := range o.Event.Data.Evidence.Signals {
			if w.Signal == c.name() && w.Expected != nil {
				return *w.Expected
			}
		}
	}
	return 0
}

// sayRisen says what began: of each carrier by itself, or once for all of them.
func (e *Engine) sayRisen() {
	for len(e.risen) > 0 {
		signal := linkRules[e.risen[0].rule].cause.Signal()
		var same, rest []rise
		for _, r := range e.risen {
			if linkRules[r.rule].cause.Signal() == signal {
				same = append(same, r)
			} else {
				rest = append(rest, r)
			}
		}
		e.risen = rest
		e.saySame(same)
	}
}

func (e *Engine) saySame(same []rise) {
	r := &linkRules[same[0].rule]
	node, open := e.open.get(r.key("node"))
	same = slices.DeleteFunc(same, func(x rise) bool {
		if !open {
			return false
		}
		named := slices.ContainsFunc(node.Event.Data.Evidence.Signals, func(w event.Witness) bool { return w.Signal == x.c.name() })
		if !named && (x.c.at[x.rule].Sub(node.Event.Data.Onset) > joinWithin || len(node.Event.Data.Evidence.Signals) >= maxNamed) {
			return false
		}
		if !named {
			node.Event.Data.Evidence.Signals, node.Raw = append(slices.Clone(node.Event.Data.Evidence.Signals), x.witness()), nil
		}
		return true
	})
	if len(same) == 0 {
		return
	}
	if e.beganLately(r.cause.Signal()) >= foldFrom && (!open || len(same) >= foldFrom) {
		e.sayNode(r, same, node)
		return
	}
	for _, x := range same {
		at := x.c.at[x.rule]
		e.begin(onset{
			key: r.key(x.c.name()), target: e.carrierTarget(x.c), cause: r.cause, severity: r.severity, advice: r.advice, evidence: x.ev, at: at,
		})
	}
}

// beganLately counts the carriers on which the signal began within foldWithin.
func (e *Engine) beganLately(signal string) (n int) {
	e.carriers.each(func(_ string, c *carrier) {
		for i, at := range c.since {
			if linkRules[i].cause.Signal() == signal && e.now.Sub(at) <= foldWithin {
				n++
				return
			}
		}
	})
	return n
}

// sayNode says once what began on several carriers. Where it stands for others already they stay named in it.
func (e *Engine) sayNode(r *linkRule, same []rise, node *finding.Open) {
	var named []event.Witness
	if node != nil {
		named = slices.Clone(node.Event.Data.Evidence.Signals)
	}
	first, total := same[0].c.at[same[0].rule], 0.0
	texts := make([]string, 0, len(same))
	for _, x := range same {
		if at := x.c.at[x.rule]; at.Before(first) {
			first = at
		}
		if len(named) < maxNamed {
			named = append(named, x.witness())
		}
		total += *x.ev.Value
		texts = append(texts, x.text())
	}
	ev := event.Evidence{
		Signal: r.metric, Unit: r.unit, Value: num(total), Baseline: "table", WindowS: r.window.Seconds(), Signals: named,
		Raw: cut(fmt.Sprintf("%d at once: %s", len(same), strings.Join(texts, "; ")), maxRaw),
	}
	f := e.finding(onset{
		key: r.key("node"), cause: r.cause, severity: r.severity, advice: r.advice, evidence: ev, at: first, count: len(same),
	})
	e.open.put(f.Key, &finding.Open{Key: f.Key, BootID: e.o.BootID, Seen: e.now, Event: f.Event})
	e.out = append(e.out, f)
}

func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

func (x *rise) witness() event.Witness {
	return event.Witness{Signal: x.c.name(), Onset: x.c.at[x.rule], State: event.StateOpen, Score: 1, Value: x.ev.Value, Expected: x.ev.Expected, Unit: x.ev.Unit}
}

func (x *rise) text() string {
	switch {
	case linkRules[x.rule].mode == linkFewer:
		return x.ev.Raw
	case x.ev.Raw != "":
		return fmt.Sprintf("%s %g (%s)", x.c.name(), *x.ev.Value, x.ev.Raw)
	}
	return fmt.Sprintf("%s %g", x.c.name(), *x.ev.Value)
}

func (e *Engine) carrierTarget(c *carrier) event.Target {
	if c.of != ofGPU {
		return event.Target{PCI: c.pci}
	}
	if g, ok := e.gpus.get(c.id); ok {
		return g.target
	}
	return event.Target{GPU: c.id, PCI: c.pci}
}
