package hook

import (
	"context"
	"slices"
	"time"
)

// A ring whose file is not in memory is a copy (docs/hook-protocol.md, section 2). If its disk stalls, the copy stands still although the
// rank trains. These bounds tell the two apart.
const (
	// copyLate is the age from which a copy stands still. It is taken every 50 ms.
	copyLate = 300 * time.Millisecond
	// pongLate is how long the side thread of a rank may take to answer. It beats every 200 ms.
	pongLate = time.Second
)

// word is what a rank's process last answered, because its copy stands still.
type word struct {
	of     Process
	asking bool
	silent bool // the newest question had no answer within pongLate
	pong   Pong
	at     uint64 // when the pong came; 0: never
}

// Snapshot reads the header of one of the rank's rings. If the ring is a copy that stands still, the rank's process is asked by its socket,
// which needs no disk; the call does not wait for the answer. Step, section and heartbeat are then those of the newest sign of life: the
// copy or an answer. Their ages go on only once the process has left a question unanswered. A process without a connection is not judged
// by a late copy: its end is found without the ring.
func (r *Rank) Snapshot(ring *Ring) (Snapshot, error) {
	s, err := ring.Snapshot()
	if err != nil || s.Flags&FlagCopied == 0 || s.Exit != ExitRunning || s.Age(s.CopiedMono) < copyLate {
		return s, err
	}
	w := r.ask(Process{s.PID, s.Attempt}, ring.now)
	if w.at > s.CopiedMono {
		s.Step, s.StepMono, s.HeartbeatMono = uint64(max(w.pong.Step, 0)), w.pong.StepMono, w.at
		s.Section, s.SectionName, s.SectionMono = sectionOf(w.pong.Section), w.pong.Section, w.pong.SectionMono
	}
	if w.silent {
		return s, nil
	}
	unknown := uint64(s.Age(max(w.at, s.CopiedMono))) // since the sign of life
	for _, at := range []*uint64{&s.HeartbeatMono, &s.StepMono, &s.SectionMono} {
		*at = min(*at+unknown, s.NowMono)
	}
	return s, nil
}

// ask sends a Ping, unless one waits for its answer, and returns what is known so far.
func (r *Rank) ask(p Process, clock func() uint64) word {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.word.of != p {
		r.word = word{of: p}
	}
	session, _, _ := r.peer.current()
	if session == nil {
		r.word.silent = false
		return r.word
	}
	if !r.word.asking {
		r.word.asking = true
		go r.listen(session, p, clock) // ends within pongLate and writeTimeout, or with the session
	}
	return r.word
}

func (r *Rank) listen(session *Session, p Process, clock func() uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), pongLate)
	defer cancel()
	answer, err := session.Request(ctx, Ping{})
	now := clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.word.of != p {
		return // another process has taken its place
	}
	r.word.asking = false
	pong, ok := answer.(Pong)
	switch {
	case err == nil && ok && pong.PID == p.PID && pong.Attempt == p.Attempt:
		r.word.pong, r.word.at, r.word.silent = pong, now, false
	case ctx.Err() != nil:
		r.word.silent = true
	}
}

// sectionOf is the section that a rank calls by this name.
func sectionOf(name string) Section {
	if i := slices.Index(sectionNames[:], name); i >= 0 {
		return Section(i)
	}
	return SectionOther
}
