package verdict

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

// Outcome is what a line is to its burst.
type Outcome uint8

// Outcomes. New is an occurrence: the first of its kind in the burst, or one that came back. A Repeat only counts. Dropped lines do not fit
// into the burst, which is full of lines at least as bad.
const (
	Repeat Outcome = iota
	New
	Dropped
)

// Report is what is known about the lines of one kind in a burst.
type Report struct {
	Line    Line // of the occurrence
	Verdict Verdict
	Stamp   Stamp // of the occurrence
	// Echo marks a line that follows from another of its burst. An echo is never worse than what came before it.
	Echo bool
	// Cause is the first cause of the burst; zero for the cause itself.
	Cause Code
	// Count is how many lines of the burst are alike, so far.
	Count int
}

// Code names a line: its kind and, for Xid and SXid, its code.
type Code struct {
	Kind string
	Code int
}

// Burst is a burst that is over.
type Burst struct {
	// Reports holds the last report of each kind of line, in order of appearance. Cause is the index of the one that explains the rest: the
	// first that is a cause by the tables and more than information, else the first.
	Reports     []Report
	Cause       int
	Action      string // the driver's last recovery action
	First, Last time.Duration
	Others      int // lines that did not fit
}

// Bursts groups lines: one burst for each GPU, switch or port.
type Bursts struct {
	tables *rules.Tables
	ended  func(*Burst)
	open   map[subject]*burst
	next   time.Duration // a burst may be over from then on
	seed   maphash.Seed
}

// NewBursts makes an empty one. ended, if not nil, is called with each burst that is over; the pointer is good for the call only.
func NewBursts(t *rules.Tables, ended func(*Burst)) *Bursts {
	return &Bursts{tables: t, ended: ended, open: map[subject]*burst{}, seed: maphash.MakeSeed()}
}

// Add judges n lines that are alike, of which l at the stamp is the first. The report is good until the next call.
func (b *Bursts) Add(l *Line, n int, at Stamp) (Report, Outcome) {
	v := Judge(b.tables, l)
	b.sweep(at.At)
	if at.History && b.belongsToThePast(l, at) {
		return Report{Line: *l, Verdict: v, Stamp: at, Count: n}, New
	}
	who, of := b.burstOf(l, at)
	of.last = max(of.last, at.At)
	of.seen++
	changed := false
	if l.Action != "" && l.Action != of.action {
		of.action, changed = l.Action, true
	}
	key := b.keyOf(l)
	en := of.find(key)
	if en == nil {
		return b.first(who, of, key, Report{Line: *l, Verdict: v, Stamp: at, Count: n})
	}
	worse := !l.CodeOnly && v.Severity.Worse(en.out.Verdict.Severity) // the driver's word is on the line: one link's error is fatal, another's is not
	if l.Fabric && en.kernel && !worse {
		return Report{Line: *l, Verdict: v, Stamp: at, Echo: true, Cause: Code{l.Kind, l.Code}, Count: n}, Repeat
	}
	en.fromKernel(l, at)
	en.out.Count += n
	changed = changed || worse || of.undone(en) || en.out.Stamp.History && !en.out.Stamp.Published && !at.History
	en.seen = of.seen
	if !changed {
		return en.out, Repeat
	}
	if v.Severity.Worse(of.worst) {
		of.worst, en.out.Echo, en.out.Cause = v.Severity, false, Code{}
	}
	en.out.Line, en.out.Verdict, en.out.Stamp = *l, v, at
	return en.out, New
}

// belongsToThePast reports whether an old line is read again while its device has a burst of now.
func (b *Bursts) belongsToThePast(l *Line, at Stamp) bool {
	of := b.open[subjectOf(l, at.Boot)]
	return of != nil && of.last-at.At > Span
}

// burstOf returns the burst of the line's device, a new one if there is none or it is over. What befalls the whole GPU befalls its instances.
func (b *Bursts) burstOf(l *Line, at Stamp) (subject, *burst) {
	who := subjectOf(l, at.Boot)
	if of := b.open[who.whole()]; of != nil && !of.stale(at.At) {
		return who.whole(), of
	}
	of := b.open[who]
	if of != nil && of.stale(at.At) {
		b.end(who, of)
		of = nil
	}
	if of == nil {
		of = b.begin(who, l, at.At)
	}
	return who, of
}

// first takes a line that its burst did not have.
func (b *Bursts) first(who subject, of *burst, key entryKey, r Report) (Report, Outcome) {
	v := &r.Verdict
	worse := v.Severity.Worse(of.worst)
	room := maxEntries
	if worse || v.Role == rules.Verdict {
		room += reserve
	}
	if len(of.entries) >= room && v.Clears == 0 { // the tables bound what clears
		of.others++
		return r, Dropped
	}
	// What DCGM reported explains no line, and a cause that was cleared explains nothing that came later.
	alone := len(of.entries) == 0 || of.codeOnly && !r.Line.CodeOnly || of.cleared(of.entries[of.cause])
	switch {
	case alone:
		of.cause, of.codeOnly = len(of.entries), r.Line.CodeOnly
		if v.Role == rules.Echo && r.Line.CausedBy > 0 { // the line names a cause that was not seen
			r.Echo, r.Cause = true, Code{Xid, r.Line.CausedBy}
		}
	case v.explains() && !of.entries[of.cause].out.Verdict.explains():
		of.cause = len(of.entries)
	default:
		c := &of.entries[of.cause].out.Line
		r.Cause = Code{c.Kind, c.Code}
		r.Echo = !worse && v.Clears == 0
	}
	r.Echo = r.Echo || r.Line.CodeOnly && v.codeAloneProvesNothing()
	of.clears = of.clears || v.Clears != 0
	if worse {
		of.worst = v.Severity
	}
	en := &entry{key: key, out: r, seen: of.seen}
	en.fromKernel(&r.Line, r.Stamp)
	of.entries = append(of.entries, en)
	b.wake(of)
	if v.Clears == recoveryXid { // the driver reports that all is well: what comes next is on its own
		b.end(who, of)
	}
	return r, New
}

// Latest returns the report of the line's code in its current burst, nil if there is none.
func (b *Bursts) Latest(l *Line, at Stamp) *Report {
	of := b.open[subjectOf(l, at.Boot)]
	if of == nil || of.stale(at.At) {
		return nil
	}
	for _, en := range of.entries {
		if en.key.kind == l.Kind && en.key.code == l.Code {
			return &en.out
		}
	}
	return nil
}

// Flush ends all bursts, in order of their beginning.
func (b *Bursts) Flush() {
	b.endThose(func(*burst) bool { return true })
	b.next = 0
}

// Len is the number of open bursts.
func (b *Bursts) Len() int { return len(b.open) }

// sweep ends the bursts that have been silent for too long.
func (b *Bursts) sweep(now time.Duration) {
	if b.next == 0 || now < b.next {
		return
	}
	b.next = 0
	b.endThose(func(of *burst) bool { return now-of.last > Gap })
	for _, of := range b.open {
		b.wake(of)
	}
}

func (b *Bursts) endThose(over func(*burst) bool) {
	whos := slices.DeleteFunc(slices.Collect(maps.Keys(b.open)), func(s subject) bool { return !over(b.open[s]) })
	slices.SortFunc(whos, func(x, y subject) int {
		p, q := b.open[x], b.open[y]
		return cmp.Or(cmp.Compare(p.first, q.first), cmp.Compare(p.entries[0].out.Stamp.Seq, q.entries[0].out.Stamp.Seq))
	})
	for _, who := range whos {
		b.end(who, b.open[who])
	}
}

func (b *Bursts) wake(of *burst) {
	if at := max(of.last+Gap+1, 1); b.next == 0 || at < b.next {
		b.next = at
	}
}

func (b *Bursts) begin(who subject, l *Line, at time.Duration) *burst {
	if len(b.open) >= maxBursts {
		oldest, last := subject{}, time.Duration(1<<63-1)
		for who, of := range b.open {
			if of.last < last {
				oldest, last = who, of.last
			}
		}
		b.end(oldest, b.open[oldest])
	}
	of := &burst{first: at, last: at, codeOnly: l.CodeOnly}
	b.open[who] = of
	return of
}

func (b *Bursts) end(who subject, of *burst) {
	delete(b.open, who)
	if b.ended == nil {
		return
	}
	out := Burst{Cause: of.cause, Action: of.action, First: of.first, Last: of.last, Others: of.others}
	for _, en := range of.entries {
		out.Reports = append(out.Reports, en.out)
	}
	b.ended(&out)
}
