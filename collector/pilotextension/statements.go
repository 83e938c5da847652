package pilotextension

import (
	"maps"
	"slices"
	"sync"

	"github.com/pitcrew/pitcrew/bus"
)

// maxStatements bounds what is kept of the bucket.
const maxStatements = 4096

// statements is what people said of findings on this node. Who follows is given all of it, at once and after each change.
type statements struct {
	node string

	mu      sync.Mutex
	all     map[string]bus.Statement
	reading map[string]bus.Statement // while a watch begins: what is there, until it is all there
	follow  map[int]func([]bus.Statement)
	next    int
	known   bool
}

func newStatements(node string) *statements {
	return &statements{node: node, all: map[string]bus.Statement{}, follow: map[int]func([]bus.Statement){}}
}

// begin is a new watch: what it does not bring is gone.
func (s *statements) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading = map[string]bus.Statement{}
}

// current says that all that is there was brought.
func (s *statements) current() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all, s.reading, s.known = s.reading, nil, true
	s.tell()
}

func (s *statements) change(c bus.Change[bus.Statement]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	into := s.all
	if s.reading != nil {
		into = s.reading
	}
	switch {
	case c.Deleted:
		delete(into, c.Key)
	case !c.Value.Of(s.node) || c.Value.Validate() != nil || len(into) >= maxStatements:
		return
	default:
		into[c.Key] = c.Value
	}
	if s.reading == nil {
		s.tell()
	}
}

// tell is called with mu held.
func (s *statements) tell() {
	list := s.list()
	for _, handle := range s.follow {
		handle(list)
	}
}

func (s *statements) list() []bus.Statement {
	out := make([]bus.Statement, 0, len(s.all))
	for _, k := range slices.Sorted(maps.Keys(s.all)) {
		out = append(out, s.all[k])
	}
	return out
}

// FollowStatements calls handle with all that people said of findings on this node: when that is first known, and after each
// change, until stop is called. handle must not block and must not call back.
func (p *Pilot) FollowStatements(handle func([]bus.Statement)) (stop func()) {
	s := p.statements
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.next
	s.next++
	s.follow[id] = handle
	if s.known {
		handle(s.list())
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.follow, id)
	}
}
