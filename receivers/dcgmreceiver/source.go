package dcgmreceiver

import (
	"errors"
	"slices"
	"strconv"
	"time"
)

// Source is a host engine, real or replayed. Its methods but Violations are called by one goroutine, one at a time; each may block
// for as long as the driver does, and nobody relies on its coming back.
type Source interface {
	// Connect makes a connection, after giving up the one there was. Its error names the remedy.
	Connect() error
	// Inventory lists what the engine knows, and which GPUs answer.
	Inventory() (Inventory, error)
	// Watch makes the engine sample these fields, in place of what was watched before, and turns the health watches on. What cannot be
	// watched is left out, and returned with the reason.
	Watch(inv Inventory, plan []Watch) ([]Omission, error)
	// Read returns the newest sample of each field of each GPU that answers, and of its links and instances, and of each switch; live
	// asks the driver and not the samples.
	Read(inv Inventory, fields []uint16, live bool) ([]Value, error)
	// Health returns the open incidents of DCGM's health watches.
	Health() ([]Incident, error)
	// Links returns the state of each NVLink that there is.
	Links() ([]LinkState, error)
	// Topology says how the GPUs that answer reach each other, each pair once.
	Topology(devices []Device) ([]Path, error)
	// Close gives the connection up.
	Close() error
	// Violations delivers policy violations as they happen, for as long as the source lives. It is never closed.
	Violations() <-chan Violation
}

// ErrDisconnected marks an error after which only Connect helps.
var ErrDisconnected = errors.New("the connection to the host engine is gone")

// errForGood marks an error that no retry can mend.
var errForGood = errors.New("not in this build")

// Inventory is what an engine lists.
type Inventory struct {
	Devices   []Device
	Instances []Instance // of GPUs in MIG mode
	Switches  []Switch
}

// answering is the inventory of what can be read.
func (v Inventory) answering() Inventory {
	gone := map[uint]bool{}
	out := Inventory{Switches: v.Switches}
	for _, d := range v.Devices {
		if gone[d.ID] = !d.Answer; d.Answer {
			out.Devices = append(out.Devices, d)
		}
	}
	for _, in := range v.Instances {
		if !gone[in.GPU] {
			out.Instances = append(out.Instances, in)
		}
	}
	return out
}

// same compares who is there and who answers: what comes back has to be watched anew.
func (v Inventory) same(w Inventory) bool {
	return slices.EqualFunc(v.Devices, w.Devices, func(x, y Device) bool { return x.ID == y.ID && x.UUID == y.UUID && x.Answer == y.Answer }) &&
		slices.EqualFunc(v.Instances, w.Instances, func(x, y Instance) bool { return x.ID == y.ID && x.GPU == y.GPU && x.GI == y.GI }) &&
		slices.EqualFunc(v.Switches, w.Switches, func(x, y Switch) bool { return x.ID == y.ID })
}

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

// Instance is a MIG GPU instance.
type Instance struct {
	ID      uint   // the engine's number
	GPU     uint   // the engine's number of its GPU
	GI      uint   // NVML's number of it on its GPU
	Profile string // 1g.10gb
	Compute []Compute
}

// Compute is a compute instance: what a pod is given.
type Compute struct {
	CI   uint   // NVML's number of it in its GPU instance
	UUID string // MIG-...; empty where the engine does not tell
}

// Switch is one NVSwitch.
type Switch struct {
	ID   uint
	UUID string
	PCI  string // 0000:05:00.0
}

// id is the switch's hw.id.
func (s Switch) id() string {
	switch {
	case s.UUID != "":
		return s.UUID
	case s.PCI != "":
		return "nvswitch-" + s.PCI
	}
	return "nvswitch-" + strconv.FormatUint(uint64(s.ID), 10)
}

// LinkState is the state of one NVLink.
type LinkState struct {
	Switch bool   // of a switch; else of a GPU
	ID     uint   // the engine's number of the GPU or switch
	Link   int    // its port
	State  string // up, down, disabled
}

// Path is how two GPUs reach each other.
type Path struct {
	A, B uint
	Kind string // NV18 and the like, else PSB, PIX, PXB, PHB, NODE, SYS, as nvidia-smi topo says it
}

// Omission is a field that is not watched.
type Omission struct {
	Field uint16
	Why   string // with the remedy; empty for a field that the engine does not know
}

// Watch is a set of fields and how often to sample them.
type Watch struct {
	Every  time.Duration
	Fields []uint16
}

// Value is one sample. A blank has neither number.
type Value struct {
	Of    Level // GPULevel, also for what is the node's
	ID    uint  // the engine's number of the GPU, the instance or the switch
	Link  int   // NVLink number, or -1
	Field uint16
	Time  time.Time // when DCGM took it
	Blank bool
	Float bool
	F     float64
	I     int64
}

// Incident is one finding of DCGM's health watches.
type Incident struct {
	Of     Level // GPULevel or SwitchLevel
	ID     uint
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
