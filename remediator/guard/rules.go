package guard

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/remediator/policy"
)

func killSwitch(s State, _ Action, _ time.Time) Verdict {
	if !s.Kill.On {
		return Verdict{Allowed: true, Current: "off", Limit: "off"}
	}
	return Verdict{Current: "on", Limit: "off", Detail: cmp.Or(s.Kill.Reason, "no reason given")}
}

// held gives the reason of a hold. "false" is what people write to take one off without removing the annotation.
func held(annotations map[string]string) (string, bool) {
	v, ok := annotations[HoldAnnotation]
	if !ok || v == "false" {
		return "", false
	}
	return cmp.Or(v, "no reason given"), true
}

func hold(_ State, a Action, _ time.Time) Verdict {
	if why, ok := held(a.Node.Annotations); ok {
		return Verdict{Detail: "node " + a.Node.Name + " is held: " + why}
	}
	if why, ok := held(a.Job.Annotations); ok {
		return Verdict{Detail: "job " + a.Job.Namespace + "/" + a.Job.Name + " is held: " + why}
	}
	return Verdict{Allowed: true}
}

func optIn(_ State, a Action, _ time.Time) Verdict {
	own := cmp.Or(a.Job.Annotations[OptInLabel], a.Job.Labels[OptInLabel])
	got := cmp.Or(own, a.Job.NamespaceLabels[OptInLabel])
	v := Verdict{Allowed: got == OptInValue || got == "enabled", Current: cmp.Or(got, "unset"), Limit: OptInValue}
	switch {
	case v.Allowed:
	case own != "":
		v.Detail = fmt.Sprintf("job %s/%s says %s=%s itself", a.Job.Namespace, a.Job.Name, OptInLabel, own)
	default:
		v.Detail = fmt.Sprintf("to let Pitcrew act on its jobs: kubectl label namespace %s %s=%s", cmp.Or(a.Job.Namespace, "NAME"), OptInLabel, OptInValue)
	}
	return v
}

func blackout(_ State, a Action, now time.Time) Verdict {
	for _, w := range a.Policy.Spec.Guards.Blackout {
		if until, in := w.Contains(now); in {
			return Verdict{Detail: "in the window " + w.String(), Until: until}
		}
	}
	return Verdict{Allowed: true}
}

// breaker counts the nodes that Pitcrew holds, by their taint or by a grant that no taint shows yet. A node that is held already costs
// nothing more. All nodes that the plan wants are judged together.
func breaker(s State, a Action, now time.Time) Verdict {
	limit := a.Policy.Spec.Guards.MaxNodesQuarantined.Of(s.Total)
	wants := a.Wants
	if len(wants) == 0 {
		wants = []Place{{Node: a.Node.Name}}
	}
	if own := s.own(a.Incident); own.Open() && own.Active && !slices.ContainsFunc(wants, func(p Place) bool { return !own.allows(p.Node) }) {
		return Verdict{Allowed: true, Detail: "the incident was let in with its nodes"}
	}
	taken := s.taken()
	v := Verdict{Allowed: true, Current: strconv.Itoa(len(taken)), Limit: strconv.Itoa(limit),
		Detail: fmt.Sprintf("nodes cordoned by Pitcrew; the limit is %s of %d", a.Policy.Spec.Guards.MaxNodesQuarantined, s.Total)}
	wants = slices.DeleteFunc(slices.Clone(wants), func(p Place) bool { _, have := taken[p.Node]; return have })
	if len(wants) == 0 {
		v.Detail = "the node is quarantined already"
		return v
	}
	if len(taken)+len(wants) > limit { // a plan that wants more than what is left is refused; that alone does not stop smaller ones
		v.Allowed, v.Tripped = false, len(taken) >= limit
		v.Detail += fmt.Sprintf("; %d more wanted", len(wants))
		return v
	}
	for _, d := range domains(a.Policy) {
		if n, value := d.count(taken, wants); n > d.max {
			v.Allowed = false // other domains are not concerned
			v.Current, v.Limit = strconv.Itoa(n), strconv.Itoa(d.max)
			v.Detail = fmt.Sprintf("nodes of %s %s would be cordoned by Pitcrew", d.name, value)
			return v
		}
	}
	if until := s.Tripped.Add(BreakerHold); !s.Tripped.IsZero() && !s.Tripped.After(now) && now.Before(until) {
		v.Allowed, v.Until = false, until
		v.Detail = fmt.Sprintf("below the limit, but it refused a cordon %s ago and stays open for %s", since(now, s.Tripped), policy.Duration(BreakerHold))
	}
	return v
}

// taken are the nodes within the policy's scope that Pitcrew holds, or that an incident which acts was granted. What this incident was granted
// is among them: it costs nothing more, also while the breaker stays open for others. An incident that waits keeps only what it cordoned.
func (s State) taken() map[string]Place {
	taken := map[string]Place{}
	for _, p := range s.Quarantined {
		taken[p.Node] = p
	}
	for _, g := range s.Grants {
		if !g.Open() {
			continue // what a returned grant left behind shows in the node's taint
		}
		var cordons []string
		if !g.Active {
			cordons = g.Cordons()
		}
		for _, p := range g.Nodes {
			if (g.Active || slices.Contains(cordons, p.Node)) && (s.InScope == nil || s.InScope(p.Node)) {
				p.Job = g.Job
				taken[p.Node] = p
			}
		}
	}
	return taken
}

// domain is a limit on nodes that share a failure domain.
type domain struct {
	name string
	of   func(Place) string
	max  int
}

func (d domain) count(taken map[string]Place, wants []Place) (n int, value string) {
	for _, w := range wants {
		at := d.of(w)
		if at == "" {
			continue
		}
		k := 0
		for _, p := range taken {
			if d.of(p) == at {
				k++
			}
		}
		for _, p := range wants {
			if d.of(p) == at {
				k++
			}
		}
		if k > n {
			n, value = k, at
		}
	}
	return n, value
}

// domains are the policy's limits per failure domain.
func domains(p policy.Policy) (out []domain) {
	q := p.Spec.Guards.MaxNodesQuarantined
	for _, d := range []domain{
		{"rack", func(p Place) string { return p.Rack }, q.PerRack},
		{"pool", func(p Place) string { return p.Pool }, q.PerPool},
		{"job", func(p Place) string { return p.Job }, q.PerJob},
	} {
		if d.max > 0 {
			out = append(out, d)
		}
	}
	return out
}

// concurrent counts the other incidents that act. One that waits for a node, a person or a window has given its place back.
func concurrent(s State, a Action, _ time.Time) Verdict {
	n := 0
	for _, g := range s.Grants {
		if g.Open() && g.Active && g.Incident != a.Incident && counts(g, a.Policy) {
			n++
		}
	}
	limit := a.Policy.Spec.Guards.MaxConcurrentIncidents
	own := s.own(a.Incident)
	return Verdict{Allowed: n < limit || own.Open() && own.Active, Current: strconv.Itoa(n), Limit: strconv.Itoa(limit), Detail: "other incidents acting"}
}

// counts reports whether another incident's grant counts against the policy of an action: those of the same policy, unless the policy counts
// the whole cluster.
func counts(g Grant, p policy.Policy) bool {
	return p.Spec.Guards.Scope == policy.PerCluster || g.Policy == p.Metadata.Name
}

// cooldown asks when another incident last did the same to the node, which is what a loop looks like. Not when anything was done:
// a rank restarted in place must not keep a node in service whose GPU falls off the bus five minutes later. Several gangs on one faulty
// node are several incidents of one cause: what one of them did is no repetition.
func cooldown(s State, a Action, now time.Time) Verdict {
	limit := time.Duration(a.Policy.Spec.Guards.CooldownPerNode)
	v := Verdict{Allowed: true, Limit: policy.Duration(limit).String(), Current: "never"}
	if a.Node.Name == "" {
		return v
	}
	var last time.Time
	var by string
	for _, g := range s.Grants {
		if g.Incident == a.Incident || g.sameCause(a.Causes) {
			continue
		}
		if len(a.Wants) > 0 && !slices.ContainsFunc(g.Did, func(d Done) bool { return d.Verb == policy.Cordon && d.Node == a.Node.Name }) {
			continue // what was done in place is no repetition of leaving the node
		}
		for _, d := range g.Did {
			if d.Node == a.Node.Name && d.Verb == a.Verb && d.At.After(last) {
				last, by = d.At, g.Incident
			}
		}
	}
	if last.IsZero() {
		return v
	}
	v.Current, v.Detail = since(now, last), "since incident "+by+" did the same to the node"
	if until := last.Add(limit); now.Before(until) {
		v.Allowed, v.Until = false, until
	}
	return v
}

// budget charges an incident's whole plan when it starts: an open one for what it was admitted with, a closed one for what it did.
func budget(s State, a Action, now time.Time) Verdict {
	b := a.Policy.Spec.Guards.ActionBudget
	used, times := charged(s.Grants, a.Policy, a.Incident, now)
	want := max(a.Disruptive, 1)
	v := Verdict{Allowed: used+want <= b.Count, Current: strconv.Itoa(used), Limit: fmt.Sprintf("%d per %s", b.Count, b.Per),
		Detail: fmt.Sprintf("%d more wanted", want)}
	if !v.Allowed {
		v.Until = freed(times, used+want-b.Count, time.Duration(b.Per))
	}
	return v
}

// BudgetUsed is how much of the policy's action budget is used now.
func BudgetUsed(grants []Grant, p policy.Policy, now time.Time) int {
	used, _ := charged(grants, p, "", now)
	return used
}

func charged(grants []Grant, p policy.Policy, without string, now time.Time) (used int, times []time.Time) {
	from := now.Add(-time.Duration(p.Spec.Guards.ActionBudget.Per))
	for _, g := range grants {
		if g.Incident == without || !counts(g, p) {
			continue
		}
		did := g.disruptions(from)
		times = append(times, did...)
		n := len(did)
		if g.Open() && (g.Active || len(g.Did) > 0) { // one that waits and did nothing charges nothing
			n = max(n, g.Charged)
		}
		used += n
	}
	return used, times
}

// freed is when n of the actions will have left the window, zero if there are not so many.
func freed(times []time.Time, n int, per time.Duration) time.Time {
	if n < 1 || n > len(times) {
		return time.Time{}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times[n-1].Add(per)
}

func eventAge(_ State, a Action, now time.Time) Verdict {
	limit := time.Duration(a.Policy.Spec.Guards.MaxEventAge)
	v := Verdict{Limit: policy.Duration(limit).String(), Current: "unknown"}
	if a.Seen.IsZero() {
		v.Detail = "nobody says when it was seen; ask the node"
		return v
	}
	age := now.Sub(a.Seen)
	v.Current, v.Allowed = since(now, a.Seen), -limit <= age && age <= limit
	switch {
	case age > limit:
		v.Detail = "a stale event never acts; ask the node whether it still holds"
	case age < -limit: // from there it would stay fresh for as long as it likes
		v.Detail = "it was seen in the future, so a clock is wrong; ask the node whether it holds"
	}
	return v
}

func perJob(s State, a Action, now time.Time) Verdict {
	limit := policy.DefaultMaxPerJob
	if a.With != nil && a.With.MaxPerJob > 0 {
		limit = a.With.MaxPerJob
	}
	var times []time.Time
	for _, g := range s.Grants {
		if g.Job == "" || g.Job != a.Job.UID || g.Incident == a.Incident {
			continue // its own restart, seen again after a crash, is the one being asked about
		}
		for _, d := range g.Did {
			if d.Verb == policy.RestartJob && d.At.After(now.Add(-JobWindow)) {
				times = append(times, d.At)
			}
		}
	}
	v := Verdict{Allowed: len(times) < limit, Current: strconv.Itoa(len(times)), Limit: fmt.Sprintf("%d per %s", limit, policy.Duration(JobWindow)),
		Detail: "restarts of the job"}
	if !v.Allowed {
		v.Until = freed(times, len(times)+1-limit, JobWindow)
	}
	return v
}

// since is an age in whole seconds.
func since(now, then time.Time) string {
	return policy.Duration(now.Sub(then).Round(time.Second)).String()
}
