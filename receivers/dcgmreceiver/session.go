package dcgmreceiver

import (
	"errors"
	"maps"
	"slices"
	"time"
)

const (
	healthEvery = 10 * time.Second
	// patience is how many failed rounds in a row the connection survives when the error does not say that it is gone.
	patience = 3
	// blankProof is how many fields must all be blank on all GPUs to be the engine's fault: a card without ECC has few fast fields.
	blankProof = 12
)

// session is the conversation with one Source: what is connected, watched and due. It is used from the worker's goroutine alone.
type session struct {
	src    Source
	w      *worker
	fields []Field
	base   time.Duration
	most   time.Duration
	now    func() time.Time

	connected bool
	failures  int
	known     []Device // as last watched
	unknown   map[uint16]bool
	due       map[time.Duration]time.Time // interval → next reading
	healthDue time.Time
}

// round is what one round of calls brought.
type round struct {
	at        time.Time
	devices   []Device
	values    []Value
	incidents []Incident
	health    bool // incidents were asked for
	missing   []uint16
	err       error
	connected bool
	blank     bool // values came, and not one of them was known
}

func newSession(src Source, w *worker, fields []Field, base, most time.Duration, now func() time.Time) *session {
	return &session{src: src, w: w, fields: fields, base: base, most: most, now: now, unknown: map[uint16]bool{}}
}

// run does one round: connect if need be, take the inventory, read what is due. live asks the driver for the fast fields.
func (s *session) run(live bool) round {
	r := round{}
	r.err = s.try(&r, live)
	switch {
	case r.err == nil:
		s.failures = 0
	case errors.Is(r.err, ErrDisconnected):
		s.connected = false
	default:
		if s.failures++; s.failures >= patience {
			s.connected, s.failures = false, 0
		}
	}
	r.connected = s.connected
	r.at = s.now()
	return r
}

func (s *session) try(r *round, live bool) error {
	if !s.connected {
		if _, err := call(s.w, "connect", func() (struct{}, error) { return struct{}{}, s.src.Connect() }); err != nil {
			return err
		}
		s.connected, s.known = true, nil
	}
	devices, err := call(s.w, "inventory", s.src.Inventory)
	if err != nil {
		return err
	}
	if s.known == nil || !sameCards(devices, s.known) {
		unknown, err := call(s.w, "watch", func() ([]uint16, error) { return s.src.Watch(devices, s.plan()) })
		if err != nil {
			return err
		}
		s.known = append([]Device{}, devices...)
		clear(s.unknown)
		for _, id := range unknown {
			s.unknown[id] = true
		}
		r.missing = unknown
		s.due, s.healthDue = map[time.Duration]time.Time{}, time.Time{}
	}
	r.devices = devices
	answering := slices.DeleteFunc(slices.Clone(devices), func(d Device) bool { return !d.Answer })
	if len(answering) == 0 {
		return nil
	}
	fields, live := s.take(live)
	if len(fields) > 0 {
		if r.values, err = call(s.w, "read", func() ([]Value, error) { return s.src.Read(answering, fields, live) }); err != nil {
			return err
		}
		r.blank = allBlank(r.values)
		if r.blank && len(fields) >= blankProof {
			return errors.New("dcgm read: every value of every GPU is blank: the engine no longer asks the driver (seen after XID 119): restart nv-hostengine, or reset the GPU")
		}
	}
	if now := s.now(); !now.Before(s.healthDue) {
		s.healthDue = now.Add(healthEvery)
		r.health = true
		if r.incidents, err = call(s.w, "health", s.src.Health); err != nil {
			return err
		}
	}
	return nil
}

// take returns the fields that are due, and marks them as read. After an event only the fast ones are asked for, live.
func (s *session) take(live bool) ([]uint16, bool) {
	now := s.now()
	if live {
		return s.of(s.base), true
	}
	var ids []uint16
	for _, every := range s.intervals() {
		if now.Before(s.due[every]) {
			continue
		}
		next := s.due[every].Add(every)
		if !next.After(now) { // the first, or one that came late
			next = now.Add(every)
		}
		s.due[every] = next
		ids = append(ids, s.of(every)...)
	}
	return ids, false
}

func (s *session) intervals() []time.Duration {
	set := map[time.Duration]bool{}
	for _, f := range s.fields {
		set[f.every(s.base, s.most)] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// of returns the ids of the fields with this interval that the engine knows.
func (s *session) of(every time.Duration) []uint16 {
	var ids []uint16
	for _, f := range s.fields {
		if f.every(s.base, s.most) == every && !s.unknown[f.ID] {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

func (s *session) plan() []Watch {
	var plan []Watch
	for _, every := range s.intervals() {
		w := Watch{Every: every}
		for _, f := range s.fields {
			if f.every(s.base, s.most) == every {
				w.Fields = append(w.Fields, f.ID)
			}
		}
		plan = append(plan, w)
	}
	return plan
}

// sameCards compares who is there and who answers: a card that comes back has to be watched anew.
func sameCards(a, b []Device) bool {
	return slices.EqualFunc(a, b, func(x, y Device) bool { return x.ID == y.ID && x.UUID == y.UUID && x.Answer == y.Answer })
}

func allBlank(values []Value) bool {
	return len(values) > 0 && !slices.ContainsFunc(values, func(v Value) bool { return !v.Blank })
}
