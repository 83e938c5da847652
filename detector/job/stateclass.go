package job

import (
	"errors"
	"math"
	"slices"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/event"
)

// classes walks over what is known of runs beside the store: the judge of them, and what is open about classes.
func (w *walk) classes(c *classes) {
	on := c != nil
	if w.Flag(&on); on != (c != nil) {
		w.Fail("of a gateway that compares other things")
	}
	if !on || w.Failed() {
		return
	}
	judge := ""
	if !w.Reads() {
		judge = string(c.judge.Snapshot())
	}
	if w.Text(&judge, maxSnapshot); w.Reads() && !w.Failed() {
		if err := c.judge.Restore([]byte(judge)); err != nil {
			w.Fail("%v", err)
		}
	}
	var pairs []pair
	for p := range c.slower {
		pairs = append(pairs, p)
	}
	slices.SortFunc(pairs, pair.compare)
	for i := range w.List(len(pairs), maxSlower) {
		var p pair
		s := &slower{}
		if !w.Reads() {
			p = pairs[i]
			s = c.slower[p]
		}
		by := int(p.by)
		w.key(&p.key)
		w.Int(&by, int(class.Driver), int(class.Framework))
		p.by = class.By(by)
		w.Text(&p.against, maxText)
		w.Finite(&s.ratio)
		w.past(&s.seen)
		w.Flag(&s.accepted)
		w.report(s, &s.report)
		if w.Reads() && s.accepted == (s.report != nil) {
			w.Fail("a class that is neither found slow nor accepted as it is")
		}
		if w.Failed() {
			return
		}
		c.slower[p] = s
	}
}

func (w *walk) key(k *class.Key) {
	w.Text(&k.Model, maxText)
	w.Text(&k.GPU, maxText)
	w.Text(&k.Driver, maxText)
	w.Text(&k.Framework, maxText)
	w.Text(&k.Signal, maxText)
	w.Int64(&k.TokensPerStep)
	w.Int64(&k.SequenceLength)
	w.Int64(&k.Ranks)
}

func (w *walk) class(a *attempt) {
	c := &a.class
	for _, p := range []*string{&c.last.Workload, &c.last.GPU, &c.last.Driver, &c.last.Framework} {
		w.Text(p, maxText)
	}
	w.Flag(&c.stale)
	w.Text(&c.run, maxText+len("pod/"))
	w.key(&c.key)
	w.Flag(&c.agreed)
	w.past(&c.since)
	w.Flag(&c.on)
	w.past(&c.compared)
	w.paces(c)
	w.step(&c.closed)
	w.Int(&c.steps, 0, most)
	w.Int(&c.runs, 0, most)
	id := int(c.id)
	w.Flag(&c.judged)
	w.Int(&id, 0, math.MaxInt32)
	c.id = series.ID(id)
	w.Finite(&c.clock)
	w.Int(&c.beyond, 0, most)
	for i := range w.List(len(c.held), classHold+1) {
		if w.Reads() {
			c.held = append(c.held, lesson{})
		}
		w.step(&c.held[i].step)
		w.Finite(&c.held[i].took)
	}
	for i := range w.List(len(c.marks), keptOnsets) {
		if w.Reads() {
			c.marks = append(c.marks, mark{})
		}
		w.Int64(&c.marks[i].clock)
		w.step(&c.marks[i].step)
		w.at(&c.marks[i].at)
	}
	on := c.found != nil
	if w.Flag(&on); on && !w.Failed() {
		if w.Reads() {
			c.found = &against{a: a}
			a.open++
		}
		w.against(c.found)
	}
	if w.Reads() && c.judged && !w.Failed() { // what siblings showed is in the store
		c.ref = w.e.classes.store.Reference(c.key, c.run)
	}
}

func (w *walk) paces(c *classed) {
	for i := range w.List(len(c.open), maxOpen+1) {
		if w.Reads() {
			c.open = append(c.open, &pace{})
		}
		p := c.open[i]
		w.step(&p.step)
		w.at(&p.at)
		w.past(&p.first)
		w.Int(&p.have, 0, most)
		for k := range w.List(len(p.took), maxTook) {
			if w.Reads() {
				p.took = append(p.took, 0)
			}
			if w.Finite(&p.took[k]); w.Reads() && !(p.took[k] > 0 && p.took[k] <= longestStep) {
				w.Fail("a step of %g s", p.took[k])
			}
		}
		if w.Failed() || w.Reads() && i > 0 && p.step <= c.open[i-1].step {
			w.Fail("step %d is out of order", p.step)
			return
		}
	}
}

func (w *walk) against(x *against) {
	w.at(&x.onset)
	w.step(&x.step)
	for _, p := range []*float64{&x.level, &x.value, &x.expected, &x.lower, &x.upper, &x.score, &x.steps, &x.sum, &x.lost} {
		w.Finite(p)
	}
	shape := int(x.shape)
	w.Int(&shape, 0, int(series.Novel))
	x.shape = series.What(shape)
	w.Flag(&x.accepted)
	for i := range w.List(len(x.samples), event.MaxSamples) {
		if w.Reads() {
			x.samples = append(x.samples, event.Sample{})
		}
		w.Finite(&x.samples[i].S)
		w.Finite(&x.samples[i].V)
	}
	w.report(x, &x.report)
}

// number takes the judge's series of the runs that were read, and frees all others.
func (e *Engine) number() error {
	used := make([]bool, e.classes.judge.Len())
	for el := e.recent.Front(); el != nil; el = el.Next() {
		a := el.Value.(*attempt)
		if !a.class.judged {
			continue
		}
		if id := int(a.class.id); id >= len(used) || used[id] {
			return errors.New("two runs share what was learnt of one")
		} else {
			used[id] = true
		}
	}
	for id, u := range used {
		if !u {
			e.classes.free = append(e.classes.free, series.ID(id))
		}
	}
	return nil
}
