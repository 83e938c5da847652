package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// xid is a valid event of a node's agent.
func xid(node, code string, sev event.Severity, at time.Time) event.Event {
	src := event.Source(demo.ClusterName, node, "xid")
	return event.Event{
		ID: event.NewID(src, code, at.String()), Source: src, Type: event.Fault, Time: at,
		Data: event.Data{
			Target: event.Target{Cluster: demo.ClusterName, Node: node}, Cause: event.Cause{Kind: "xid", Code: code}, Severity: sev, Onset: at,
			Evidence: event.Evidence{Raw: "made by a test"},
		},
	}
}

// say puts an event on a node's subject, as often as it is called: without the message id by which the stream would know it again.
func (r *rig) say(node string, e event.Event) {
	r.Helper()
	raw, err := event.Encode(e)
	r.must(err)
	_, err = r.raw().Request("pitcrew.v1.event."+bus.Token(demo.ClusterName)+"."+bus.Token(node)+".fault", raw, 20*time.Second) // JetStream's receipt
	r.must(err)
}

// raw is a connection that lasts: nobody is let in while the remediator is dead, and who is in stays.
func (r *rig) raw() *nats.Conn {
	r.Helper()
	if r.scene.raw == nil {
		file, err := r.Token("pitcrew-remediator")
		r.must(err)
		token, err := os.ReadFile(file)
		r.must(err)
		who, err := bus.ReadBearer(string(token))
		r.must(err)
		r.scene.raw, err = nats.Connect(r.NATS(), nats.Token(string(token)), nats.CustomInboxPrefix(who.Inbox()),
			nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(), nats.ReconnectWait(200*time.Millisecond))
		r.must(err)
	}
	return r.scene.raw
}

// heard returns when the remediator has dealt with everything said before: it takes events one after the other.
func (r *rig) heard() {
	r.Helper()
	node := r.Box().Nodes()[0].Name
	marker := xid(node, "63", event.Warning, time.Now().Add(-8*24*time.Hour))
	r.say(node, marker)
	r.awaitLine("stale event", marker.ID)
}

// idle checks that the remediator did nothing since.
func (r *rig) idle(j *demo.Job, b before, from int) {
	r.Helper()
	if is := r.opened(b.at); len(is) > 0 {
		r.Errorf("incidents were opened: %s", summary(is))
	}
	for _, l := range strings.Split(r.auditSince(from), "\n") {
		var w struct{ Verb, Object, Incident, What string }
		if json.Unmarshal([]byte(l), &w) == nil && (w.Incident != "" || strings.HasPrefix(w.Object, "Pod") || strings.HasPrefix(w.Object, "Node")) {
			r.Errorf("a write to the cluster: %+v", w)
		}
	}
	r.removedOnce(j, b, 0)
	if n := r.attempt(j); n != b.attempt {
		r.Errorf("attempt %d became %d", b.attempt, n)
	}
	for rank := range demo.WorldSize {
		if err := unbroken(j.Dir, rank, b.lines[rank]); err != nil {
			r.Error(err)
		}
	}
}

func (r *rig) nodeOf(j *demo.Job, index string) string {
	r.Helper()
	p := r.pods(j)[index]
	if p == nil {
		r.Fatalf("index %s has no pod", index)
	}
	return p.Spec.NodeName
}

func TestAWeekOldEventThatIsReplayedDoesNothing(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b, from := r.before(j), r.audited()
	node := r.nodeOf(j, "1")
	old := xid(node, "79", event.Fatal, time.Now().Add(-7*24*time.Hour))
	r.say(node, old)
	r.awaitLine("stale event", old.ID)
	// The same as a condition of a boot that is over, which is history however young it looks.
	young := xid(node, "79", event.Fatal, time.Now())
	r.must(r.Bus().SetCondition(r.ctx, bus.Condition{Node: node, Key: "xid/79", Active: true, Since: young.Time, BootID: "an-earlier-boot", Event: &young}))
	r.heard()
	r.idle(j, b, from)

	r.must(r.Box().RestartProcess("", "remediator", nil)) // a new leader reads conditions and stream anew
	r.say(node, old)
	r.heard()
	r.must(r.steps(j, 20*time.Second))
	r.idle(j, b, from)
	r.must(r.Bus().SetCondition(r.ctx, bus.Condition{Node: node, Key: "xid/79", BootID: "an-earlier-boot"}))
}

func TestAnEventThatComesTwiceOpensOneIncident(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b := r.before(j)
	node := r.nodeOf(j, "1")
	e := xid(node, "63", event.Warning, time.Now())
	e.Data.Count = 3 // from the third on it acts
	again := func() {
		r.Helper()
		for range 3 {
			r.say(node, e)
		}
		n, err := r.Box().Node(node)
		r.must(err)
		r.must(r.Bus().SetCondition(r.ctx, bus.Condition{Node: node, Key: "xid/63 made-by-a-test", Active: true, Since: e.Time, BootID: n.BootID(), Event: &e}))
	}
	again()
	i := r.follow(j, sandbox.Injected{Kind: sandbox.ECCDegrading, Node: node, At: b.at})
	again()
	r.healed(j, b, i)

	// A person takes the node back into service as it is. What was dealt with is not dealt with again, not by a new leader either.
	r.must(cordon(r.Stage, node, false))
	r.must(r.Uncordon(r.ctx, node))
	from := r.audited()
	again()
	r.heard()
	r.must(r.Box().RestartProcess("", "remediator", nil))
	again()
	r.heard()
	if is := r.opened(b.at); len(is) != 1 {
		t.Errorf("one event opened %d incidents: %s", len(is), summary(is))
	}
	if w := r.auditSince(from); strings.Contains(w, `"incident":"inc-`) {
		t.Errorf("writes for an event that was dealt with:\n%s", w)
	}
	r.must(r.Bus().SetCondition(r.ctx, bus.Condition{Node: node, Key: "xid/63 made-by-a-test"}))
}

func TestANodeCannotSpeakForAnother(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b, from := r.before(j), r.audited()
	victim, liar := r.pods(j)["1"], r.spares(j)[0]

	e := xid(victim.Spec.NodeName, "79", event.Fatal, time.Now())
	r.say(liar, e) // about another node, on its own subject: NATS permissions allow no more
	r.awaitLine("event refused", e.ID)

	rank := 1
	for _, target := range []event.Target{ // about itself, but naming what is another's
		{Node: liar, PodUID: string(victim.UID)},
		{Node: liar, Namespace: victim.Namespace, Pod: victim.Name, Rank: &rank},
		{Node: liar, Job: &event.Job{APIVersion: "batch/v1", Kind: "Job", Namespace: demo.Namespace, Name: j.Name, UID: j.UID}},
		{PodUID: string(victim.UID), Namespace: victim.Namespace, Pod: victim.Name},
	} {
		for _, c := range []event.Cause{{Kind: "xid", Code: "79"}, {Kind: "rank", Name: "dead"}} {
			e := xid(liar, "79", event.Fatal, time.Now())
			e.Data.Target, e.Data.Cause, e.Data.Target.Cluster = target, c, demo.ClusterName
			e.ID = event.NewID(e.Source, fmt.Sprint(target, c), time.Now().String())
			r.say(liar, e)
		}
	}
	r.heard()
	r.must(r.steps(j, 20*time.Second))
	r.idle(j, b, from)
}

// The agent is mistaken, or late: the rank itself is the second witness.
func TestAFaultOfARankThatItDeniesDoesNothing(t *testing.T) {
	for _, what := range []string{"dead", "hung"} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			j := r.training(sandbox.LauncherPitcrew)
			b := r.before(j)
			pod, rank := b.pods["1"], 1
			e := xid(pod.Spec.NodeName, "0", event.Fatal, time.Now())
			e.Data.Cause = event.Cause{Kind: "rank", Name: what}
			e.Data.Target.PodUID, e.Data.Target.Rank, e.Data.Target.Attempt = string(pod.UID), &rank, &b.attempt
			r.say(pod.Spec.NodeName, e)
			i := r.reaches(j, b.at, func(i incident.Incident) bool { return !i.Open() })
			if i.Outcome != incident.NotConfirmed {
				t.Errorf("incident %s ended as %s: %s", i.ID, i.Outcome, i.Reason)
			}
			r.must(r.steps(j, 20*time.Second))
			r.removedOnce(j, b, 0)
			for rank := range demo.WorldSize {
				if err := unbroken(j.Dir, rank, b.lines[rank]); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
