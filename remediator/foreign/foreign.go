// Package foreign takes in what other programs say of a node (node-problem-detector, NVSentinel, a cloud's monitoring agent, the kubelet) as
// events of our own schema, so that a policy can heal on somebody else's detection: k8s/<condition>, k8s/<reason>.
//
// It promises that one onset is one event whoever leads, that what stands is also a condition of the node, which ends when the other one
// takes it back, that what is said is bounded, and that our own words are never taken for another's. It acts on nothing: no policy that is
// shipped names these signals.
package foreign

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// Kind is the first word of the signals.
const Kind = "k8s"

const (
	maxText      = 1 << 10          // bytes of a message that are kept
	maxStanding  = 64               // conditions of one node
	maxName      = 63               // bytes of a signal's name
	warnEvery    = time.Minute      // Events of one node and reason
	maxRemember  = 4096             // nodes and reasons
	publishAtAll = 10 * time.Minute // a warning older than this is history
)

// Options of a Watch.
type Options struct {
	Cluster string
	Now     func() time.Time
	Publish func(event.Event) error
	Set     func(context.Context, bus.Condition) error
	Log     *slog.Logger
}

// Watch is what was heard of each node. Its methods are called by one goroutine at a time each: Node by one, Warning by another.
type Watch struct {
	o        Options
	standing map[string]map[string]event.Event // by node and key
	warned   map[[2]string]time.Time           // by node and reason
}

// New prepares a watch.
func New(o Options) *Watch {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Watch{o: o, standing: map[string]map[string]event.Event{}, warned: map[[2]string]time.Time{}}
}

// Node takes in what a node's object says: what is new is said on, what has ended is taken back.
func (w *Watch) Node(ctx context.Context, s cluster.Said) {
	at, now := w.o.Now(), map[string]event.Event{}
	if !s.Gone {
		now = Standing(w.o.Cluster, s, at)
	}
	before := w.standing[s.Node]
	for key, e := range now {
		old, stood := before[key]
		if stood && (e.ID == old.ID || e.Data.Onset.Equal(at)) {
			now[key] = old // who tells no onset has told it already
			continue
		}
		if err := w.o.Publish(e); err != nil {
			w.o.Log.Warn("publish what is said of a node", "node", s.Node, "signal", e.Data.Cause.Signal(), "error", err)
			delete(now, key) // the next change of the node tries again
			continue
		}
		w.set(ctx, bus.Condition{Node: s.Node, Key: key, Active: true, Since: e.Data.Onset, BootID: s.BootID, Event: &e})
	}
	for key, e := range before {
		if _, stands := now[key]; stands {
			continue
		}
		r := recovery(e, at)
		if err := w.o.Publish(r); err != nil {
			w.o.Log.Warn("publish a recovery", "node", s.Node, "signal", e.Data.Cause.Signal(), "error", err)
		}
		w.set(ctx, bus.Condition{Node: s.Node, Key: key, Since: r.Time, BootID: s.BootID, Event: &r})
	}
	if len(now) == 0 {
		delete(w.standing, s.Node)
	} else {
		w.standing[s.Node] = now
	}
}

func (w *Watch) set(ctx context.Context, c bus.Condition) {
	if err := w.o.Set(ctx, c); err != nil && ctx.Err() == nil {
		w.o.Log.Warn("set a condition", "node", c.Node, "key", c.Key, "error", err)
	}
}

// Ours reports whether a key is of a condition that this package sets.
func Ours(key string) bool { return strings.HasPrefix(key, Kind+"/") }

// Stands reports whether the node's object says what a key stands for.
func Stands(s cluster.Said, key string) bool {
	_, ok := Standing("", s, time.Time{})[key]
	return ok
}

// Warning takes in a Kubernetes Event about a node: one a minute of each reason.
func (w *Watch) Warning(said cluster.Warned) {
	severity := severityOf(said.Reason)
	now := w.o.Now()
	if severity == "" || said.Node == "" || !isName(said.Reason) || now.Sub(said.At) > publishAtAll {
		return
	}
	of := [2]string{said.Node, said.Reason}
	if last, ok := w.warned[of]; ok && said.At.Sub(last) < warnEvery {
		return
	}
	if len(w.warned) >= maxRemember {
		for k, at := range w.warned {
			if now.Sub(at) > warnEvery {
				delete(w.warned, k)
			}
		}
		if len(w.warned) >= maxRemember {
			return
		}
	}
	w.warned[of] = said.At
	src := event.Source(w.o.Cluster, said.Node, Kind)
	e := event.Event{
		ID: event.NewID(src, "event", said.UID, said.At.UTC().Format(time.RFC3339)), Source: src, Type: event.Fault, Time: said.At,
		Data: event.Data{
			Target: event.Target{Cluster: w.o.Cluster, Node: said.Node, GPU: gpuIn(said.Message)}, Cause: event.Cause{Kind: Kind, Name: said.Reason},
			Severity: severity, Onset: said.At,
			Evidence: event.Evidence{Signal: "Kubernetes Event", Baseline: "table", Raw: bounded(said.By + ": " + said.Message)},
		},
	}
	if err := w.o.Publish(e); err != nil {
		w.o.Log.Warn("publish a warning about a node", "node", said.Node, "reason", said.Reason, "error", err)
	}
}

// Standing is what a node's object says against it, as events by the key of their condition. Where its writer gives no onset, it is now.
func Standing(clusterName string, s cluster.Said, now time.Time) map[string]event.Event {
	out := map[string]event.Event{}
	src := event.Source(clusterName, s.Node, Kind)
	add := func(name string, severity event.Severity, since time.Time, signal, raw string, id ...string) {
		key := Kind + "/" + name + " node"
		if len(out) >= maxStanding {
			return
		}
		if since.IsZero() {
			since = now
		}
		out[key] = event.Event{
			ID:     event.NewID(src, append([]string{s.UID, key}, id...)...),
			Source: src, Type: event.Fault, Time: since,
			Data: event.Data{
				Target: event.Target{Cluster: clusterName, Node: s.Node, GPU: gpuIn(raw)}, Cause: event.Cause{Kind: Kind, Name: name}, Severity: severity,
				Onset: since, Evidence: event.Evidence{Signal: signal, Baseline: "table", Raw: bounded(raw)},
			},
		}
	}
	for _, c := range s.Conditions {
		if m := meaningOf(c.Type); slices.Contains(m.bad, c.Status) && isName(m.name) {
			add(m.name, m.severity, c.Since, "node condition "+c.Type+"="+c.Status, c.Reason+": "+c.Message, c.Status, stamp(c.Since, now))
		}
	}
	if state := s.Labels[sentinelState]; state != "" && state != sentinelSucceeded {
		since := sentinelTime(s.Labels[sentinelCordoned])
		add(sentinelName, event.Critical, since, "NVSentinel: "+state, s.Annotations[sentinelEvent], s.Labels[sentinelCordoned], s.Annotations[sentinelEvent])
	}
	for _, t := range s.Taints {
		if n := taints[t.Key]; n != "" {
			add(n, event.Critical, t.Since, "taint "+t.Key+"="+t.Value, s.Annotations[sentinelEvent], t.Value, stamp(t.Since, now), s.Annotations[sentinelEvent])
		}
	}
	return out
}

// stamp tells one onset from the next.
func stamp(since, now time.Time) string {
	if since.IsZero() {
		since = now
	}
	return since.UTC().Format(time.RFC3339)
}

// sentinelTime reads a time in a label, which cannot hold colons: 2006-01-02T15-04-05Z. What is written otherwise is no time.
func sentinelTime(label string) time.Time {
	for _, layout := range []string{"2006-01-02T15-04-05Z", "2006-01-02T15-04-05Z0700"} {
		if t, err := time.Parse(layout, label); err == nil {
			return t
		}
	}
	return time.Time{}
}

func recovery(of event.Event, now time.Time) event.Event {
	r := of
	r.ID, r.Type, r.Time = event.NewID(of.Source, "recovery", of.ID), event.Recovery, now
	r.Data.Severity, r.Data.Evidence = event.Info, event.Evidence{Signal: of.Data.Evidence.Signal, Baseline: "table", Raw: "taken back by whoever said it"}
	return r
}

// uuid is a GPU's, as NVIDIA writes it.
var uuid = regexp.MustCompile(`GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// gpuIn is the one GPU that a text names; empty where it names none or several.
func gpuIn(text string) string {
	text = bounded(text)
	found := uuid.FindAllString(text, -1)
	if len(found) == 0 || slices.ContainsFunc(found, func(f string) bool { return f != found[0] }) {
		return ""
	}
	return found[0]
}

// isName reports whether a word can be a signal's name: letters, digits, dashes, dots and underscores.
func isName(s string) bool {
	return s != "" && len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") == ""
}

func bounded(s string) string {
	s = strings.TrimSuffix(strings.TrimPrefix(s, ": "), ": ")
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}
