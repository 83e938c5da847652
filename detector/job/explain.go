package job

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// say makes the event that opens a finding.
func (x *deviation) say(now time.Time) event.Event {
	e := x.role.a.e
	src := event.GatewaySource(e.o.Cluster, e.o.Gateway, "detector")
	t := x.target()
	cause := causes[x.kind]
	rank := "-"
	if t.Rank != nil {
		rank = strconv.Itoa(*t.Rank)
	}
	k := x.role.a.key
	return event.Event{
		// The same onset has the same id from whichever gateway says it.
		ID:     event.NewID("//"+e.o.Cluster+"/job/"+k.job, strconv.Itoa(k.attempt), cause.Signal(), x.role.name, rank, strconv.FormatInt(x.step, 10)),
		Source: src, Type: event.Anomaly, Time: now, Subject: x.subject(t),
		Data: event.Data{Target: t, Cause: cause, Severity: severities[x.kind], Evidence: x.evidence(now, event.StateOpen), Onset: x.onset},
	}
}

// key names the finding to people.
func (x *deviation) key() string {
	a, signal := x.role.a, causes[x.kind].Signal()
	switch {
	case x.member != nil:
		return signal + " " + a.subject("rank", strconv.Itoa(x.member.rank))
	case x.role.name != "":
		return signal + " " + a.subject("role", plain(x.role.name))
	}
	return signal + " " + a.subject()
}

var severities = map[kind]event.Severity{straggler: event.Warning, imbalance: event.Warning, absent: event.Warning, slowdown: event.Info}

// target is the rank as it was last heard of, or the job.
func (x *deviation) target() event.Target {
	a := x.role.a
	t := event.Target{Cluster: a.e.o.Cluster, WorldSize: a.world, Attempt: a.told(), Job: jobOf(a.key)}
	m := x.member
	if m == nil {
		t.PodUID = x.role.members[0].target.PodUID // by which the job is found: its own name is not known here
		return t
	}
	own := m.target
	own.Cluster, own.Job, own.WorldSize, own.Attempt = t.Cluster, t.Job, t.WorldSize, t.Attempt
	return own
}

func (x *deviation) subject(t event.Target) string {
	if x.member == nil && t.Job != nil {
		return "job/" + t.Job.UID
	}
	return t.Subject()
}

func (x *deviation) evidence(now time.Time, state event.State) event.Evidence {
	f, s := x.seen[x.signal], table[x.signal]
	ev := event.Evidence{
		Signal: s.says, Unit: "s", Baseline: fmt.Sprintf("peers(%d)", f.Count), State: state, DurationS: round3(now.Sub(x.onset).Seconds()),
		BaselineSamples: x.role.rounds, Raw: x.words(), LostGPUSeconds: round3(x.lost),
	}
	if x.kind == absent {
		ev.Signal, ev.WindowS = semconv.TrainStep, round3(now.Sub(x.onset).Seconds())
		ev.Value, ev.Expected, ev.Unit = num(float64(x.member.step)), num(float64(x.role.front)), "{step}"
		return ev
	}
	if x.member == nil {
		ev.Ratio, ev.Baseline = num(f.Ratio), "self"
		return ev
	}
	v, want := x.now(x.signal)
	ev.Score, ev.Ratio = num(f.Score), num(v/want)
	ev.Value, ev.Expected = num(v-s.floor), num(max(0, want-s.floor))
	ev.PromQL, ev.Samples = x.promQL(), x.samples()
	for k, on := range x.showing {
		if o := x.seen[k]; on != 0 && Signal(k) != x.signal {
			v, want := x.now(Signal(k))
			ev.Signals = append(ev.Signals, event.Witness{
				Signal: table[k].says, Onset: time.Unix(0, o.Onset).UTC(), State: event.StateOpen, Score: finite(o.Score),
				Value: num(v - table[k].floor), Expected: num(max(0, want-table[k].floor)), Unit: "s",
			})
		}
	}
	return ev
}

// words say it to a person.
func (x *deviation) words() string {
	r := x.role
	who := "the job"
	if r.name != "" {
		who += ", role " + r.name
	}
	if x.member == nil {
		return fmt.Sprintf("%s: most of %d ranks became slow together at step %d (%s ×%.2f): look at network, storage or schedule, not at a rank",
			who, len(r.members), x.step, x.signal, x.seen[x.signal].Ratio)
	}
	f, floor := x.seen[x.signal], table[x.signal].floor
	v, want := x.now(x.signal)
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d of %s ", x.member.rank, who)
	switch x.kind {
	case absent:
		fmt.Fprintf(&b, "is silent since step %d while %d peers are at step %d", x.member.step, f.Count, r.front)
		return b.String()
	case imbalance:
		fmt.Fprintf(&b, "was slow from the start: %s %.4g s, peers %.4g s (×%.2f)", x.signal, v-floor, want-floor, v/want)
	default:
		fmt.Fprintf(&b, "fell behind at step %d: %s %.4g s, expected %.4g s (×%.2f)", x.step, x.signal, v-floor, max(0, want-floor), v/want)
	}
	fmt.Fprintf(&b, " by %d peers; suspect %d; %.3g GPU-seconds lost so far", f.Count, max(1, f.Suspect), x.lost)
	return b.String()
}

// now is what the rank took in the last round that it was in, and what it would have taken if it had kept its place among its peers:
// their middle there, times its own ratio to it before the onset as far as such rounds are kept.
func (x *deviation) now(s Signal) (value, expected float64) {
	r, f := x.role, x.seen[s]
	ratio := 1.0 // of an imbalance: what its peers take
	if x.kind == straggler && f.Peers > 0 && f.Ratio > 0 {
		ratio = f.Value / f.Peers / f.Ratio
	}
	value, expected = f.Value, f.Peers*ratio
	before, newest := r.before[:0], math.NaN()
	for i := len(r.recent) - 1; i >= 0; i-- {
		p := r.recent[i]
		v, o := p.values[s][x.member.slot], r.others(p, x.member, s)
		if math.IsNaN(v) || math.IsNaN(o) {
			continue
		}
		if math.IsNaN(newest) {
			value, newest = v, o
		}
		if p.step < x.step {
			before = append(before, v/o)
		}
	}
	if r.before = before; x.kind == straggler && len(before) >= 3 {
		slices.Sort(before)
		ratio = before[len(before)/2]
	}
	if !math.IsNaN(newest) {
		expected = newest * ratio
	}
	return value, expected
}

// promQL fires on much the same, but knows no rank's own constant offset.
func (x *deviation) promQL() string {
	sel := fmt.Sprintf("pitcrew_attempt=%q", strconv.Itoa(x.role.a.key.attempt))
	if j := jobOf(x.role.a.key); j != nil {
		sel += fmt.Sprintf(",pitcrew_job_uid=%q", j.UID)
	} else {
		sel += fmt.Sprintf(",k8s_pod_uid=%q", x.member.target.PodUID)
	}
	if x.role.name != "" {
		sel += fmt.Sprintf(",pitcrew_role=%q", x.role.name)
	}
	v, want := x.now(x.signal)
	half := math.Sqrt(max(1.25, v/want))
	m := table[x.signal].metric(sel)
	return fmt.Sprintf("max by (pitcrew_rank) (%s) > %.3g * scalar(quantile(0.5, %s))", m, half, m)
}

// samples are the rank's values of the last rounds.
func (x *deviation) samples() (out []event.Sample) {
	for _, r := range x.role.recent {
		if v := r.values[x.signal][x.member.slot]; !math.IsNaN(v) {
			out = append(out, event.Sample{S: round3(r.at.Sub(x.onset).Seconds()), V: v - table[x.signal].floor})
		}
	}
	return out[max(0, len(out)-event.MaxSamples):]
}

// recovered says that a finding is over.
func (r *role) recovered(now time.Time, x *deviation, why string) {
	r.a.open--
	if x.report == nil {
		r.a.e.counts.Brief++
		r.fresh = slices.DeleteFunc(r.fresh, func(o *deviation) bool { return o == x })
		return
	}
	ev := x.evidence(now, event.StateCleared)
	ev.Samples = nil
	ev.Raw = why + fmt.Sprintf("; %.3g GPU-seconds were lost", x.lost)
	r.a.e.close(now, x.report, ev)
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }

func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}
