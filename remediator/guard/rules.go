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

// breaker counts the nodes that Pitcrew holds, by their taint or by an intent that may not be visible yet. A node that is held
// already costs nothing more.
func breaker(s State, a Action, now time.Time) Verdict {
	taken, total := quarantined(s, a.Policy)
	limit := a.Policy.Spec.Guards.MaxNodesQuarantined.Of(total)
	v := Verdict{Allowed: true, Current: strconv.Itoa(len(taken)), Limit: strconv.Itoa(limit),
		Detail: fmt.Sprintf("nodes cordoned by Pitcrew; the limit is %s of %d", a.Policy.Spec.Guards.MaxNodesQuarantined, total)}
	if taken[a.Node.Name] {
		v.Detail = "the node is quarantined already"
		return v
	}
	if len(taken) >= limit {
		v.Allowed, v.Tripped = false, true
		return v
	}
	var last time.Time
	for _, i := range s.Incidents {
		if i.Refused.After(last) && !i.Refused.After(now) {
			last = i.Refused
		}
	}
	if until := last.Add(BreakerHold); !last.IsZero() && now.Before(until) {
		v.Allowed, v.Until = false, until
		v.Detail = fmt.Sprintf("below the limit, but it refused a cordon %s ago and stays open for %s", since(now, last), policy.Duration(BreakerHold))
	}
	return v
}

func quarantined(s State, p policy.Policy) (taken map[string]bool, total int) {
	scope := map[string]bool{}
	taken = map[string]bool{}
	for _, n := range s.Nodes {
		if _, ok := p.Spec.AppliesTo.Includes(n.Node); !ok || scope[n.Name] {
			continue
		}
		scope[n.Name] = true
		if n.Quarantined {
			taken[n.Name] = true
		}
	}
	for _, i := range s.Incidents {
		if !i.Open {
			continue // what a closed incident left behind shows in the node's taint
		}
		mine := map[string]bool{}
		for _, d := range i.Done {
			switch d.Verb {
			case policy.Cordon:
				mine[d.Node] = true
			case policy.Uncordon:
				delete(mine, d.Node)
			}
		}
		for n := range mine {
			if scope[n] {
				taken[n] = true
			}
		}
	}
	return taken, len(scope)
}

// concurrent is only asked of an incident that does not act yet, so every one that does is another.
func concurrent(s State, a Action, _ time.Time) Verdict {
	n := 0
	for _, i := range s.Incidents {
		if i.Open && i.Acting() {
			n++
		}
	}
	limit := a.Policy.Spec.Guards.MaxConcurrentIncidents
	return Verdict{Allowed: n < limit, Current: strconv.Itoa(n), Limit: strconv.Itoa(limit), Detail: "other incidents acting"}
}

// cooldown asks when another incident last did the same to the node, which is what a loop looks like. Not when anything was done:
// a rank restarted in place must not keep a node in service whose GPU falls off the bus five minutes later.
func cooldown(s State, a Action, now time.Time) Verdict {
	limit := time.Duration(a.Policy.Spec.Guards.CooldownPerNode)
	v := Verdict{Allowed: true, Limit: policy.Duration(limit).String(), Current: "never"}
	if a.Node.Name == "" {
		return v
	}
	var last time.Time
	var by string
	for _, i := range s.Incidents {
		if i.ID == a.Incident {
			continue
		}
		for _, d := range i.Done {
			if d.Node == a.Node.Name && d.Verb == a.Verb && d.At.After(last) {
				last, by = d.At, i.ID
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
	from := now.Add(-time.Duration(b.Per))
	used := 0
	var times []time.Time
	for _, i := range s.Incidents {
		n := 0
		for _, d := range i.Done {
			if d.Verb.Disruptive() && d.At.After(from) {
				n++
				times = append(times, d.At)
			}
		}
		if i.Open && i.Acting() {
			n = max(n, i.Planned)
		}
		used += n
	}
	want := max(a.Disruptive, 1)
	v := Verdict{Allowed: used+want <= b.Count, Current: strconv.Itoa(used), Limit: fmt.Sprintf("%d per %s", b.Count, b.Per),
		Detail: fmt.Sprintf("%d more wanted", want)}
	if !v.Allowed {
		v.Until = freed(times, used+want-b.Count, time.Duration(b.Per))
	}
	return v
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
	for _, i := range s.Incidents {
		if i.JobUID == "" || i.JobUID != a.Job.UID || i.ID == a.Incident {
			continue // its own restart, seen again after a crash, is the one being asked about
		}
		for _, d := range i.Done {
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
