//go:build cgo && linux

package dcgmreceiver

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
	"go.uber.org/zap"
)

// profilingRetry is how long a refused profiling field waits until it is asked for again: whoever has the counters may be done.
const profilingRetry = time.Minute

// profilable says which of the profiling fields asked for the cards can measure, and why not the others.
func (e *engine) profilable(devices []Device, plan []Watch) (omitted []Omission, allowed map[uint16]bool) {
	var asked []uint16
	for _, w := range plan {
		for _, id := range w.Fields {
			if f, _ := FieldByID(id); f.Cost == Profiling {
				asked = append(asked, id)
			}
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	omit := func(id uint16, format string, a ...any) {
		omitted = append(omitted, Omission{Field: id, Why: fmt.Sprintf(format, a...)})
	}
	allowed = map[uint16]bool{}
	for _, id := range asked {
		allowed[id] = true
	}
	models := map[string]bool{}
	for _, d := range devices {
		if models[d.Model] {
			continue
		}
		models[d.Model] = true
		groups, err := dcgm.GetSupportedMetricGroups(d.ID)
		if err != nil {
			for _, id := range asked {
				omit(id, "%s gives no profiling metrics (%v): nv-hostengine needs the profiling module (datacenter-gpu-manager-4-proprietary) and, before Hopper, CAP_SYS_ADMIN; else take them out of extra_fields", d.Model, err)
			}
			return omitted, nil
		}
		for _, id := range asked {
			counts := slices.ContainsFunc(groups, func(g dcgm.MetricGroup) bool { return slices.Contains(g.FieldIds, uint(id)) })
			if !counts && allowed[id] {
				allowed[id] = false
				omit(id, "%s does not measure them (dcgmi profile --list says what it does): take them out of extra_fields", d.Model)
			}
		}
	}
	return omitted, allowed
}

// watchProfiling watches the profiling fields. An engine that does not multiplex refuses what cannot be counted at once: then, of each
// exclusive set of groups, the one with the most of what is asked is kept. What is refused still is withheld, and asked for again later.
func (e *engine) watchProfiling() {
	if len(e.watches.profiling) == 0 {
		return
	}
	err := e.tryProfiling(e.watches.profiling)
	if err == nil {
		if len(e.watches.withheld) > 0 {
			e.log.Info("dcgm: profiling fields are read again")
		}
		clear(e.watches.withheld)
		e.watches.retryAt = time.Time{}
		return
	}
	first := len(e.watches.withheld) == 0
	clear(e.watches.withheld)
	kept, given := e.oneGroupEach(e.watches.profiling)
	if len(given) > 0 && e.tryProfiling(kept) == nil {
		for _, id := range given {
			e.watches.withheld[id] = true
		}
		if first {
			e.log.Warn("dcgm: some profiling fields are left out: this card counts them in groups that exclude one another: choose between them in extra_fields",
				zap.Uint16s("fields", given), zap.Error(err))
		}
		e.watches.retryAt = time.Time{} // the card will not change
		return
	}
	var ids []uint16
	for _, w := range e.watches.profiling {
		for _, id := range w.Fields {
			e.watches.withheld[id] = true
			ids = append(ids, id)
		}
	}
	if first {
		e.log.Warn("dcgm: profiling fields are left out: the engine refuses them; if another program has the counters (Nsight, a second exporter), end it or let it pause with dcgmi profile --pause; tried again every minute",
			zap.Uint16s("fields", ids), zap.Error(err))
	}
	e.watches.retryAt = time.Now().Add(e.profilingRetry)
}

// tryProfiling watches all of the plan or nothing of it.
func (e *engine) tryProfiling(plan []Watch) error {
	before := len(e.watches.undo)
	for _, w := range plan {
		of := map[Level][]dcgm.Short{}
		for _, id := range w.Fields {
			of[GPULevel] = append(of[GPULevel], dcgm.Short(id))
			if f, _ := FieldByID(id); f.perInstance() {
				of[InstanceLevel] = append(of[InstanceLevel], dcgm.Short(id))
			}
		}
		for _, level := range []Level{GPULevel, InstanceLevel} {
			group, there := e.watches.groups[level]
			if !there {
				continue
			}
			if err := e.watch(group, of[level], w.Every); err != nil {
				done := len(e.watches.undo) - before // the newest come first
				for _, undo := range e.watches.undo[:done] {
					if err := undo(); err != nil {
						e.log.Debug("dcgm: undo a watch", zap.Error(err))
					}
				}
				e.watches.undo = e.watches.undo[done:]
				return err
			}
		}
	}
	return nil
}

// oneGroupEach keeps of the plan what one group of each major holds, and returns what is given up for it.
func (e *engine) oneGroupEach(plan []Watch) (kept []Watch, given []uint16) {
	groups, err := dcgm.GetSupportedMetricGroups(e.firstGPU())
	if err != nil {
		return nil, nil
	}
	asked := map[uint]bool{}
	for _, w := range plan {
		for _, id := range w.Fields {
			asked[uint(id)] = true
		}
	}
	most, best := map[uint]int{}, map[uint]dcgm.MetricGroup{}
	for _, g := range groups {
		n := 0
		for _, id := range g.FieldIds {
			if asked[id] {
				n++
			}
		}
		if n > most[g.Major] {
			most[g.Major], best[g.Major] = n, g
		}
	}
	for _, w := range plan {
		k := Watch{Every: w.Every}
		for _, id := range w.Fields {
			had := false
			for _, g := range best {
				had = had || slices.Contains(g.FieldIds, uint(id))
			}
			if had {
				k.Fields = append(k.Fields, id)
			} else {
				given = append(given, id)
			}
		}
		if len(k.Fields) > 0 {
			kept = append(kept, k)
		}
	}
	return kept, given
}

func (e *engine) firstGPU() uint {
	first := ^uint(0)
	for id := range e.identities {
		first = min(first, id)
	}
	return first
}

// retryProfiling asks again for what was refused, when its time has come.
func (e *engine) retryProfiling() {
	if !e.watches.retryAt.IsZero() && !time.Now().Before(e.watches.retryAt) {
		e.watchProfiling()
	}
}
