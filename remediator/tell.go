package remediator

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/notify"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/rules"
)

// tellAgain is how long after its close an incident is told again by a new leader: the one before may have ended in between.
const tellAgain = 10 * time.Minute

// receivers are the places that notices go to, by the addresses and the file of the options.
func receivers(o Options, threads notify.Store) (out []notify.Receiver, err error) {
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
	if o.Channels != "" {
		more, err := notify.Channels(o.Channels, o.Runbooks, threads)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
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
	case i.Group == nil && i.Plan.Mode != policy.Observe:
		r.notices.Tell(incidentNotice(i, notify.Progress))
	}
}

// speaks reports whether people are told of the incident itself, and not of its parent instead.
func (r *remediator) speaks(i *incident.Incident) bool {
	e := r.metrics.engine.Load()
	return e == nil || e.Speaks(i)
}

// recordsWithin is how long a new leader waits for the record of notices. Healing does not wait longer.
const recordsWithin = 5 * time.Second

// incidents is what resume needs of incident.Engine.
type incidents interface {
	Start(ctx context.Context) error
	Incidents() (open, all []*incident.Incident)
}

// resume starts the open incidents and reports, after a change of leader, what the leader before may not have reported. The record of
// delivered notices is read first, because incidents report their steps as soon as they are started.
func (r *remediator) resume(ctx context.Context, e incidents) error {
	owed := r.delivered(ctx)
	if err := r.retry(ctx, "the open incidents", e.Start); err != nil {
		return err
	}
	r.tellStanding(e, owed)
	return nil
}

// delivered reads what an earlier leader delivered, which is not sent again. It returns the incidents whose close a receiver is owed.
// Without a receiver nothing is read.
func (r *remediator) delivered(ctx context.Context) (owed map[string]bool) {
	if !r.notices.Heard() {
		return nil
	}
	listing, cancel := context.WithTimeout(ctx, recordsWithin)
	defer cancel()
	told, err := r.told.List(listing)
	if err != nil && ctx.Err() == nil {
		r.o.Log.Warn("the record of notices cannot be read; some may come twice, with the same id", "error", err)
	}
	owed = map[string]bool{}
	for _, c := range told {
		r.notices.Delivered(c.Value.Deliveries)
		owed[c.Value.Incident] = r.notices.Owes(c.Value.Deliveries)
	}
	return owed
}

// tellStanding reports how each incident is now. An incident that closed while a receiver was away is reported as closed, however long
// ago that was.
func (r *remediator) tellStanding(e incidents, owed map[string]bool) {
	_, all := e.Incidents()
	for _, i := range all {
		recorded := i.ID
		if i.Group != nil {
			recorded = i.Group.First // a parent continues in the thread of its first child
		}
		if i.Open() || time.Since(i.ClosedAt) < tellAgain || owed[recorded] {
			r.tell(i)
		}
	}
}

// keep records that a receiver took a notice.
func (r *remediator) keep(ctx context.Context, d notify.Delivery) {
	if err := notify.Keep(ctx, r.told, d); err != nil {
		r.o.Log.Warn("record that a notice was delivered; after a change of leader it may come again", "to", d.Receiver, "key", d.Key, "error", err)
	}
}

func incidentNotice(i *incident.Incident, stage notify.Stage) notify.Notice {
	f := i.Faults[0]
	n := notify.Notice{
		Key: i.ID + "/" + string(stage), Stage: stage, Incident: i.ID, Cluster: i.Cluster, Node: f.Node, GPU: f.GPU, Signal: f.Signal, Severity: string(f.Sev),
		Policy: i.Plan.Policy, Rule: i.Plan.Rule, State: string(i.State), Detail: f.Event.Data.Evidence.Raw, Began: i.Began(), At: i.StateAt,
	}
	n.Broken = titled(f.Signal) + " on " + f.Node
	if i.Job != nil {
		n.Namespace, n.Job = i.Job.Namespace, i.Job.Name
		n.Broken += fmt.Sprintf(", %s %s/%s", i.Job.Kind, i.Job.Namespace, i.Job.Name)
	}
	if g := i.Group; g != nil {
		n.Thread, n.Nodes = g.First, len(g.Nodes())
		if g.FirstJob != nil { // the labels of the first child's alert
			n.Namespace, n.Job = g.FirstJob.Namespace, g.FirstJob.Name
		}
		n.Broken = fmt.Sprintf("%s: %s on %d nodes, incident %s", g.Domain, titled(f.Signal), n.Nodes, i.ID)
	}
	n.Doing = fmt.Sprintf("Rule %s of policy %s: %s", i.Plan.Rule, i.Plan.Policy, doing[i.State])
	switch stage {
	case notify.Updated:
		n.Key = fmt.Sprintf("%s/%d", n.Key, doubled(n.Nodes))
		n.At = i.Group.Joined
	case notify.Opened:
		n.At = i.Opened
	case notify.Progress:
		n.Key = fmt.Sprintf("%s/%d/%s", n.Key, i.Round, i.State)
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
		n.NeedsPerson, n.Doing = true, "Pitcrew waits: "+i.Waiting
	case notify.Closed:
		n.NeedsPerson, n.At, n.Ended, n.Outcome, n.LostSteps = i.NeedsPerson(), i.ClosedAt, i.ClosedAt, string(i.Outcome), i.LostSteps
		n.Doing = fmt.Sprintf("Closed as %s: %s", i.Outcome, i.Reason)
	}
	if n.NeedsPerson {
		n.Person = asks(i)
	}
	return n
}

// doing is what is being done in each state, in words.
var doing = map[incident.State]string{
	incident.Detected:     "the job's live state is being read",
	incident.Correlated:   "a plan is being made",
	incident.Planned:      "the plan is made, and its guards are being asked",
	incident.Approved:     "the guards allow the plan, and it begins",
	incident.Cordoned:     "faulty nodes get no new pods, and the checkpoint is being decided",
	incident.Checkpointed: "the checkpoint is decided, and a node is being chosen",
	incident.Placed:       "a node is chosen, and the pod is being moved",
	incident.Restarted:    "the next attempt is written, and ranks are loading",
	incident.Resumed:      "every rank has loaded, and their first step is awaited",
	incident.Verified:     "every rank steps again, and the incident is being closed",
}

// asks is what a person is needed for.
func asks(i *incident.Incident) string {
	switch show := "`pitcrew incident show " + i.ID + "`"; {
	case i.Open() && i.Remedy() != "":
		return "it ends by " + i.Remedy()
	case i.Outcome == incident.Observed:
		return "the policy only observes; " + show + " has what it would have done"
	case len(i.Cordons) > 0:
		return "repair " + strings.Join(i.Cordons, ", ") + "; " + show
	default:
		return "see " + show
	}
}

// xids are the names of the kernel's codes.
var xids = sync.OnceValue(func() *rules.Tables {
	t, err := rules.Builtin()
	if err != nil {
		return nil
	}
	return t
})

// titled is a signal with its name in NVIDIA's catalog, if it has one.
func titled(signal string) string {
	code, isXid := strings.CutPrefix(signal, "xid/")
	number, err := strconv.Atoi(code)
	if t := xids(); isXid && err == nil && t != nil {
		if x := t.XID(number); x.Name != "" {
			return signal + " (" + x.Name + ")"
		}
	}
	return signal
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
		Broken: titled(d.Signal) + " on " + t.Node,
		Doing:  "Nothing is being done: " + cmp.Or(d.Detail, "rule "+d.Rule+" of policy "+d.Policy+" only notifies"),
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
