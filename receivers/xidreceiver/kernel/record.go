package kernel

import (
	"bytes"
	"iter"
)

// Record is one record of /dev/kmsg: "prio,seq,usec,flags[,more];text".
type Record struct {
	// Prio is facility*8 + level. What the kernel itself says has facility 0.
	Prio uint64
	// Seq counts records since boot; a gap means that records were lost.
	Seq uint64
	// Usec is microseconds since boot on the kernel's monotonic clock.
	Usec uint64
	// Text is the message, still escaped, without continuation lines.
	Text []byte
}

// Kernel says whether the kernel itself wrote the record: what a process writes to /dev/kmsg has another facility, even where it
// asks for 0 (devkmsg_write in kernel/printk/printk.c).
func (r *Record) Kernel() bool { return r.Prio>>3 == 0 }

// ParseRecord reads a record. Continuation lines (" KEY=value") after the first
// newline are left out. ok is false for anything that is not a record.
func ParseRecord(b []byte) (r Record, ok bool) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i]
	}
	var rest []byte
	if r.Prio, rest, ok = number(b, ','); !ok {
		return Record{}, false
	}
	if r.Seq, rest, ok = number(rest, ','); !ok {
		return Record{}, false
	}
	// Very old kernels end the head after the time; all since 3.5 have flags.
	usec := rest
	if r.Usec, rest, ok = number(usec, ','); !ok {
		if r.Usec, r.Text, ok = number(usec, ';'); ok {
			return r, true
		}
		return Record{}, false
	}
	semi := bytes.IndexByte(rest, ';')
	if semi < 0 || semi > 256 {
		return Record{}, false
	}
	r.Text = rest[semi+1:]
	return r, true
}

// Lines yields the lines of a record's unescaped text that can be the driver's:
// the first, and those after it where the first is the driver's own beginning of
// a lost GPU. Any other line after the first may be a name that a user chose,
// with a newline in it: the file of a segfault, say.
func Lines(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		line, rest, more := bytes.Cut(text, []byte("\n"))
		if !yield(line) || !more || !beginsLoss(skipPrinted(line)) {
			return
		}
		for more {
			line, rest, more = bytes.Cut(rest, []byte("\n"))
			if !yield(line) {
				return
			}
		}
	}
}

// beginsLoss tells "NVRM: The NVIDIA GPU <address>", longer than a process's name can be.
func beginsLoss(line []byte) bool {
	r, ok := bytes.CutPrefix(line, []byte("NVRM: The NVIDIA GPU "))
	if ok {
		_, _, ok = address(r)
	}
	return ok
}

// MaxComm is how many bytes of a process's name the kernel keeps.
const MaxComm = 15

// ofProcess reports whether a line begins "name[pid]", as the kernel's lines
// about a process do. The name is the process's own choice.
func ofProcess(line []byte) bool {
	open := bytes.IndexByte(line[:min(len(line), MaxComm+1)], '[')
	if open < 0 {
		return false
	}
	_, _, ok := number(line[open+1:], ']')
	return ok
}

// number reads decimal digits up to the end byte, and returns what follows it.
func number(b []byte, end byte) (n uint64, rest []byte, ok bool) {
	for i, c := range b {
		switch {
		case c == end:
			return n, b[i+1:], i > 0
		case c < '0' || c > '9' || i == 19: // 19 digits fit a uint64
			return 0, nil, false
		}
		n = n*10 + uint64(c-'0')
	}
	return 0, nil, false
}

// Unescape undoes the \xNN that /dev/kmsg puts in place of unprintable bytes and
// the backslash. It returns text itself where there is nothing to undo, else
// dst with the result appended. A stray backslash stays.
func Unescape(dst, text []byte) []byte {
	i := bytes.IndexByte(text, '\\')
	if i < 0 {
		return text
	}
	dst = append(dst, text[:i]...)
	for ; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) && text[i+1] == 'x' {
			hi, lo := unhex(text[i+2]), unhex(text[i+3])
			if hi >= 0 && lo >= 0 {
				dst = append(dst, byte(hi<<4|lo))
				i += 3
				continue
			}
		}
		dst = append(dst, text[i])
	}
	return dst
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
