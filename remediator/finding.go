package remediator

import (
	"slices"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// EndsAt is the annotation by which a job declares when it will end, in RFC 3339.
const EndsAt = "pitcrew.dev/ends-at"

func itoa(n int) string { return strconv.Itoa(n) }

// finding is what the guards of findings are asked about: the finding as it is known now, and what speaks for and against it. nil: the plan has
// no terms.
func (j *judge) finding(p *incident.Plan, f incident.Facts) *guard.Finding {
	if p.Terms == nil {
		return nil
	}
	i := f.Incident
	fault := i.Faults[max(0, slices.IndexFunc(i.Faults, func(x incident.Fault) bool { return policy.Statistical(x.Event) == p.Terms.Statistical }))]
	e, w := fault.Event, p.Terms.Worth
	x := &guard.Finding{Signal: fault.Signal, Statistical: p.Terms.Statistical, For: time.Duration(p.Terms.For), Margin: w.Margin, Horizon: time.Duration(w.Horizon)}
	// By the source's clock until the event, by ours from then on: no clock has to agree with another.
	x.Lasted = max(0, fault.At.Sub(began(e))) + max(0, f.Now.Sub(arrived(i, fault)))
	if !x.Statistical {
		return x
	}
	if j.said != nil {
		e, x.Heard = j.said.latest(e)
		own, _ := familiesOf(e)
		x.Confirms = append(own, slices.DeleteFunc(j.said.confirms(e), func(n string) bool { return slices.Contains(own, n) })...)
		x.Against = j.said.against(e, f.Gang)
		if e.Data.Evidence.Muted() {
			x.Against = append(x.Against, "a person muted it")
		}
	}
	for _, o := range i.Faults {
		if policy.Statistical(o.Event) && o.Node != fault.Node {
			x.Against = append(x.Against, o.Signal+" names "+named(o.Event.Data.Target))
		}
	}
	slices.Sort(x.Against)
	x.Against = slices.Compact(x.Against)
	x.Loss = policy.LossPerHour(e)
	x.Cost, x.Shown = f.Cost.GPUSeconds(max(i.WorldSize, e.Data.Target.WorldSize), time.Duration(w.Restart)), f.Cost.Shown
	if left, ok := remaining(f.Gang, f.Now); ok {
		x.Horizon = left
	}
	return x
}

// arrived is when a fault first reached us. Its own mark is renewed when a person agrees.
func arrived(i *incident.Incident, f incident.Fault) time.Time {
	if f.EventID == i.Faults[0].EventID && i.Opened.Before(f.Seen) {
		return i.Opened
	}
	return f.Seen
}

// remaining is how long the job will still run, by its own word.
func remaining(g *cluster.Gang, now time.Time) (time.Duration, bool) {
	if g == nil {
		return 0, false
	}
	ends, err := time.Parse(time.RFC3339, g.Annotations[EndsAt])
	if err != nil {
		return 0, false
	}
	return max(0, ends.Sub(now)), true
}
