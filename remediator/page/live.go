package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	maxStreams = 1000             // open at the same time; each holds a connection and a few KiB
	beatEvery  = 10 * time.Second // how often a stream says how the server stands
	writeLimit = 10 * time.Second // a client that takes nothing for so long is dropped
	gatherFor  = 250 * time.Millisecond
)

// hub hands changes to the streams. What a stream has not sent yet is gathered, so a slow client costs no more than the ids it waits for.
type hub struct {
	mu      sync.Mutex
	streams map[*stream]bool
}

// stream is one client that listens.
type stream struct {
	wake chan struct{}

	mu      sync.Mutex
	changed map[string]bool
	all     bool // too many to name
}

// maxNamed bounds the ids that one message names.
const maxNamed = 64

func newHub() *hub { return &hub{streams: map[*stream]bool{}} }

// join adds a stream; nil if there are too many.
func (h *hub) join() *stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) >= maxStreams {
		return nil
	}
	s := &stream{wake: make(chan struct{}, 1), changed: map[string]bool{}}
	h.streams[s] = true
	return s
}

func (h *hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
}

// tell notes a change for each stream. The empty id means everything.
func (h *hub) tell(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		s.note(id)
	}
}

func (s *stream) note(id string) {
	s.mu.Lock()
	if s.all = s.all || id == "" || len(s.changed) >= maxNamed; s.all {
		clear(s.changed)
	} else {
		s.changed[id] = true
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// news is the data of a message: the incidents that changed; none of them named means any.
type news struct {
	Changed []string `json:"changed"`
	All     bool     `json:"all,omitempty"`
}

func (s *stream) take() news {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := news{Changed: []string{}, All: s.all}
	for id := range s.changed {
		n.Changed = append(n.Changed, id)
	}
	clear(s.changed)
	s.all = false
	return n
}

// serveLive is the stream of server-sent events: "change" names incidents, "state" says how the server stands.
func (p *Page) serveLive(w http.ResponseWriter, r *http.Request, who *Person) {
	s := p.hub.join()
	if s == nil {
		w.Header().Set("Retry-After", "30")
		http.Error(w, "too many live views; reload later", http.StatusServiceUnavailable)
		return
	}
	defer p.hub.leave(s)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // that of the server is for requests, and this one lasts
	send := func(name string, v any) bool {
		raw, err := json.Marshal(v)
		if err == nil {
			_ = out.SetWriteDeadline(time.Now().Add(writeLimit)) // the connection's own clock
			_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, raw)
		}
		if err == nil {
			err = out.Flush()
		}
		return err == nil
	}
	if _, err := fmt.Fprint(w, "retry: 2000\n\n"); err != nil || !send("state", p.state()) {
		return
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-p.ending:
			return
		case <-beat.C:
			if again, err := p.gate.person(r); err != nil || again == nil { // the session ended, or the token was taken away
				return
			}
			if !send("state", p.state()) {
				return
			}
		case <-s.wake:
			if n := s.take(); !send("change", n) {
				return
			}
			select { // what changes often is told a few times a second
			case <-time.After(gatherFor):
			case <-r.Context().Done():
				return
			}
		}
	}
}
