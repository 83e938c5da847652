package kernel

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

// Limits of a Folder. A burst ends after Gap of silence, as NVIDIA's own fleet
// tooling has it, and at Span however chatty it is, so that a fault that never
// stops is said again. Beyond the other two the oldest goes first.
const (
	Gap        = 3 * time.Minute
	Span       = 15 * time.Minute
	settle     = time.Second
	maxBursts  = 256
	maxEntries = 32
	reserve    = 8 // entries beyond them, for what must not be missed
	maxDetail  = 512
	maxLine    = 4096
)

// Stamp says where and when a line stood.
type Stamp struct {
	// At is time since boot, or on any clock that does not go back.
	At  time.Duration
	Seq uint64
	// History is true for a line that is no news: it was published before, or
	// is older than what counts as news. Seen tells the two apart.
	History, Seen bool
}

// Report is an event as it leaves the folder; it shares no memory with the line.
type Report struct {
	Event   Event
	Verdict Verdict
	Stamp   Stamp
	// Echo is true for an event that follows from another of its burst. An echo
	// is never worse than what was reported before it: what is worse is said.
	Echo bool
	// Cause is the first event of the burst; zero for that one itself.
	Cause Code
	// Count is how often the event was seen in its burst so far. A report above 1
	// renews an earlier one where it has its Stamp; else the event came back.
	Count int
	// Detail holds the lines that belong to the event (SXid Severity and Data).
	Detail string
	// Line is the line of the first occurrence.
	Line string
}

// Code names an event: its kind and, for Xid and SXid, its code.
type Code struct {
	Kind Kind
	Code int
}

// Burst is what a burst came to, given when it ends.
type Burst struct {
	// Reports holds the last report of each distinct event, in order of
	// appearance. Cause is the index of the one that explains the rest: the
	// first that is a cause by the tables and more than information, else the first.
	Reports []Report
	Cause   int
	// Action is the driver's last recovery action, "" when it gave none.
	Action      string
	First, Last time.Duration
	// Others counts events beyond what a burst can hold.
	Others int
}

// Folder folds events into bursts, one per GPU, switch or port. Memory is
// bounded. It is driven by the times on the lines and by Sweep; it has no clock.
type Folder struct {
	tables *rules.Tables
	report func(*Report)
	ended  func(*Burst)
	bursts map[subject]*burst
	next   time.Duration // the first time at which Sweep has work; 0 for none
	seed   maphash.Seed
}

// NewFolder returns a folder that calls report for each report as it comes up,
// and ended (may be nil) for each burst that is over. The pointers are good for
// the call only.
func NewFolder(t *rules.Tables, report func(*Report), ended func(*Burst)) *Folder {
	return &Folder{tables: t, report: report, ended: ended, bursts: make(map[subject]*burst), seed: maphash.MakeSeed()}
}

// Next returns the time at which Sweep must be called, if any.
func (f *Folder) Next() (at time.Duration, ok bool) { return f.next, f.next > 0 }

// Add takes an event. The first of its kind in a burst is reported within this
// call, a repeat only counts and is reported by a later Sweep.
func (f *Folder) Add(e *Event, v Verdict, at Stamp) {
	if f.next > 0 && at.At >= f.next {
		f.Sweep(at.At)
	}
	who, b := f.open(e, at.At)
	b.last = max(b.last, at.At)
	b.seen++
	if v.Clears != 0 {
		f.settle(b, e.Kind, v.Clears)
	}
	changed := false
	if e.Action != nil && string(e.Action) != b.action {
		b.action, changed = string(e.Action), true
	}
	key := f.keyOf(e)
	n := b.find(key)
	if n < 0 {
		f.first(who, b, key, e, v, at)
		return
	}
	en := b.entries[n]
	en.out.Count++
	changed = changed || b.undone(en)
	en.seen = b.seen
	switch {
	case en.out.Stamp.History && !en.out.Stamp.Seen && !at.History:
		// It was too old to be news, and goes on: now it is news.
		en.out.Stamp = at
		f.send(en)
	case changed: // the driver went back to an earlier action, or the condition came back or ended again: the last word counts
		en.out.Stamp = at
		f.send(en)
	default:
		f.touch(en, at.At)
	}
}

// open returns the event's burst, a new one where there is none or it is over.
// What befalls the whole GPU befalls its instances.
func (f *Folder) open(e *Event, at time.Duration) (subject, *burst) {
	who := subjectOf(e)
	if b := f.bursts[subject{who.at, who.class, -1}]; b != nil && !over(b, at) {
		return subject{who.at, who.class, -1}, b
	}
	b := f.bursts[who]
	if b != nil && over(b, at) {
		f.end(who, b)
		b = nil
	}
	if b == nil {
		b = f.begin(who, at)
	}
	return who, b
}

// first reports an event that its burst has not had.
func (f *Folder) first(who subject, b *burst, key entryKey, e *Event, v Verdict, at Stamp) {
	worse := v.Severity.Worse(b.worst)
	room := maxEntries
	if worse || v.Role == rules.Verdict || v.Clears != 0 {
		room += reserve
	}
	if len(b.entries) >= room {
		b.others++
		return
	}
	b.clears = b.clears || v.Clears != 0
	en := &entry{key: key, wait: settle, seen: b.seen}
	en.out = Report{Event: e.clone(), Verdict: v, Stamp: at, Count: 1, Line: clip(e.Text, maxLine)}
	switch {
	case len(b.entries) == 0:
		if v.Role == rules.Echo && e.CausedBy > 0 { // its line names a cause that we did not see
			en.out.Echo, en.out.Cause = true, Code{Xid, e.CausedBy}
		}
	case v.explains() && !b.entries[b.cause].out.Verdict.explains():
		b.cause = len(b.entries)
	default:
		c := &b.entries[b.cause].out.Event
		en.out.Cause = Code{c.Kind, c.Code}
		en.out.Echo = !worse && v.Clears == 0
	}
	if worse {
		b.worst = v.Severity
	}
	b.entries = append(b.entries, en)
	f.send(en)
	f.wake(b.last + Gap)
	if v.Clears == recoveryXid {
		// The driver says that all is well: what comes next stands for itself.
		f.end(who, b)
	}
}

// explains reports whether an event can be the cause of others.
func (v *Verdict) explains() bool { return v.Role == rules.Cause && v.Severity.Worse(rules.Info) }

// AddDetail attaches a line that repeats an event's code. It opens no burst.
func (f *Folder) AddDetail(e *Event, at Stamp) {
	b := f.bursts[subjectOf(e)]
	if b == nil || over(b, at.At) {
		return
	}
	for _, en := range b.entries {
		if en.key.kind == e.Kind && en.key.code == e.Code {
			if room := maxDetail - len(en.out.Detail); room > 1 {
				if en.out.Detail != "" {
					en.out.Detail += "\n"
					room--
				}
				en.out.Detail += clip(e.Text, room)
				f.touch(en, at.At)
			}
			return
		}
	}
}

// Sweep reports what changed since its last report and ends bursts that are over.
func (f *Folder) Sweep(now time.Duration) {
	f.next = 0
	for who, b := range f.bursts {
		if now-b.last > Gap {
			f.end(who, b)
			continue
		}
		for _, en := range b.entries {
			if en.dirty && now >= en.flushAt {
				en.wait *= 2
				f.send(en)
			} else if en.dirty {
				f.wake(en.flushAt)
			}
		}
		f.wake(b.last + Gap + 1)
	}
}

// Flush ends all bursts, in order of their beginning.
func (f *Folder) Flush() {
	whos := make([]subject, 0, len(f.bursts))
	for who := range f.bursts {
		whos = append(whos, who)
	}
	slices.SortFunc(whos, func(a, b subject) int {
		x, y := f.bursts[a], f.bursts[b]
		if d := int(x.first - y.first); d != 0 {
			return d
		}
		return int(x.entries[0].out.Stamp.Seq) - int(y.entries[0].out.Stamp.Seq)
	})
	for _, who := range whos {
		f.end(who, f.bursts[who])
	}
	f.next = 0
}

// Forget drops all bursts without a word: the log they came from is gone.
func (f *Folder) Forget() {
	clear(f.bursts)
	f.next = 0
}

// Len is the number of open bursts.
func (f *Folder) Len() int { return len(f.bursts) }

func (f *Folder) begin(who subject, at time.Duration) *burst {
	if len(f.bursts) >= maxBursts {
		var oldest subject
		last := time.Duration(1<<63 - 1)
		for who, b := range f.bursts {
			if b.last < last {
				oldest, last = who, b.last
			}
		}
		f.end(oldest, f.bursts[oldest])
	}
	b := &burst{first: at, last: at}
	f.bursts[who] = b
	return b
}

func (f *Folder) end(who subject, b *burst) {
	delete(f.bursts, who)
	for _, en := range b.entries {
		if en.dirty {
			f.send(en)
		}
	}
	if f.ended == nil {
		return
	}
	out := Burst{Cause: b.cause, Action: b.action, First: b.first, Last: b.last, Others: b.others}
	for _, en := range b.entries {
		out.Reports = append(out.Reports, en.out)
	}
	f.ended(&out)
}

func (f *Folder) send(en *entry) {
	en.dirty = false
	f.report(&en.out)
}

// touch marks an entry as changed; the wait for its next report doubles each time.
func (f *Folder) touch(en *entry, at time.Duration) {
	if en.dirty {
		return
	}
	en.dirty = true
	en.flushAt = at + en.wait
	f.wake(en.flushAt)
}

func (f *Folder) wake(at time.Duration) {
	if f.next == 0 || at < f.next {
		f.next = max(at, 1)
	}
}
