package dcgmreceiver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Replay is the in-memory Source: a node as a recording has it, which a program may change while it is read. Its methods may be
// called by any goroutine.
type Replay struct {
	mu         sync.Mutex
	devices    []Device
	values     map[key]Value
	incidents  []Incident
	err        error
	connectErr error
	hold       map[string]chan struct{}
	calls      map[string]int
	plan       []Watch
	violations chan Violation
	now        func() time.Time
}

type key struct {
	gpu   uint
	link  int
	field uint16
}

// recording is the file format of mode replay.
type recording struct {
	Devices []Device `json:"devices"`
	Values  []struct {
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
		devices: devices, values: map[key]Value{}, hold: map[string]chan struct{}{}, calls: map[string]int{},
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
	r := NewReplay(rec.Devices...)
	for _, v := range rec.Values {
		k := key{v.GPU, -1, v.Field}
		if v.Link != nil {
			k.link = *v.Link
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
func (r *Replay) Set(gpu uint, field uint16, v int64) { r.put(key{gpu, -1, field}, Value{I: v}) }

// SetFloat gives a field of a GPU a value with a fraction.
func (r *Replay) SetFloat(gpu uint, field uint16, v float64) {
	r.put(key{gpu, -1, field}, Value{Float: true, F: v})
}

// SetBlank makes a field of a GPU unknown.
func (r *Replay) SetBlank(gpu uint, field uint16) { r.put(key{gpu, -1, field}, Value{Blank: true}) }

// SetLink gives a field of one NVLink a value.
func (r *Replay) SetLink(gpu uint, link int, field uint16, v int64) {
	r.put(key{gpu, link, field}, Value{I: v})
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
	r.devices = d
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
		delete(r.hold, method)
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

// Inventory implements Source.
func (r *Replay) Inventory() ([]Device, error) {
	if err := r.enter("Inventory"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Device(nil), r.devices...), nil
}

// Watch implements Source.
func (r *Replay) Watch(_ []Device, plan []Watch) ([]uint16, error) {
	if err := r.enter("Watch"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan = plan
	return nil, nil
}

// Read implements Source. A field nobody set is a blank.
func (r *Replay) Read(devices []Device, fields []uint16, _ bool) ([]Value, error) {
	if err := r.enter("Read"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Value
	for _, d := range devices {
		for _, id := range fields {
			f, ok := FieldByID(id)
			if !ok {
				return nil, errors.New("replay: unknown field")
			}
			for k, v := range r.values {
				if k.gpu == d.ID && k.field == id && (f.Level == LinkLevel) == (k.link >= 0) {
					v.GPU, v.Link, v.Field, v.Time = d.ID, k.link, id, r.now()
					out = append(out, v)
				}
			}
		}
	}
	return out, nil
}

// Health implements Source.
func (r *Replay) Health() ([]Incident, error) {
	if err := r.enter("Health"); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Incident(nil), r.incidents...), nil
}
