package remediator

import (
	"cmp"
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/notify"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// tellAgain is how long after its close an incident is told again by a new leader: the one before may have ended in between.
const tellAgain = 10 * time.Minute

// receivers are the places that notices go to, by the addresses of the options.
func receivers(o Options) (out []notify.Receiver, err error) {
	for _, address := range o.Alertmanagers {
		a, err := notify.NewAlertmanager(address, o.Runbooks)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	for _, address := range o.Webhooks {
		w, err := notify.NewWebhook(address)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

// tell sends what an incident came to, if its rule says notify. Each stage is told once.
func (r *remediator) tell(i *incident.Incident) {
	if !i.Plan.Has(policy.Notify) || !r.speaks(i) {
		return
	}
	if i.Group != nil && i.Open() { // its first child was told when it opened
		r.notices.Tell(incidentNotice(i, notify.Updated))
	}
	if i.Open() && i.Group == nil && i.Plan.Mode != policy.Observe { // what only observes is told when it is judged
		r.notices.Tell(incidentNotice(i, notify.Opened))
	}
	switch {
	case i.State == incident.Closed:
		r.notices.Tell(incidentNotice(i, notify.Closed))
	case i.NeedsPerson():
		r.notices.Tell(incidentNotice(i, notify.Waiting))
	}
}

// speaks reports whether people are told of the incident itself, and not of its parent instead.
func (r *remediator) speaks(i *incident.Incident) bool {
	e := r.metrics.engine.Load()
	return e == nil || e.Speaks(i)
}

// tellStanding tells again, after a change of leader, what the one before may not have told.
func (r *remediator) tellStanding(e *incident.Engine) {
	_, all := e.Incidents()
	for _, i := range all {
		if i.Open() || time.Since(i.ClosedAt) < tellAgain {
			r.tell(i)
		}
	}
}

func incidentNotice(i *incident.Incident, stage notify.Stage) notify.Notice {
	f := i.Faults[0]
	n := notify.Notice{
		Key: i.ID + "/" + string(stage), Stage: stage, Incident: i.ID, Cluster: i.Cluster, Node: f.Node, GPU: f.GPU, Signal: f.Signal, Severity: string(f.Sev),
		Policy: i.Plan.Policy, Rule: i.Plan.Rule, State: string(i.State), Detail: f.Event.Data.Evidence.Raw, Began: i.Began(), At: i.StateAt,
	}
	about := "node " + f.Node
	if i.Job != nil {
		n.Namespace, n.Job = i.Job.Namespace, i.Job.Name
		about = fmt.Sprintf("%s %s/%s", i.Job.Kind, i.Job.Namespace, i.Job.Name)
	}
	said := f.Signal + " on " + f.Node
	if g := i.Group; g != nil {
		n.Thread, n.Nodes = g.First, len(g.Nodes())
		if g.FirstJob != nil { // the labels of the first child's alert
			n.Namespace, n.Job = g.FirstJob.Namespace, g.FirstJob.Name
		}
		about, said = g.Domain.String(), fmt.Sprintf("%s on %d nodes, incident %s", f.Signal, n.Nodes, i.ID)
	}
	switch stage {
	case notify.Updated:
		n.Key = fmt.Sprintf("%s/%d", n.Key, doubled(n.Nodes))
		n.At, n.Summary = i.Group.Joined, fmt.Sprintf("%s: %s; rule %s of policy %s", about, said, i.Plan.Rule, i.Plan.Policy)
	case notify.Opened:
		n.At, n.Summary = i.Opened, fmt.Sprintf("%s: %s; rule %s of policy %s takes it up", about, said, i.Plan.Rule, i.Plan.Policy)
	case notify.Waiting:
		if n.Key = fmt.Sprintf("%s/%d/%s", n.Key, i.Round, i.Waiting); i.Wait != nil { // its words may change while it lasts
			n.Key = fmt.Sprintf("%s/%d/%s/%d", i.ID, i.Round, i.Wait.Reason, i.Wait.Since.Unix())
		}
		if g := i.Group; g != nil { // told once for each reason, and again after an answer
			n.Key = fmt.Sprintf("%s/%s/%s", i.ID, stage, strings.Join(g.Reasons, ","))
			if g.Answer != nil {
				n.Key += fmt.Sprintf("/%d", g.Answer.Number)
			}
		}
		n.NeedsPerson, n.Summary = true, fmt.Sprintf("%s: %s; waits: %s", about, said, i.Waiting)
	case notify.Closed:
		n.NeedsPerson, n.At, n.Ended, n.Outcome, n.LostSteps = i.NeedsPerson(), i.ClosedAt, i.ClosedAt, string(i.Outcome), i.LostSteps
		n.Summary = fmt.Sprintf("%s: %s; %s: %s", about, said, i.Outcome, i.Reason)
	}
	return n
}

// listener is who hears of events that no rule acts on; nil if there is no receiver, so that nothing is collected for such an event.
func (r *remediator) listener() func(event.Event, incident.Facts, policy.Judgement) {
	if !r.notices.Heard() {
		return nil
	}
	return r.ignored
}

// ignored tells of an event that no rule acts on, where policy says to tell: a rule of notify alone, or a policy's default from
// severity warning on. What an agent and a gateway find of one onset is told once.
func (r *remediator) ignored(e event.Event, f incident.Facts, d policy.Judgement) {
	if d.Outcome != policy.Tell || d.Rule == "" && !e.Data.Severity.AtLeast(event.Warning) {
		return
	}
	if by, yes := r.onsets.told(e); yes {
		r.o.Log.Info("not told: people know of it by another finding of the same onset", "id", e.ID, "signal", d.Signal, "known", by.ID, "by", by.Data.Cause.Signal())
		return
	}
	t := e.Data.Target
	n := notify.Notice{
		Key: "event/" + e.ID, Stage: notify.Finding, Cluster: r.o.Cluster, Node: t.Node, GPU: t.GPU, Signal: d.Signal, Severity: string(e.Data.Severity),
		Policy: d.Policy, Rule: d.Rule, Detail: e.Data.Evidence.Raw, Began: began(e), At: e.Time,
		Summary: fmt.Sprintf("%s on %s: %s", d.Signal, t.Node, cmp.Or(d.Detail, "rule "+d.Rule+" of policy "+d.Policy)),
	}
	if f.Gang != nil {
		n.Namespace, n.Job = f.Gang.Job.Namespace, f.Gang.Job.Name
	}
	r.notices.Tell(n)
}

// doubled is the greatest power of two that is not above n: a parent that grows is told anew when it has doubled.
func doubled(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

func began(e event.Event) time.Time {
	if e.Data.Onset.IsZero() {
		return e.Time
	}
	return e.Data.Onset
}
