package incident

import (
	"strings"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// maxRaw bounds what an incident keeps of an event's raw text.
const maxRaw = 4 << 10

func faultOf(ev event.Event, g *cluster.Gang, p *Plan) Fault {
	t := ev.Data.Target
	f := Fault{
		EventID: ev.ID, Signal: ev.Data.Cause.Signal(), Sev: ev.Data.Severity, At: ev.Time, Node: t.Node, GPU: t.GPU, PodUID: t.PodUID,
		Rank: t.Rank, Attempt: t.Attempt, Moves: p.Cordon, Usable: usable(ev), Event: ev,
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
