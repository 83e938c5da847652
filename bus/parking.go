package bus

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The server delivers a parked event again after a time that doubles with each delivery.
const (
	parkFirst = time.Second
	parkMost  = 15 * time.Second
	parkSlack = againAfter // after which an event that did not come again is not waited for: the stream may have dropped it
)

// park gives an event back to the server, which delivers it again after the time returned.
func (b *Bus) park(m jetstream.Msg, delivered uint64) time.Duration {
	wait := min(parkFirst<<min(delivered, 6), parkMost)
	if err := m.NakWithDelay(wait); err != nil { // it comes again when the server has not heard of it for a while
		b.log.Debug("give an event back", "subject", m.Subject(), "error", err)
		return againAfter
	}
	return wait
}

// parking is the events of one lane that the server holds, by their sequence in the stream. They come back in any order, and are taken in
// the order of the stream.
type parking struct {
	due   map[uint64]time.Time // when the server delivers it again
	since time.Time            // when the first one was parked
	first uint64               // the lowest sequence; 0: not known
}

func (p *parking) put(seq uint64, now time.Time, wait time.Duration) {
	if p.due == nil {
		p.due = map[uint64]time.Time{}
	}
	if len(p.due) == 0 {
		p.since = now
	}
	if p.due[seq] = now.Add(wait); len(p.due) == 1 || p.first != 0 && seq < p.first {
		p.first = seq
	}
}

func (p *parking) take(seq uint64) {
	delete(p.due, seq)
	if seq == p.first {
		p.first = 0
	}
}

// before reports whether an event of a lower sequence is to come first. One that is overdue is waited for no longer.
func (p *parking) before(seq uint64, now time.Time) bool {
	for len(p.due) > 0 {
		if p.first == 0 {
			for s := range p.due {
				if p.first == 0 || s < p.first {
					p.first = s
				}
			}
		}
		if p.first >= seq {
			return false
		}
		if now.Before(p.due[p.first].Add(parkSlack)) {
			return true
		}
		p.take(p.first)
	}
	return false
}

// expire forgets events that did not come again.
func (p *parking) expire(now time.Time) {
	for seq, due := range p.due {
		if now.After(due.Add(parkSlack)) {
			p.take(seq)
		}
	}
}

// full reports whether an event that is not parked yet finds no place.
func (p *parking) full(seq uint64) bool {
	_, known := p.due[seq]
	return !known && len(p.due) >= maxParked
}

func (p *parking) len() int    { return len(p.due) }
func (p *parking) empty() bool { return len(p.due) == 0 }

// oldest is how long events have been parked.
func (p *parking) oldest(now time.Time) time.Duration {
	if p.empty() {
		return 0
	}
	return now.Sub(p.since)
}
