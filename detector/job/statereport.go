package job

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

const (
	maxKey    = 512  // bytes of what names a finding
	maxWords  = 2048 // of what a person said
	maxPerson = 256
)

// report is what was said of something that stands, if it was.
func (w *walk) report(of standing, at **report) {
	told := *at != nil
	if w.Flag(&told); !told || w.Failed() {
		return
	}
	if w.Reads() {
		*at = &report{of: of}
	}
	r, text := *at, ""
	if !w.Reads() {
		if b, err := event.Encode(r.event); err == nil {
			text = string(b)
		}
	}
	w.Text(&r.key, maxKey)
	w.Text(&text, event.MaxBytes)
	w.Flag(&r.published)
	for i := range w.List(len(r.acks), maxTold) {
		if w.Reads() {
			r.acks = append(r.acks, "")
		}
		w.Text(&r.acks[i], maxWords)
	}
	w.at(&r.refused)
	if !w.Reads() || w.Failed() {
		return
	}
	e, err := event.Decode([]byte(text))
	if err == nil {
		err = event.MayGateway(e)
	}
	if err != nil {
		w.Fail("what was said: %v", err)
		return
	}
	r.event = e
	w.e.reports[r] = true
}

// statements are what people said: they hold until the bus is heard again.
func (w *walk) statements() {
	e := w.e
	for i := range w.List(len(e.statements), statement.Most) {
		if w.Reads() {
			e.statements = append(e.statements, statement.Statement{})
		}
		s := &e.statements[i]
		verb := string(s.Verb)
		w.Text(&verb, maxPerson)
		s.Verb = statement.Verb(verb)
		for _, p := range []*string{&s.Node, &s.Key, &s.By} {
			w.Text(p, maxPerson)
		}
		w.Text(&s.Reason, maxWords)
		w.at(&s.At)
		if w.at(&s.Until); w.Failed() {
			return
		}
	}
}

// desync walks over what ranks that stand still have told, and over who was named by it.
func (w *walk) desync(a *attempt) {
	d := &a.desync
	if w.Reads() {
		d.init()
	}
	names := slices.Sorted(maps.Keys(d.groups))
	for i := range w.List(len(names), maxAttemptGroups) {
		name := ""
		if !w.Reads() {
			name = names[i]
		}
		w.Text(&name, maxText)
		if w.Reads() && d.groups[name] != nil {
			w.Fail("group %q is held twice", name)
		}
		if w.entered(a, name); w.Failed() {
			return
		}
	}
	ranks := slices.Sorted(maps.Keys(d.open))
	for i := range w.List(len(ranks), maxDesyncs) {
		rank := 0
		if !w.Reads() {
			rank = ranks[i]
		}
		if w.Int(&rank, 0, math.MaxInt); w.Reads() {
			if d.open[rank] != nil || a.members[rank] == nil {
				w.Fail("rank %d is unknown or named twice", rank)
				return
			}
			d.open[rank] = &desynced{a: a}
			a.open++
		}
		f := d.open[rank]
		w.Text(&f.group, maxText)
		w.Int64(&f.most)
		w.step(&f.step)
		w.at(&f.onset)
		if w.report(f, &f.report); w.Reads() && f.report == nil {
			w.Fail("rank %d was named and nothing said", rank)
		}
		if w.Failed() {
			return
		}
	}
}

// entered are the numbers of one group's ranks.
func (w *walk) entered(a *attempt, name string) {
	d := &a.desync
	ranks := slices.Sorted(maps.Keys(d.groups[name]))
	for i := range w.List(len(ranks), len(a.members)) {
		rank := 0
		if !w.Reads() {
			rank = ranks[i]
		}
		if w.Int(&rank, 0, math.MaxInt); w.Reads() {
			if d.groups[name] == nil {
				d.groups[name] = map[int]*entered{}
			}
			if d.groups[name][rank] != nil || a.members[rank] == nil || d.told[rank] >= maxRankGroups {
				w.Fail("rank %d tells too much", rank)
				return
			}
			d.groups[name][rank] = &entered{}
			d.told[rank]++
		}
		x := d.groups[name][rank]
		x.Group = name
		enqueued := int(x.Enqueued)
		w.Int(&enqueued, 0, maxEnqueued)
		x.Enqueued = int64(enqueued)
		w.Text(&x.Op, maxText)
		if w.Int64(&x.step); x.step < -2 {
			w.Fail("step %d", x.step)
		}
		w.past(&x.since)
		if w.past(&x.heard); w.Failed() {
			return
		}
	}
}

// missed takes the time in which the engine was not there out of what ranks told: a number counts again once it is told again.
func (d *desync) missed(now time.Time) {
	for _, ranks := range d.groups {
		for _, x := range ranks {
			x.heard, x.since = now, now.Add(desyncFresh)
		}
	}
}
