package anomalycmd

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// finding is one line of the list.
type finding struct {
	Source   string          `json:"source"` // agent or gateway
	Gateway  string          `json:"gateway,omitempty"`
	Node     string          `json:"node,omitempty"` // of what is found
	Job      string          `json:"job,omitempty"`  // its UID
	Rank     *int            `json:"rank,omitempty"`
	Key      string          `json:"key"`
	Signal   string          `json:"signal"`
	Severity event.Severity  `json:"severity"`
	State    event.State     `json:"state"`
	Onset    time.Time       `json:"onset"`
	Lost     float64         `json:"gpu_seconds_lost"`
	Muted    bool            `json:"muted,omitempty"`
	Told     []string        `json:"told,omitempty"` // what people said of it, as far as whoever found it heard of it
	Said     []bus.Statement `json:"said,omitempty"` // what people said of it, heard or not
	Heard    time.Time       `json:"heard,omitzero"` // when its gateway told of it last, by the bus's clock
	Raw      event.Data      `json:"finding"`

	at time.Time // by the clock of whoever found it
}

const (
	agent   = "agent"
	gateway = "gateway"
)

// from is who found it, to a person.
func (f *finding) from() string {
	if f.Source == gateway {
		return gateway + " " + f.Gateway
	}
	return agent
}

func findingOf(c bus.Condition) finding {
	d := c.Event.Data
	f := finding{
		Source: agent, Gateway: c.Gateway, Node: c.Node, Rank: d.Target.Rank, Key: c.Key, Signal: d.Cause.Signal(), Severity: d.Severity, State: d.Evidence.State,
		Onset: d.Onset, Lost: d.Evidence.LostGPUSeconds, Told: d.Evidence.Told, Raw: d, at: d.Onset,
	}
	if c.Gateway != "" {
		f.Source, f.Heard, f.at = gateway, c.Since, c.Event.Time
	}
	if d.Target.Job != nil {
		f.Job = d.Target.Job.UID
	}
	return f
}

// standing reads what agents and gateways found that is open or accepted, worst first. refused are records that were forged.
func standing(ctx context.Context, b *bus.Bus) (all []finding, refused []error, err error) {
	conditions, err := ofAgents(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	found, refused, err := b.Found(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range append(conditions, found...) {
		all = append(all, findingOf(c))
	}
	slices.SortFunc(all, func(a, b finding) int {
		return cmp.Or(rank(b).Compare(rank(a)), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Gateway, b.Gateway))
	})
	return all, refused, nil
}

// ofAgents reads the conditions of nodes that are statistical findings.
func ofAgents(ctx context.Context, b *bus.Bus) ([]bus.Condition, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	current := make(chan struct{})
	var all []bus.Condition
	done := make(chan error, 1)
	go func() {
		done <- b.Conditions(ctx, current, func(c bus.Condition) {
			select {
			case <-current: // news after the moment
			default:
				if c.Active && c.Event != nil && strings.HasPrefix(c.Key, prefix) {
					all = append(all, c)
				}
			}
		})
	}()
	select {
	case <-current:
		cancel()
		if err := <-done; err != nil {
			return nil, err
		}
	case err := <-done:
		if err == nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return all, nil
}

// rank orders by onset, as a time, with worse ones later in it.
func rank(f finding) time.Time {
	if f.Severity.AtLeast(event.Warning) {
		return f.Onset.AddDate(100, 0, 0)
	}
	return f.Onset
}

// about reports whether a statement is of a finding.
func about(s bus.Statement, f finding) bool { return s.Of(f.Node) && statement.Match(s.Key, f.Key) }

// heed adds to findings what people said of them.
func heed(fs []finding, said []bus.Statement, now time.Time) {
	for i := range fs {
		f := &fs[i]
		for _, s := range said {
			if !about(s, *f) || s.Verb != bus.StateMute && f.Onset.After(s.At) {
				continue
			}
			f.Said = append(f.Said, s)
			if s.Verb == bus.StateMute && now.Before(s.Until) {
				f.Muted = true
			}
		}
	}
}

// words say how a finding stands.
func (f *finding) words() string {
	all := append([]string{string(f.State)}, f.Told...)
	for _, s := range f.Said {
		switch w := words(s); {
		case slices.Contains(f.Told, w):
		case f.Source == gateway:
			all = append(all, w+" ("+f.Gateway+" has not heard it yet)")
		case s.Verb == bus.StateMute: // of which an agent tells nothing
			all = append(all, w)
		}
	}
	return strings.Join(all, ", ")
}

// words say a statement as those do who hear it.
func words(s bus.Statement) string {
	w := statement.Statement{Verb: statement.Verb(s.Verb), By: s.By, Reason: s.Reason, Until: s.Until}
	return w.Words()
}
