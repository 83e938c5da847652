package verdict

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

// Gap of silence ends a burst, as in NVIDIA's own fleet tooling. At Span it ends however chatty it is, so that a fault that never stops is
// reported again.
const (
	Gap  = 3 * time.Minute
	Span = 15 * time.Minute
)

// Bounds of memory. Beyond the first the oldest burst ends; beyond the second only what must not be missed is taken.
const (
	maxBursts  = 256
	maxEntries = 32
	reserve    = 8
)

// subject is what a burst is about.
type subject struct {
	boot, pci string
	class     string // SXid, AER and MLX5 lines have addresses of their own devices
	gi        int    // a MIG instance belongs to another tenant; -1 for the whole device
}

type burst struct {
	first, last time.Duration
	worst       rules.Severity
	cause       int
	action      string
	entries     []*entry
	others      int
	seen        uint64 // lines so far
	clears      bool   // one of the entries ends the condition of another
	codeOnly    bool   // only DCGM reported it so far
}

type entry struct {
	key  entryKey
	out  Report
	seen uint64 // which line of the burst was its last
	// kernel is true once the kernel log had such a line that was published or is news. The fabric manager then only repeats it: it may
	// even do so after the kernel log ended the condition.
	kernel bool
}

// fromKernel notes a line of the kernel log itself.
func (en *entry) fromKernel(l *Line, at Stamp) {
	en.kernel = en.kernel || !l.Fabric && !l.CodeOnly && (!at.History || at.Published)
}

type entryKey struct {
	kind    string
	code    int
	gi, ci  int
	variant uint64 // the NVLink 5 case, the recovery action or the case
}

// stale reports whether a burst is over at a time. A clock that was set back ends it too.
func (b *burst) stale(at time.Duration) bool {
	return at-b.last > Gap || at-b.first > Span || b.last-at > Span
}

func (b *burst) find(key entryKey) *entry {
	for _, en := range b.entries {
		if en.key == key {
			return en
		}
	}
	return nil
}

// undone reports whether something since the entry's last line ended its condition, or brought back the condition that it ended.
func (b *burst) undone(en *entry) bool {
	if !b.clears {
		return false
	}
	for _, o := range b.entries {
		if o.seen > en.seen && o.key.kind == en.key.kind && (o.out.Verdict.Clears == en.key.code || en.out.Verdict.Clears == o.key.code) {
			return true
		}
	}
	return false
}

// cleared reports whether a line after the entry's last one ended its condition.
func (b *burst) cleared(en *entry) bool {
	return b.clears && slices.ContainsFunc(b.entries, func(o *entry) bool {
		return o.seen > en.seen && o.key.kind == en.key.kind && o.out.Verdict.Clears == en.key.code
	})
}

func subjectOf(l *Line, boot string) subject {
	switch l.Kind {
	case SXid, aer, mlx5:
		return subject{boot, l.PCI, l.Kind, -1}
	}
	gi, _ := l.instance()
	return subject{boot, l.PCI, Xid, gi}
}

func (s subject) whole() subject {
	s.gi = -1
	return s
}

func (b *Bursts) keyOf(l *Line) entryKey {
	k := entryKey{kind: l.Kind, code: l.Code}
	k.gi, k.ci = l.instance()
	switch {
	case l.Unit != "":
		// Sub-codes are never merged: one unit has fatal and harmless cases. Of the first register only the bits that distinguish cases count.
		k.variant = maphash.String(b.seed, l.Unit) + uint64(l.Word)<<56
		if rule, ok := nvlink5(b.tables, l); ok {
			k.variant += uint64(rule.Before575.Value)<<32 ^ uint64(rule.ErrorStatus)
		}
	case l.Action != "":
		k.variant = maphash.String(b.seed, l.Action)
	case l.Case != "":
		k.variant = maphash.String(b.seed, l.Case)
	}
	return k
}
