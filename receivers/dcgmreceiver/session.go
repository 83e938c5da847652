package dcgmreceiver

import (
	"errors"
	"maps"
	"slices"
	"time"
)

const (
	healthEvery = 10 * time.Second
	linksEvery  = 10 * time.Second
	// patience is how many failed rounds in a row the connection survives when the error does not say that it is gone.
	patience = 3
	// blankProof is how many fields must all be blank on all GPUs to be the engine's fault: a card without ECC has few fast fields.
	blankProof = 12
)

// session is the conversation with one Source: what is connected, watched and due. It is used from the worker's goroutine alone.
type session struct {
	src  Source
	w    *worker
	plan []Watch // by interval, the shortest first: the fields that tell of faults
	now  func() time.Time

	connected bool
	failures  int
	watched   bool
	known     Inventory // as last watched
	unknown   map[uint16]bool
	due       map[time.Duration]time.Time // interval → next reading
	healthDue time.Time
	linksDue  time.Time
}

// round is what one round of calls brought.
type round struct {
	at        time.Time
	listed    bool // inv was asked for and came
	inv       Inventory
	values    []Value
	incidents []Incident
	health    bool // incidents were asked for
	links     []LinkState
	linked    bool // links were asked for
	rewatched bool
	paths     []Path
	missing   []Omission
	err       error
	connected bool
	blank     bool // values came, and not one of them was known
}

func newSession(src Source, w *worker, fields []Field, base, most time.Duration, now func() time.Time) *session {
	return &session{src: src, w: w, plan: planOf(fields, base, most), now: now, unknown: map[uint16]bool{}}
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
		s.connected, s.watched = true, false
	}
	inv, err := call(s.w, "inventory", s.src.Inventory)
	if err != nil {
		return err
	}
	if !s.watched || !inv.same(s.known) {
		if err := s.watch(r, inv); err != nil {
			return err
		}
	}
	r.inv, r.listed = inv, true
	if inv = inv.answering(); len(inv.Devices) == 0 {
		return nil
	}
	now := s.now()
	fields, fromDriver := s.take(live)
	if len(fields) > 0 {
		if r.values, err = call(s.w, "read", func() ([]Value, error) { return s.src.Read(inv, fields, fromDriver) }); err != nil {
			return err
		}
		r.blank = allBlank(r.values)
		if r.blank && len(fields) >= blankProof {
			return errors.New("dcgm read: every value of every GPU is blank: the engine no longer asks the driver (seen after XID 119): restart nv-hostengine, or reset the GPU")
		}
	}
	if !now.Before(s.healthDue) {
		s.healthDue = now.Add(healthEvery)
		r.health = true
		if r.incidents, err = call(s.w, "health", s.src.Health); err != nil {
			return err
		}
	}
	if live || !now.Before(s.linksDue) { // what happened may have been a link's
		s.linksDue = now.Add(linksEvery)
		if r.links, err = call(s.w, "links", s.src.Links); err != nil {
			return err
		}
		r.linked = true
	}
	return nil
}

// watch watches what is there, and asks how the GPUs reach each other.
func (s *session) watch(r *round, inv Inventory) error {
	missing, err := call(s.w, "watch", func() ([]Omission, error) { return s.src.Watch(inv, s.plan) })
	if err != nil {
		return err
	}
	s.known, s.watched = inv, true
	clear(s.unknown)
	for _, o := range missing {
		s.unknown[o.Field] = true
	}
	r.missing, r.rewatched = missing, true
	s.due, s.healthDue, s.linksDue = map[time.Duration]time.Time{}, time.Time{}, time.Time{}
	r.paths, err = call(s.w, "topology", func() ([]Path, error) { return s.src.Topology(inv.answering().Devices) })
	if errors.Is(err, ErrDisconnected) {
		return err
	}
	return nil // a node whose topology is not known can be watched all the same
}

// planOf groups the fields by their interval.
func planOf(fields []Field, base, most time.Duration) (plan []Watch) {
	by := map[time.Duration][]uint16{}
	for _, f := range fields {
		every := f.every(base, most)
		by[every] = append(by[every], f.ID)
	}
	for _, every := range slices.Sorted(maps.Keys(by)) {
		plan = append(plan, Watch{Every: every, Fields: by[every]})
	}
	return plan
}

// take returns the fields that are due, and marks them as read. After an event only the fast ones are asked for, live.
func (s *session) take(live bool) ([]uint16, bool) {
	now := s.now()
	var ids []uint16
	for i, w := range s.plan {
		if live && i == 0 {
			return s.with(ids, w), true
		}
		if now.Before(s.due[w.Every]) {
			continue
		}
		next := s.due[w.Every].Add(w.Every)
		if !next.After(now) { // the first, or one that came late
			next = now.Add(w.Every)
		}
		s.due[w.Every] = next
		ids = s.with(ids, w)
	}
	return ids, false
}

// with adds the fields of a watch that the engine knows.
func (s *session) with(ids []uint16, w Watch) []uint16 {
	for _, id := range w.Fields {
		if !s.unknown[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// allBlank says that nothing is known of any GPU, whatever the switches say.
func allBlank(values []Value) bool {
	of := 0
	for _, v := range values {
		if v.Of != GPULevel {
			continue
		}
		if of++; !v.Blank {
			return false
		}
	}
	return of > 0
}
