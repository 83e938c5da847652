package bus

import (
	"context"
	"fmt"
)

// Backlog is how far the durable consumers of events are behind the stream.
type Backlog struct {
	Consumers int    // durable consumers of the stream; 0: nobody has consumed yet
	Stored    uint64 // events that the stream has stored since it was made
	Discarded uint64 // of those, no longer in the stream: by age, by size or by an operator
	Delivered uint64 // deliveries to durable consumers; a redelivery counts again
	Pending   uint64 // not delivered yet
	Reached   uint64 // sequence of the last delivered event, of the consumer that is farthest behind
	Unacked   int    // delivered, not acknowledged
	Waiting   int    // requests for events that are open: 0 means that nobody consumes
}

// EventBacklog reads the backlog. Consumers that each take a part of the stream add up.
func (b *Bus) EventBacklog(ctx context.Context) (Backlog, error) {
	s, err := b.js.Stream(ctx, EventStream)
	if err != nil {
		return Backlog{}, fmt.Errorf("stream %s: %w", EventStream, err)
	}
	state := s.CachedInfo().State
	out := Backlog{Stored: state.LastSeq, Discarded: state.LastSeq - state.Msgs}
	all := s.ListConsumers(ctx)
	for c := range all.Info() {
		if c.Config.Durable == "" {
			continue
		}
		if out.Consumers++; out.Consumers == 1 || c.Delivered.Stream < out.Reached {
			out.Reached = c.Delivered.Stream
		}
		out.Delivered += c.Delivered.Consumer
		out.Pending += c.NumPending
		out.Unacked += c.NumAckPending
		out.Waiting += c.NumWaiting
	}
	if err := all.Err(); err != nil {
		return Backlog{}, fmt.Errorf("consumers of stream %s: %w", EventStream, err)
	}
	return out, nil
}
