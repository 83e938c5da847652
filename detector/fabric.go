package detector

import (
	"fmt"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// Port is a change of a port of the fabric: InfiniBand or RoCE.
type Port struct {
	Device, Layer string // mlx5_0; InfiniBand or Ethernet
	Number        int64
	State, Before string // ACTIVE, DOWN, INIT, ARMED; ABSENT where there is no such port any more
	PCI           string
	Time          time.Time
	Downs         int64 // how often the link went down since it was last looked at, by its own counter
}

// The findings about a port.
const (
	fabricDown = "port-down"
	fabricFlap = "flap"
	portActive = "ACTIVE"
)

// Port judges a change. A port that has left ACTIVE is down until it is ACTIVE again; one that only went down in between has flapped. A port
// that was never ACTIVE is one that nobody uses.
func (e *Engine) Port(p Port) []finding.Finding {
	e.tick(p.Time)
	if p.Time.IsZero() || p.Device == "" || p.State == "" {
		e.counts.Malformed++
		return e.take()
	}
	name := fmt.Sprintf("%s/%d", p.Device, p.Number)
	about := func(kind string) string { return "fabric/" + kind + " port/" + name }
	ev := event.Evidence{Signal: "port state", Baseline: "table", Raw: fmt.Sprintf("%s port %s: %s, before %s", p.Layer, name, p.State, p.Before)}
	target := event.Target{PCI: p.PCI}
	if p.State == portActive {
		e.end(about(fabricDown), ev)
		if p.Downs > 0 {
			ev.Value, ev.Unit = num(float64(p.Downs)), "{flap}"
			e.begin(onset{key: about(fabricFlap), target: target, cause: event.Cause{Kind: "fabric", Name: fabricFlap}, severity: event.Warning,
				advice: "check-nvlink/fabric", evidence: ev, at: p.Time, count: int(p.Downs)})
		}
		return e.take()
	}
	if p.Before == portActive {
		e.begin(onset{key: about(fabricDown), target: target, cause: event.Cause{Kind: "fabric", Name: fabricDown}, severity: event.Critical,
			advice: "check-nvlink/fabric", evidence: ev, at: p.Time})
	}
	return e.take()
}
