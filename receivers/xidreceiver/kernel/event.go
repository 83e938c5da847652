package kernel

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind says what sort of line an event came from.
type Kind string

// Kinds. All but the first two carry no code.
const (
	Xid     Kind = "xid"
	SXid    Kind = "sxid"
	GPULost Kind = "gpu_lost"
	GPUInit Kind = "gpu_init"
	GSP     Kind = "gsp"
	AER     Kind = "aer"
	MLX5    Kind = "mlx5"
)

// Kinds are all of them, in the order of the documentation.
var Kinds = []Kind{Xid, SXid, GPULost, GPUInit, GSP, AER, MLX5}

// Word is the driver's own word for the danger of an event.
type Word uint8

// Words: most lines say nothing.
const (
	Unsaid Word = iota
	NonFatal
	Fatal
)

// Address is a PCI address without the function, which the driver prints only
// sometimes. It is comparable; the zero value is no address.
type Address struct {
	Domain      uint32
	Bus, Device uint8
	Valid       bool
}

// String gives 0000:1a:00, or nothing for no address.
func (a Address) String() string {
	if !a.Valid {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x", a.Domain, a.Bus, a.Device)
}

// ParseAddress reads 0000:1a:00 with or without a function (".0").
func ParseAddress(s string) (Address, bool) {
	a, rest, ok := address([]byte(s))
	return a, ok && len(rest) == 0
}

// address reads a PCI address at the start of b and returns what follows it.
func address(b []byte) (a Address, rest []byte, ok bool) {
	domain, n := hexRun(b, 8)
	if n < 4 || n >= len(b) || b[n] != ':' {
		return Address{}, nil, false
	}
	b = b[n+1:]
	bus, n := hexRun(b, 2)
	if n != 2 || len(b) < 3 || b[2] != ':' {
		return Address{}, nil, false
	}
	b = b[3:]
	device, n := hexRun(b, 2)
	if n != 2 {
		return Address{}, nil, false
	}
	b = b[2:]
	if len(b) > 1 && b[0] == '.' && b[1] >= '0' && b[1] <= '7' {
		b = b[2:]
	}
	return Address{Domain: domain, Bus: uint8(bus), Device: uint8(device), Valid: true}, b, true
}

// busAddress reads an address without its domain, "18:00.0", which is of domain 0. The function is required: else any two numbers would do.
func busAddress(b []byte) (a Address, rest []byte, ok bool) {
	bus, n := hexRun(b, 2)
	if n != 2 || len(b) < 7 || b[2] != ':' || b[5] != '.' || b[6] < '0' || b[6] > '7' {
		return Address{}, nil, false
	}
	device, n := hexRun(b[3:], 2)
	if n != 2 {
		return Address{}, nil, false
	}
	return Address{Bus: uint8(bus), Device: uint8(device), Valid: true}, b[7:], true
}

func hexRun(b []byte, most int) (v uint32, n int) {
	for n < len(b) && n < most {
		d := unhex(b[n])
		if d < 0 {
			break
		}
		v = v<<4 | uint32(d)
		n++
	}
	return v, n
}

// Event is one line that says that something is wrong (or right again). Numbers
// that a line lacks are -1, bytes that it lacks are nil.
type Event struct {
	Kind Kind
	// Case tells apart the lines of a kind without a code, as rules name them.
	Case string
	Code int
	PCI  Address
	// GI and CI are the MIG GPU instance and compute instance.
	GI, CI  int
	PID     int
	Process []byte
	Word    Word
	// Action is the recovery action that the driver went to, as far as the line has it, and ActionValue its number, -1 if unknown (Xid 154).
	Action      []byte
	ActionValue int
	// CausedBy is the Xid that the line itself names as the cause.
	CausedBy int
	// Unit, Link and Reg are those of an NVLink 5 line (Xid 144 to 150); SXid lines have a Link too.
	Unit []byte
	Link int
	Reg  [2]uint32
	Regs int
	// Text is the line from the driver's tag on.
	Text []byte
}

// MIG gives "gi/ci", or "gi" where the line names no compute instance, or nothing.
func (e *Event) MIG() string {
	switch {
	case e.GI < 0:
		return ""
	case e.CI < 0:
		return strconv.Itoa(e.GI)
	}
	return strconv.Itoa(e.GI) + "/" + strconv.Itoa(e.CI)
}

// Result says what a line was.
type Result uint8

// Results of Parse. A Detail belongs to an event of the same address and code
// and is not counted; Learnt lines told the Parser something; Malformed ones
// begin like an event and cannot be read.
const (
	Nothing Result = iota
	IsEvent
	Detail
	Learnt
	Malformed
)

// Clone copies what points into the line.
func (e *Event) Clone() Event {
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

// Clip returns a line as it is kept: valid UTF-8 of bounded length.
func Clip(line []byte) string { return clip(line, maxLine) }

// AppendDetail adds a line to the details of an event, as far as there is room.
func AppendDetail(to *string, line []byte) {
	room := maxDetail - len(*to)
	if room <= 1 {
		return
	}
	if *to != "" {
		*to += "\n"
		room--
	}
	*to += clip(line, room)
}

func clip(b []byte, n int) string {
	if len(b) > n {
		b = b[:n]
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}
