package dcgmreceiver

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// Replay is the in-memory Source: a node as a recording has it, which a program may change while it is read. Its methods may be
// called by any goroutine.
type Replay struct {
	mu         sync.Mutex
	inv        Inventory
	values     map[key]Value
	incidents  []Incident
	err        error
	connectErr error
	hold       map[string]chan struct{}
	calls      map[string]int
	violations chan Violation
	now        func() time.Time
}

type key struct {
	of    Level
	id    uint
	link  int
	field uint16
}

// recording is the file format of mode replay.
type recording struct {
	Inventory
	Values []struct {
		GPU   uint     `json:"gpu"`
		Link  *int     `json:"link"`
		Field uint16   `json:"field"`
		Int   *int64   `json:"int"`
		Float *float64 `json:"float"`
	} `json:"values"`
}

// NewReplay returns a source of these GPUs, with no values yet.
func NewReplay(devices ...Device) *Replay {
	return &Replay{
		inv: Inventory{Devices: devices}, values: map[key]Value{}, hold: map[string]chan struct{}{}, calls: map[string]int{},
		violations: make(chan Violation, 16), now: time.Now,
	}
}

// LoadReplay reads a recording: {"devices":[{"ID","UUID","PCI","Model","Answer"}],"values":[{"gpu","field","int" or "float","link"}]};
// a value with no number is a blank.
func LoadReplay(path string) (*Replay, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	var rec recording
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, fmt.Errorf("replay %s: %w", path, err)
	}
	r := NewReplay()
	r.inv = rec.Inventory
	for _, v := range rec.Values {
		k := key{GPULevel, v.GPU, -1, v.Field}
		if v.Link != nil {
			k.of, k.link = LinkLevel, *v.Link
		}
		val := Value{Blank: v.Int == nil && v.Float == nil}
		if v.Int != nil {
			val.I = *v.Int
		}
		if v.Float != nil {
			val.Float, val.F = true, *v.Float
		}
		r.values[k] = val
	}
	return r, nil
}

// Set gives a field of a GPU an integer value.
func (r *Replay) Set(gpu uint, field uint16, v int64) {
	r.put(key{GPULevel, gpu, -1, field}, Value{I: v})
}

// SetFloat gives a field of a GPU a value with a fraction.
func (r *Replay) SetFloat(gpu uint, field uint16, v float64) {
	r.put(key{GPULevel, gpu, -1, field}, Value{Float: true, F: v})
}

// SetBlank makes a field of a GPU unknown.
func (r *Replay) SetBlank(gpu uint, field uint16) {
	r.put(key{GPULevel, gpu, -1, field}, Value{Blank: true})
}

// SetLink gives a field of one NVLink a value.
func (r *Replay) SetLink(gpu uint, link int, field uint16, v int64) {
	r.put(key{LinkLevel, gpu, link, field}, Value{I: v})
}

func (r *Replay) put(k key, v Value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values[k] = v
}

// SetDevices replaces what the inventory answers.
func (r *Replay) SetDevices(d ...Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inv.Devices = d
}

// SetIncidents replaces what the health watches answer.
func (r *Replay) SetIncidents(in ...Incident) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.incidents = in
}

// SetErrors makes each call answer err, and each Connect connectErr; nil for none.
func (r *Replay) SetErrors(err, connectErr error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.connectErr = err, connectErr
}

// Hold makes calls of a method ("Read") block until release is called.
func (r *Replay) Hold(method string) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ch := make(chan struct{})
	r.hold[method] = ch
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.hold[method] == ch {
			delete(r.hold, method)
		}
		close(ch)
	})
}

// Calls is how often a method was entered.
func (r *Replay) Calls(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[method]
}

// Violate delivers a violation.
func (r *Replay) Violate(v Violation) { r.violations <- v }

func (r *Replay) enter(method string) error {
	r.mu.Lock()
	r.calls[method]++
	ch := r.hold[method]
	r.mu.Unlock()
	if ch != nil {
		<-ch
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if method == "Connect" && r.connectErr != nil {
		return r.connectErr
	}
	return r.err
}

// Connect implements Source.
func (r *Replay) Connect() error { return r.enter("Connect") }

// Close implements Source.
func (r *Replay) Close() error { return nil }

// Violations implements Source.
func (r *Replay) Violations() <-chan Violation { return r.violations }

// answer is what the engine says to a call of a method, once it may answer.
func answer[T any](r *Replay, method string, say func() T) (T, error) {
	if err := r.enter(method); err != nil {
		var none T
		return none, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return say(), nil
}

// Inventory implements Source.
func (r *Replay) Inventory() (Inventory, error) {
	return answer(r, "Inventory", func() Inventory {
		return Inventory{slices.Clone(r.inv.Devices), slices.Clone(r.inv.Instances), slices.Clone(r.inv.Switches)}
	})
}

// Watch implements Source. A replay has every field.
func (r *Replay) Watch(Inventory, []Watch) ([]Omission, error) { return nil, r.enter("Watch") }

// Read implements Source. A field nobody set is a blank.
func (r *Replay) Read(inv Inventory, fields []uint16, _ bool) ([]Value, error) {
	here := map[Level]map[uint]bool{GPULevel: {}, LinkLevel: {}, InstanceLevel: {}, SwitchLevel: {}, SwitchLinkLevel: {}}
	for _, d := range inv.Devices {
		here[GPULevel][d.ID], here[LinkLevel][d.ID] = true, true
	}
	for _, in := range inv.Instances {
		here[InstanceLevel][in.ID] = true
	}
	for _, s := range inv.Switches {
		here[SwitchLevel][s.ID], here[SwitchLinkLevel][s.ID] = true, true
	}
	return answer(r, "Read", func() (out []Value) {
		for k, v := range r.values {
			if here[k.of][k.id] && slices.Contains(fields, k.field) {
				v.Of, v.ID, v.Link, v.Field, v.Time = k.of, k.id, k.link, k.field, r.now()
				out = append(out, v)
			}
		}
		return out
	})
}

// Health implements Source.
func (r *Replay) Health() ([]Incident, error) {
	return answer(r, "Health", func() []Incident { return slices.Clone(r.incidents) })
}

// Links implements Source. A replay has no states of links.
func (r *Replay) Links() ([]LinkState, error) { return nil, r.enter("Links") }

// Topology implements Source. A replay knows of no paths between GPUs.
func (r *Replay) Topology([]Device) ([]Path, error) { return nil, r.enter("Topology") }
