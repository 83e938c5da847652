package kernel

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/rules"
)

// subject is what a burst is of.
type subject struct {
	at    Address
	class Kind // SXid, AER and MLX5 lines have addresses of their own devices
	gi    int  // a MIG instance is another tenant's; -1 for the whole device
}

type burst struct {
	first, last time.Duration
	worst       rules.Severity
	cause       int
	action      string
	entries     []*entry
	others      int
	seen        uint64 // events so far
	clears      bool   // one of the entries ends another's condition
}

type entry struct {
	key     entryKey
	out     Report
	dirty   bool
	flushAt time.Duration
	wait    time.Duration
	seen    uint64 // which of the burst's events was its last
}

type entryKey struct {
	kind    Kind
	code    int
	gi, ci  int
	variant uint64 // the NVLink 5 case or the recovery action
}

func over(b *burst, at time.Duration) bool { return at-b.last > Gap || at-b.first > Span }

func (b *burst) find(key entryKey) int {
	for i, en := range b.entries {
		if en.key == key {
			return i
		}
	}
	return -1
}

func subjectOf(e *Event) subject {
	switch e.Kind {
	case SXid, AER, MLX5:
		return subject{e.PCI, e.Kind, -1}
	}
	return subject{e.PCI, Xid, e.GI}
}

func (f *Folder) keyOf(e *Event) entryKey {
	k := entryKey{kind: e.Kind, code: e.Code, gi: e.GI, ci: e.CI}
	switch {
	case e.Unit != nil:
		// Sub-codes are never merged: one unit has fatal and harmless cases. Of
		// the first register only the bits that tell cases apart count.
		k.variant = maphash.Bytes(f.seed, e.Unit) + uint64(e.Word)<<56
		if rule, ok := f.tables.NVLink5(e.Code, string(e.Unit), e.Reg[0], e.Reg[1], 0); ok && e.Regs > 1 {
			k.variant += uint64(rule.Before575.Value)<<32 ^ uint64(rule.ErrorStatus)
		}
	case e.Action != nil:
		k.variant = maphash.Bytes(f.seed, e.Action)
	case e.Case != "":
		k.variant = maphash.String(f.seed, e.Case)
	}
	return k
}

// clone copies what points into the line.
func (e *Event) clone() Event {
	c := *e
	c.Process, c.Action, c.Unit = own(e.Process), own(e.Action), own(e.Unit)
	c.Text = nil // Report.Line has it
	return c
}

// own returns a copy that is valid UTF-8 and nil for nil.
func own(b []byte) []byte {
	if b == nil {
		return nil
	}
	return bytes.ToValidUTF8(slices.Clone(b), []byte("\uFFFD"))
}

func clip(b []byte, n int) string {
	if len(b) > n {
		b = b[:n]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
