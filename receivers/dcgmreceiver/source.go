package dcgmreceiver

import (
	"errors"
	"time"
)

// Source is a host engine, real or replayed. Its methods but Violations are called by one goroutine, one at a time; each may block
// for as long as the driver does, and nobody relies on its coming back.
type Source interface {
	// Connect makes a connection, after giving up the one there was. Its error names the remedy.
	Connect() error
	// Inventory lists the GPUs the engine knows, and which of them answer.
	Inventory() ([]Device, error)
	// Watch makes the engine sample these fields of these GPUs, in place of what was watched before, and turns the health watches
	// on. Fields the engine does not know are left out, and returned.
	Watch(devices []Device, plan []Watch) (unknown []uint16, err error)
	// Read returns the newest sample of each field of each GPU and link; live asks the driver and not the samples.
	Read(devices []Device, fields []uint16, live bool) ([]Value, error)
	// Health returns the open incidents of DCGM's health watches.
	Health() ([]Incident, error)
	// Close gives the connection up.
	Close() error
	// Violations delivers policy violations as they happen, for as long as the source lives. It is never closed.
	Violations() <-chan Violation
}

// ErrDisconnected marks an error after which only Connect helps.
var ErrDisconnected = errors.New("the connection to the host engine is gone")

// errForGood marks an error that no retry can mend.
var errForGood = errors.New("not in this build")

// Device is one GPU.
type Device struct {
	ID     uint   // the engine's number; may mean another card after the engine restarted
	UUID   string // hw.id; empty when the engine no longer knows it
	PCI    string // as DCGM spells it: 00000000:1A:00.0
	Model  string
	Serial string
	Driver string
	Answer bool // supported and not lost
}

// Watch is a set of fields and how often to sample them.
type Watch struct {
	Every  time.Duration
	Fields []uint16
}

// Value is one sample. A blank has neither number.
type Value struct {
	GPU   uint
	Link  int // NVLink number, or -1
	Field uint16
	Time  time.Time // when DCGM took it
	Blank bool
	Float bool
	F     float64
	I     int64
}

// Incident is one finding of DCGM's health watches.
type Incident struct {
	GPU    uint
	System string // pcie, nvlink, mem, ...
	Fail   bool   // else a warning
	Code   uint
	Text   string
}

// Violation is one call of a policy's callback.
type Violation struct {
	GPU    uint
	Policy string // as in the configuration: xid, dbe, ...
	Code   int64  // the XID, or the number the condition carries: errors, replays, pages, degrees, watts
	Time   time.Time
}

// Policies are the conditions that can be listened to.
var Policies = []string{"xid", "dbe", "pcie", "pages", "thermal", "power", "nvlink"}
