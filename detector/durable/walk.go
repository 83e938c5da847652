package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal puts a magic number and a version before a body and a CRC-32C of all of it behind.
func Seal(magic string, version uint32, body []byte) []byte {
	b := make([]byte, 0, len(magic)+4+len(body)+4)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Unseal gives the body of what Seal made, and refuses what is damaged or of another kind or version.
func Unseal(magic string, version uint32, b []byte) ([]byte, error) {
	head := len(magic) + 4
	if len(b) < head+4 || string(b[:len(magic)]) != magic {
		return nil, errors.New("not one of its kind")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("checksum differs")
	}
	if v := binary.LittleEndian.Uint32(body[len(magic):]); v != version {
		return nil, fmt.Errorf("version %d of another build", v)
	}
	return body[head:], nil
}

// Walk goes over a state in one order, either to write it or to read it. Since the same code does both, they cannot disagree. After
// the first error all reads give zero values; the caller looks at Done at the end.
type Walk struct {
	b    []byte
	read bool
	err  error
}

// Writing is a walk that writes.
func Writing() *Walk { return &Walk{} }

// Reading is a walk that reads b.
func Reading(b []byte) *Walk { return &Walk{b: b, read: true} }

// Reads reports whether the walk reads.
func (w *Walk) Reads() bool { return w.read }

// Len is how many bytes were written, or are left to be read.
func (w *Walk) Len() int { return len(w.b) }

// Cut takes back what was written beyond n bytes.
func (w *Walk) Cut(n int) { w.b = w.b[:n] }

// Bytes is what was written.
func (w *Walk) Bytes() []byte { return w.b }

// Fail makes the walk fail; the first error stays.
func (w *Walk) Fail(format string, args ...any) {
	if w.err == nil {
		w.err, w.b = fmt.Errorf(format, args...), nil
	}
}

// Failed reports whether it did.
func (w *Walk) Failed() bool { return w.err != nil }

// Done is the first error; bytes that nobody read are one.
func (w *Walk) Done() error {
	if w.read && w.err == nil && len(w.b) != 0 {
		return errors.New("longer than it says")
	}
	return w.err
}

// Int64 is any whole number.
func (w *Walk) Int64(p *int64) {
	if !w.read {
		w.b = binary.AppendVarint(w.b, *p)
		return
	}
	v, n := binary.Varint(w.b)
	if n <= 0 {
		w.Fail("cut short")
		*p = 0
		return
	}
	*p, w.b = v, w.b[n:]
}

// Int is a whole number from lo to hi.
func (w *Walk) Int(p *int, lo, hi int) {
	v := int64(*p)
	w.Int64(&v)
	if w.read && (v < int64(lo) || v > int64(hi)) {
		w.Fail("%d is not from %d to %d", v, lo, hi)
		v = int64(lo)
	}
	if w.read { // what is written others may read at the same time
		*p = int(v)
	}
}

// List is the length of a list of at most most parts of a byte at least.
func (w *Walk) List(n, most int) int {
	w.Int(&n, 0, most)
	if w.read && n > len(w.b) {
		w.Fail("cut short")
		return 0
	}
	return n
}

// Flag is a truth value.
func (w *Walk) Flag(p *bool) {
	v := 0
	if *p {
		v = 1
	}
	if w.Int(&v, 0, 1); w.read {
		*p = v == 1
	}
}

// Float is any number, and what is none.
func (w *Walk) Float(p *float64) {
	if !w.read {
		w.b = binary.LittleEndian.AppendUint64(w.b, math.Float64bits(*p))
		return
	}
	if len(w.b) < 8 {
		w.Fail("cut short")
		*p = 0
		return
	}
	*p, w.b = math.Float64frombits(binary.LittleEndian.Uint64(w.b)), w.b[8:]
}

// largest bounds numbers whose squares and sums are to stay numbers.
const largest = 1e18

// Finite is a number within 1e18 of zero; what else is to be written is written as 0.
func (w *Walk) Finite(p *float64) {
	v := *p
	if !w.read && !(math.Abs(v) <= largest) {
		v = 0
	}
	w.Float(&v)
	if w.read {
		if !(math.Abs(v) <= largest) {
			w.Fail("%g is no number that can be", v)
			v = 0
		}
		*p = v
	}
}

// Text is at most most bytes.
func (w *Walk) Text(p *string, most int) {
	n := w.List(len(*p), most)
	if !w.read {
		w.b = append(w.b, *p...)
		return
	}
	*p, w.b = string(w.b[:n]), w.b[n:]
}
