package incident

import (
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// maxRaw bounds what an incident keeps of an event's raw text.
const maxRaw = 4 << 10

func faultOf(ev event.Event, g *cluster.Gang, p *Plan) Fault {
	t := ev.Data.Target
	f := Fault{
		EventID: ev.ID, Signal: ev.Data.Cause.Signal(), Sev: ev.Data.Severity, At: ev.Time, Node: t.Node, GPU: t.GPU, PodUID: t.PodUID,
		Rank: t.Rank, Attempt: t.Attempt, Moves: p.Has(policy.Cordon), Usable: usable(ev), Event: ev,
	}
	f.Event.Data.Extra = nil // the record has to fit into one message
	if raw := &f.Event.Data.Evidence.Raw; len(*raw) > maxRaw {
		*raw = strings.ToValidUTF8((*raw)[:maxRaw], "") + " …"
	}
	if g != nil && f.PodUID == "" {
		for _, m := range g.Members {
			if m.Node == t.Node && (t.Pod == "" || m.Pod == t.Pod) {
				f.PodUID = m.PodUID
			}
		}
	}
	return f
}

// oldestOnset bounds what is believed of an onset: longer ago, its event's own time counts.
const oldestOnset = time.Hour

// Began is when the fault began, as its source dates it: the last sign of life of a rank that hangs, else when the event happened. A
// statistical finding's onset says when a drift began, and not since when something was to be healed.
func (f Fault) Began() time.Time {
	onset := f.Event.Data.Onset
	if f.Event.Type != event.Fault || onset.IsZero() || onset.After(f.At) || f.At.Sub(onset) > oldestOnset {
		return f.At
	}
	return onset
}

// Began is when the fault that opened the incident began, by its source's clock, but never after we heard of it.
func (i *Incident) Began() time.Time {
	if len(i.Faults) > 0 {
		if at := i.Faults[0].Began(); at.Before(i.Opened) {
			return at
		}
	}
	return i.Opened
}

// lostSignals and lostAdvice are what leaves a rank unable to step, or its memory not to be trusted: no round is begun for it.
// docs/decisions/0002 says why. Advice is the action bucket of the XID table.
var (
	lostSignals = map[string]bool{"rank/dead": true, "rank/hung": true, "gpu/lost": true, "node/lost": true}
	lostAdvice  = map[string]bool{"reset-gpu": true, "reboot-node": true, "drain-and-rma": true}
	// laterAdvice is for the next idle moment: a row that waits to be swapped in works, as XID 63 says of the same thing.
	laterAdvice = map[string]bool{"gpu/row-remap": true}
)

func usable(ev event.Event) bool {
	signal := ev.Data.Cause.Signal()
	return !ev.Data.Severity.AtLeast(event.Fatal) && !lostSignals[signal] && (!lostAdvice[ev.Data.Advice] || laterAdvice[signal])
}
