package verdict

import (
	"strconv"
	"strings"
	"time"
)

// Kinds of lines that have a code, or a device of their own.
const (
	Xid  = "xid"
	SXid = "sxid"
	aer  = "aer"
	mlx5 = "mlx5"
)

// Word is what the driver itself says about the danger.
type Word uint8

// Words. Most lines say nothing.
const (
	Unsaid Word = iota
	NonFatal
	Fatal
)

// Line is what one source reported, without judgment. What the source did not report is empty.
type Line struct {
	Kind string // the end of the record's event name
	Case string // distinguishes lines of a kind without a code
	Code int
	PCI  string // address without function
	MIG  string // GPU instance, or GPU instance/compute instance
	Word Word
	// Action is the recovery action that the driver changed to, and ActionValue its number, nil if the line has none (Xid 154).
	Action      string
	ActionValue *int
	CausedBy    int // the Xid that the line itself names as its cause
	// Unit and Registers are those of an NVLink 5 line (Xid 144 to 150).
	Unit      string
	Registers []uint32
	Driver    int // major version of the driver; 0 if unknown
	// CodeOnly marks a report of DCGM: it has the code and nothing else of the line.
	CodeOnly bool
	// Fabric marks a line of the fabric manager's log, which repeats what the kernel log has.
	Fabric bool
	// Origin is for the caller. A Report keeps that of the line that it reports.
	Origin any
}

// instance returns the MIG GPU instance and compute instance, -1 for none.
func (l *Line) instance() (gpu, compute int) {
	g, c, _ := strings.Cut(l.MIG, "/")
	return number(g), number(c)
}

func number(s string) int {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return -1
}

// Stamp is where and when a line was written.
type Stamp struct {
	At   time.Duration // on any clock
	Boot string        // a burst is of one boot
	Seq  uint64
	// History marks a line that is not news: it was published before, or it is too old. Published distinguishes the two.
	History, Published bool
}
