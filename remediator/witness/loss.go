package witness

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// Key is the key of the condition of a lost node.
const Key = "node/lost node"

const (
	signal        = "node/lost"
	silenceSignal = "pitcrew.agent.silence"
	baseline      = "two witnesses"
)

// loss is a node that was reported as lost. It is not changed after it was made.
type loss struct {
	node     string
	onset    time.Time
	evidence []Evidence
	event    event.Event
	why      string    // it ended; "" while it lasts
	ended    time.Time // zero while it lasts
}

// over is a copy of the loss that ended.
func (l *loss) over(at time.Time, why string) *loss {
	out := *l
	out.ended, out.why = at, why
	return &out
}

// report publishes a loss and sets its condition.
func (w *Watch) report(ctx context.Context, q quiet, onset time.Time, evidence []Evidence) {
	l := &loss{node: q.name, onset: onset, evidence: evidence}
	l.event = w.event(l)
	w.tell(ctx, q, l)
}

// repeat sets the condition again, so that a loss that was not acted on, because it waited too long or because nobody led, is not forgotten.
// New evidence makes a new event: it may be what an incident waits for.
func (w *Watch) repeat(ctx context.Context, q quiet, evidence []Evidence) {
	all := sorted(append(slices.Clone(evidence), q.loss.evidence...))
	if len(all) > len(q.loss.evidence) {
		w.report(ctx, q, q.loss.onset, all)
		return
	}
	w.set(ctx, q.loss, true)
	w.again(q, w.o.Repeat)
}

// tell publishes a loss's event once, and marks the node, unless its agent was heard meanwhile. What cannot be published is tried again by
// the next look.
func (w *Watch) tell(ctx context.Context, q quiet, l *loss) {
	w.mu.Lock()
	el := w.at[q.name]
	still := el != nil && el.Value.(*node).heard.Equal(q.since)
	w.mu.Unlock()
	if !still {
		return
	}
	if err := w.o.Publish(l.event); err != nil {
		w.o.Log.Error("publish a lost node; will retry", "node", l.node, "error", err)
		return
	}
	w.mu.Lock()
	if still = el.Value.(*node).heard.Equal(q.since); still {
		el.Value.(*node).loss, el.Value.(*node).next = l, w.o.Now().Add(w.o.Repeat)
	} else { // heard between the two: what was published is taken back
		w.ended = append(w.ended, l.over(w.o.Now(), "its agent is heard again"))
	}
	w.mu.Unlock()
	if still {
		w.set(ctx, l, true)
	}
}

// end notes that a loss ended although the agent is still silent.
func (w *Watch) end(q quiet, why string) {
	if q.loss == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if el := w.at[q.name]; el != nil && el.Value.(*node).loss == q.loss {
		el.Value.(*node).loss = nil
		w.ended = append(w.ended, q.loss.over(w.o.Now(), why))
	}
}

// clearEnded takes back the conditions of losses that ended. One that cannot be stored is kept for the next look.
func (w *Watch) clearEnded(ctx context.Context) {
	w.mu.Lock()
	ended := w.ended
	w.ended = nil
	w.mu.Unlock()
	for _, l := range ended {
		w.mu.Lock()
		el := w.at[l.node]
		anew := el != nil && el.Value.(*node).loss != nil
		w.mu.Unlock()
		if anew {
			continue // it was lost again since, and that condition has the same key
		}
		if !w.set(ctx, l, false) {
			w.mu.Lock()
			w.ended = append(w.ended, l)
			w.mu.Unlock()
			continue
		}
		if err := w.o.Publish(l.recovery()); err != nil {
			w.o.Log.Warn("publish that a node is back", "node", l.node, "error", err)
		}
	}
}

func (w *Watch) set(ctx context.Context, l *loss, active bool) bool {
	c := bus.Condition{Node: l.node, Key: Key, Active: active, Since: l.onset, Event: &l.event}
	if !active {
		back := l.recovery()
		c.Since, c.Event = l.ended, &back
	}
	if w.o.Boot != nil {
		c.BootID = w.o.Boot(l.node)
	}
	if err := w.o.Set(ctx, c); err != nil {
		if ctx.Err() == nil {
			w.o.Log.Warn("set the condition of a lost node; will retry", "node", l.node, "active", active, "error", err)
		}
		return false
	}
	return true
}

func (w *Watch) event(l *loss) event.Event {
	now := w.o.Now()
	age := now.Sub(l.onset).Seconds()
	src := event.Source(w.o.Cluster, l.node, "remediator")
	id := []string{signal, strconv.FormatInt(l.onset.UnixNano(), 10)}
	raw := []string{fmt.Sprintf("agent silent for %.1f s, kubelet does not answer", age)}
	var signals []event.Witness
	for _, e := range l.evidence {
		id = append(id, string(e.Kind))
		raw = append(raw, string(e.Kind)+": "+e.Detail)
		signals = append(signals, event.Witness{Signal: string(e.Kind), Onset: now, State: event.StateOpen})
	}
	if len(l.evidence) == 0 {
		raw = append(raw, silenceAlone)
	}
	return event.Event{
		ID: event.NewID(src, id...), Source: src, Type: event.Fault, Time: now,
		Data: event.Data{
			Target: event.Target{Cluster: w.o.Cluster, Node: l.node}, Cause: event.Cause{Kind: "node", Name: "lost"}, Severity: event.Fatal, Onset: l.onset,
			Evidence: event.Evidence{Signal: silenceSignal, Unit: "s", Value: &age, Baseline: baseline, Raw: strings.Join(raw, separator), Signals: signals},
		},
	}
}

func (l *loss) recovery() event.Event {
	e := l.event
	e.ID, e.Type, e.Time = event.NewID(e.Source, "recovery", e.ID), event.Recovery, l.ended
	e.Data.Severity, e.Data.Evidence = event.Info, event.Evidence{Signal: silenceSignal, Baseline: baseline, Raw: l.why}
	return e
}
