package dcgmreceiver

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/semconv"
)

// EventTransition is the EventName of the log record of an NVLink that changed its state.
const EventTransition = semconv.EventNVLinkTransition

// linkStates are the states that are counted.
var linkStates = []string{"up", "down", "disabled"}

// linkKey is one NVLink of a GPU or a switch.
type linkKey struct {
	id   string // hw.id
	link int
}

// transition is one change of a link's state.
type transition struct {
	linkKey
	pci      string
	from, to string
}

// links counts the links by their state, and returns those whose state is another than at the last look.
func (b *builder) links(t *batch, inv Inventory, states []LinkState) (changed []transition) {
	b.know(inv)
	pci := map[string]string{}
	for _, d := range inv.Devices {
		pci[d.id()] = d.pci()
	}
	counts, order := map[string]map[string]int64{}, []string(nil)
	for _, l := range states {
		e := entity{GPULevel, l.ID}
		if l.Switch {
			e.of = SwitchLevel
		}
		s := b.subjects[e]
		if s == nil {
			continue
		}
		if counts[s.id] == nil {
			counts[s.id] = map[string]int64{}
			order = append(order, s.id)
		}
		counts[s.id][l.State]++
		k := linkKey{s.id, l.Link}
		if was, known := b.linkWas[k]; known && was != l.State {
			changed = append(changed, transition{k, pci[s.id], was, l.State})
			b.changes[s.id]++
		}
		b.linkWas[k] = l.State
	}
	for _, id := range order {
		for _, state := range linkStates {
			p := t.own(semconv.NVLinkLinks)
			p.SetIntValue(counts[id][state])
			p.Attributes().PutStr(semconv.HWID, id)
			p.Attributes().PutStr(semconv.NVLinkState, state)
		}
		p := t.own(semconv.NVLinkTransitions)
		p.SetIntValue(b.changes[id])
		p.SetStartTimestamp(b.began)
		p.Attributes().PutStr(semconv.HWID, id)
	}
	return changed
}

// tell sends a log record of each link that changed its state.
func (r *dcgmReceiver) tell(ctx context.Context, at pcommon.Timestamp, changed []transition) {
	if r.logs == nil || len(changed) == 0 {
		return
	}
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	r.resource(rl.Resource())
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(ScopeName)
	for _, c := range changed {
		lr := sl.LogRecords().AppendEmpty()
		lr.SetEventName(EventTransition)
		lr.SetTimestamp(at)
		lr.SetObservedTimestamp(at)
		lr.SetSeverityNumber(plog.SeverityNumberWarn)
		if c.to == "up" {
			lr.SetSeverityNumber(plog.SeverityNumberInfo)
		}
		a := lr.Attributes()
		a.PutStr(semconv.HWID, c.id)
		optional(a, semconv.HWPCI, c.pci)
		a.PutInt(semconv.NVLinkLink, int64(c.link))
		a.PutStr(semconv.NVLinkFrom, c.from)
		a.PutStr(semconv.NVLinkTo, c.to)
		lr.Body().SetStr(fmt.Sprintf("NVLink %d of %s went from %s to %s", c.link, c.id, c.from, c.to))
	}
	if err := r.logs.ConsumeLogs(ctx, ld); err != nil {
		r.log.Warn("dcgm: the pipeline refused the changes of NVLinks", zap.Int("links", len(changed)), zap.Error(err))
	}
}
