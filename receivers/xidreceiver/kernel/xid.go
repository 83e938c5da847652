package kernel

import (
	"bytes"

	"github.com/pitcrew/pitcrew/rules"
)

// xid reads "PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=7194, name=python, text",
// the part after "NVRM: Xid (". Forms seen: no "PCI:", a function, no comma after
// the code, nothing after it, a truncated line.
func xid(line, b []byte, e *Event) Result {
	e.reset(Xid, line)
	b, _ = bytes.CutPrefix(b, []byte("PCI:"))
	var ok bool
	if e.PCI, b, ok = address(b); !ok {
		return Malformed
	}
	if r, is := bytes.CutPrefix(b, []byte(" GPU-I:")); is {
		if e.GI, b, ok = integer(r); !ok {
			return Malformed
		}
		if r, is := bytes.CutPrefix(b, []byte(" GPU-CI:")); is {
			if e.CI, b, ok = integer(r); !ok {
				return Malformed
			}
		}
	}
	if b, ok = bytes.CutPrefix(b, []byte("): ")); !ok {
		return Malformed
	}
	if e.Code, b, ok = integer(b); !ok {
		return Malformed
	}
	if len(b) > 0 && wordByte(b[0]) {
		return Malformed
	}
	e.message(bytes.TrimLeft(b, ", "))
	return IsEvent
}

// message reads what follows the code.
func (e *Event) message(b []byte) {
	if r, is := bytes.CutPrefix(b, []byte("pid=")); is {
		value, rest := field(r)
		if n, after, ok := integer(value); ok && len(after) == 0 {
			e.PID = n
		}
		b = rest
	}
	if r, is := bytes.CutPrefix(b, []byte("name=")); is {
		value, rest := field(r)
		if !bytes.Contains(value, []byte("<unknown>")) && len(value) > 0 {
			e.Process = value
		}
		b = rest
	}
	const caused = "caused by previous Xid "
	if i := bytes.LastIndex(b, []byte(caused)); i >= 0 {
		e.CausedBy, _, _ = integer(b[i+len(caused):])
	}
	switch {
	case e.Code == 154:
		e.Action, e.ActionValue = recoveryAction(b)
	case e.Code >= rules.FirstNVLink5 && e.Code <= rules.LastNVLink5:
		e.nvlink5(b)
	}
}

// nvlink5 reads "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 …)".
func (e *Event) nvlink5(b []byte) {
	n, link := 0, false
	for word := range bytes.FieldsSeq(b) {
		switch {
		case n == 0:
			e.Unit = word
		case n <= 2 && e.Word == Unsaid && string(word) == "Fatal":
			e.Word, e.Unit = Fatal, unitBefore(b, word)
		case n <= 2 && e.Word == Unsaid && (string(word) == "Nonfatal" || string(word) == "Non-fatal"):
			e.Word, e.Unit = NonFatal, unitBefore(b, word)
		case link:
			if v, _, ok := integer(word); ok {
				e.Link = v
			}
			link = false
		case string(word) == "Link":
			link = true
		case e.Regs < len(e.Reg):
			word, _ = bytes.CutPrefix(word, []byte("("))
			if hex, is := bytes.CutPrefix(word, []byte("0x")); is {
				if v, digits := hexRun(hex, 8); digits > 0 {
					e.Reg[e.Regs] = v
					e.Regs++
				}
			}
		}
		if n++; n > 16 {
			return
		}
	}
}

// unitBefore is what precedes the driver's word for the danger: a unit has a space in its name, "MSE Degraded".
func unitBefore(b, word []byte) []byte {
	before, _, _ := bytes.Cut(b, word)
	return bytes.TrimSpace(before)
}

// sxid reads "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 text".
// "Data {…}" and "Severity …" lines repeat an event's code and belong to it.
func sxid(line []byte, e *Event) Result {
	i := bytes.IndexByte(line, ':')
	if i < 0 || i > 24 {
		return Nothing
	}
	b, ok := bytes.CutPrefix(line[i+1:], []byte(" SXid"))
	if !ok {
		return Nothing
	}
	e.reset(SXid, line)
	if b, ok = bytes.CutPrefix(b, []byte(" (")); !ok {
		return Malformed
	}
	b, _ = bytes.CutPrefix(b, []byte("PCI:"))
	if e.PCI, b, ok = address(b); !ok {
		return Malformed
	}
	if b, ok = bytes.CutPrefix(b, []byte("): ")); !ok {
		return Malformed
	}
	if e.Code, b, ok = integer(b); !ok {
		return Malformed
	}
	if len(b) > 0 && wordByte(b[0]) {
		return Malformed
	}
	b = bytes.TrimLeft(b, ", ")
	if r, is := bytes.CutPrefix(b, []byte("Non-fatal")); is {
		e.Word, b = NonFatal, r
	} else if r, is := bytes.CutPrefix(b, []byte("Fatal")); is {
		e.Word, b = Fatal, r
	} else if bytes.HasPrefix(b, []byte("Data {")) || bytes.HasPrefix(b, []byte("Severity ")) {
		return Detail
	}
	if r, is := bytes.CutPrefix(bytes.TrimLeft(b, ", "), []byte("Link ")); is {
		if v, _, ok := integer(r); ok {
			e.Link = v
		}
	}
	return IsEvent
}

// field returns the value up to a comma and what follows, without the spaces.
func field(b []byte) (value, rest []byte) {
	for i, c := range b {
		// A comma inside a process name is not followed by a space.
		if c == ',' && (i+1 == len(b) || b[i+1] == ' ') {
			return b[:i], bytes.TrimLeft(b[i+1:], " ")
		}
	}
	return b, nil
}

// wordByte reports whether a code that c follows at once is no number.
func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= 0x80
}

// integer reads up to seven decimal digits.
func integer(b []byte) (n int, rest []byte, ok bool) {
	i := 0
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		if i == 7 {
			return 0, nil, false
		}
		n = n*10 + int(b[i]-'0')
		i++
	}
	return n, b[i:], i > 0
}

// recoveryAction reads "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": the words after the last "to", and the value
// before them, -1 if there is none. The action that the driver comes from is never taken for the one it went to, so a line that was cut off
// before that has no words. A line without "to" has its words in the last brackets.
func recoveryAction(b []byte) (words []byte, value int) {
	value = -1
	if _, after, ok := bytes.Cut(b, []byte("changed from ")); ok {
		i := bytes.LastIndex(after, []byte(" to "))
		if i < 0 {
			return nil, value
		}
		b = after[i+len(" to "):]
	}
	if hex, ok := bytes.CutPrefix(b, []byte("0x")); ok {
		if v, n := hexRun(hex, 7); n > 0 && n < len(hex) { // of digits at the very end, more may have been cut off
			value = int(v)
		}
	}
	start := bytes.LastIndexByte(b, '(')
	if start < 0 {
		return nil, value
	}
	words = b[start+1:]
	if end := bytes.IndexByte(words, ')'); end >= 0 {
		words = words[:end]
	}
	if len(words) == 0 {
		return nil, value
	}
	return words, value
}
