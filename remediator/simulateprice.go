package remediator

import (
	"maps"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Price is what a statistical finding cost, and what a move would have cost and saved.
type Price struct {
	Lost    float64   `json:"lost_gpu_hours"`    // from the onset to its end, or to the last event
	Restart float64   `json:"restart_gpu_hours"` // that a restart is taken to cost
	Saved   float64   `json:"saved_gpu_hours"`   // of what was lost after the decision, less the restart; 0 if nothing would have been done
	Decided time.Time `json:"decided,omitzero"`  // when the last guard let it pass
	Ended   time.Time `json:"ended,omitzero"`    // zero: it had not ended with the last event
}

// simulatedFinding is a statistical finding of a would-be incident.
type simulatedFinding struct {
	event event.Event
	plan  *incident.Plan
	facts incident.Facts
	until time.Time // when time alone lets a guard pass; zero: it does not
	open  bool      // guards are still asked
	lost  float64   // GPU-seconds, as its source summed them up at the end
}

// ended is the decision on a finding that was over before its guards let it act.
const endedDecision = "ended"

// finding takes note of what a would-be incident was opened for.
func (s *simulated) finding(at int, e event.Event, plan *incident.Plan, facts incident.Facts) {
	delete(s.findings, at)
	s.would[at].Price = nil
	if plan.Terms == nil || !plan.Terms.Statistical {
		return
	}
	s.findings[at] = &simulatedFinding{event: e, plan: plan, facts: facts, open: true}
	world := max(1, e.Data.Target.WorldSize)
	s.would[at].Price = &Price{Restart: facts.Cost.GPUSeconds(world, time.Duration(plan.Terms.Worth.Restart)) / time.Hour.Seconds()}
}

// waits reports whether a would-be incident still waits for the guards of its finding.
func (s *simulated) waits(at int) bool {
	f := s.findings[at]
	return f != nil && f.open
}

// hear puts what an event says on the board, as conditions and gateways' findings would.
func (s *simulated) hear(e event.Event) {
	s.now = e.Time
	t := e.Data.Target
	key := e.Data.Cause.Signal() + " " + t.Subject()
	if t.Rank != nil {
		key += " rank/" + itoa(*t.Rank)
	}
	if t.Job != nil && t.Job.UID != "" && t.PodUID != "" {
		known := func(m cluster.Member) bool { return m.PodUID == t.PodUID }
		if all := s.members[t.Job.UID]; !slices.ContainsFunc(all, known) {
			s.members[t.Job.UID] = append(slices.Clip(all), cluster.Member{PodUID: t.PodUID, Node: t.Node})
		}
	}
	active := e.Type == event.Fault || e.Type == event.Anomaly
	if !active && e.Type != event.Recovery {
		return
	}
	if !active {
		s.ends(e)
	}
	if gw := event.GatewayOf(e.Source); gw != "" {
		c := bus.Condition{Gateway: gw, Key: key, Active: active}
		if active {
			c.Event = &e
		}
		s.said.setFound(c, time.Time{})
		return
	}
	s.said.set(bus.Condition{Node: t.Node, Key: key, Active: active, Since: e.Time, Event: &e})
}

// ends notes the end of a finding, and what it cost in all by its source's sum.
func (s *simulated) ends(e event.Event) {
	for at, f := range s.findings {
		p := s.would[at].Price
		if p.Ended.IsZero() && f.event.Data.Cause.Signal() == e.Data.Cause.Signal() && sameRank(f.event.Data.Target, e.Data.Target) {
			p.Ended = e.Time
			if e.Data.Evidence.LostGPUSeconds > 0 {
				f.lost = e.Data.Evidence.LostGPUSeconds
				if event.GatewayOf(e.Source) == "" {
					f.lost *= float64(max(1, e.Data.Target.WorldSize))
				}
			}
		}
	}
}

// ripen asks the guards again about findings that wait: when time alone lets one pass, and at each event.
func (s *simulated) ripen(now time.Time) {
	for _, at := range slices.Sorted(maps.Keys(s.findings)) {
		f := s.findings[at]
		if !f.open {
			continue
		}
		if !f.until.IsZero() && f.until.Before(now) {
			s.ask(at, f, f.until)
		}
		if f.open {
			s.ask(at, f, now)
		}
	}
	s.now = now
}

// ask judges a finding at a time, as if its source was heard then.
func (s *simulated) ask(at int, f *simulatedFinding, now time.Time) {
	w, i := &s.would[at], s.all[at]
	if now.Before(i.Opened) {
		return
	}
	s.now = now
	for _, x := range s.said.found {
		if x.active {
			x.at = now
		}
	}
	if !w.Price.Ended.IsZero() && !w.Price.Ended.After(now) {
		f.open = false
		i.State, i.ClosedAt = incident.Closed, w.Price.Ended
		w.Decision, w.Refused = endedDecision, "it ended before anything would have been done; "+w.Refused
		return
	}
	facts := f.facts
	if g := *facts.Gang; g.Job.UID != "" {
		g.Members = s.members[g.Job.UID]
		facts.Gang = &g
	}
	facts.Now, facts.Seen, facts.Incident = now, now, i
	verdicts := s.judge.Guards(f.plan, facts, &s.book)
	s.judged(w, i, f.plan, verdicts)
	f.until = time.Time{}
	refused := guard.Blocking(verdicts)
	for _, v := range refused {
		if f.until.IsZero() || v.Until.Before(f.until) {
			f.until = v.Until
		}
		f.open = f.open && incident.Passes(v.Guard)
	}
	if len(refused) == 0 {
		f.open, w.Price.Decided = false, now
		i.Opened = now // from now on it lasts as others do
	}
}

// finish lets the last findings ripen, and prices all of them.
func (s *simulated) finish() {
	last, due := s.now, s.now
	for _, f := range s.findings {
		if f.open && f.until.After(due) {
			due = f.until
		}
	}
	if due.After(last) {
		s.ripen(due)
	}
	for at, f := range s.findings {
		p := s.would[at].Price
		end := p.Ended
		if end.IsZero() {
			end = last
		}
		rate := policy.LossPerHour(f.event)
		p.Lost = max(0, rate*end.Sub(began(f.event)).Hours()/time.Hour.Seconds())
		if f.lost > 0 {
			p.Lost = f.lost / time.Hour.Seconds()
		}
		if took := end.Sub(began(f.event)); !p.Decided.IsZero() && took > 0 {
			p.Saved = p.Lost*max(0, end.Sub(p.Decided).Hours())/took.Hours() - p.Restart
		}
	}
}
