package remediator

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

// board is what nodes last said of themselves: their conditions as the bus keeps them. A condition of another boot is history. One that
// stands on a node whose agent is silent stands on: nobody has said that it ended.
type board struct {
	boot  func(node string) (id string, err error)
	heard func(node string) bool // the node's agent beats
	// cleared is when a person last declared a node healthy by uncordoning it; what was reported before is history.
	cleared func(node string) time.Time
	// maxAge is how long a condition counts that only lines of the kernel log reported: no line says that it ended.
	maxAge func() time.Duration
	clock  func() time.Time

	mu      sync.RWMutex
	at      map[string]map[string]said   // by node and the condition's key
	found   map[string]*found            // what gateways say, by gateway and key
	foundOf map[string]map[string]*found // the same by subject

	leftOut time.Time // when a finding last found no room in found
}

// said is what is kept of a condition.
type said struct {
	key, boot string
	active    bool
	since     time.Time // of the present state, by the node's clock
	target    event.Target
	signal    string
	severity  event.Severity
	logged    bool         // known by a line of the kernel log, not by a measurement
	event     *event.Event // of a lost node, and of a statistical finding
	onset     time.Time
	families  []string // of signals that the node itself measures
	host      bool     // they are of the whole host
}

// What is kept of one node is bounded: an agent of 16 GPUs and as many ranks has less to say.
const (
	maxSaid = 1024
	maxKey  = 256 // bytes
)

func newBoard(boot func(string) (string, error)) *board {
	return &board{boot: boot, heard: func(string) bool { return true }, cleared: func(string) time.Time { return time.Time{} },
		maxAge: func() time.Duration { return time.Duration(policy.DefaultGuards().KernelConditionMaxAge) }, clock: time.Now, at: map[string]map[string]said{},
		found: map[string]*found{}, foundOf: map[string]map[string]*found{}}
}

// set takes in a condition.
func (b *board) set(c bus.Condition) {
	if len(c.Key) > maxKey {
		return // it is not an agent's
	}
	if c.Event == nil {
		b.ends(c)
		return
	}
	d := c.Event.Data
	v := said{key: c.Key, boot: c.BootID, active: c.Active, since: c.Since, target: d.Target, signal: d.Cause.Signal(), severity: d.Severity,
		logged: d.Evidence.Signal == kernelLog}
	v.onset = began(*c.Event)
	v.families, v.host = familiesOf(*c.Event)
	if c.Key == witness.Key {
		v.event = c.Event
	}
	if policy.Statistical(*c.Event) {
		v.event = brief(*c.Event)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	node := b.at[c.Node]
	if node == nil {
		node = map[string]said{}
		b.at[c.Node] = node
	}
	if _, known := node[c.Key]; !known && len(node) >= maxSaid && !forgetEnded(node) {
		return
	}
	node[c.Key] = v
}

// ends notes the end of a condition whose end carries no event. Nothing else is known of what it was about.
func (b *board) ends(c bus.Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, known := b.at[c.Node][c.Key]; known && !c.Active {
		v.active, v.since = false, c.Since
		b.at[c.Node][c.Key] = v
	}
}

// lost gives the conditions of lost nodes that an earlier leader set and that are active.
func (b *board) lost() (out []bus.Condition) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for node, all := range b.at {
		if v, ok := all[witness.Key]; ok && v.active {
			out = append(out, bus.Condition{Node: node, Key: v.key, Active: true, Since: v.since, BootID: v.boot, Event: v.event})
		}
	}
	return out
}

// forgetEnded drops the condition that ended first, if any has.
func forgetEnded(node map[string]said) bool {
	oldest, found := "", false
	for key, v := range node {
		if !v.active && (!found || v.since.Before(node[oldest].since)) {
			oldest, found = key, true
		}
	}
	delete(node, oldest)
	return found
}

func (b *board) of(node string) []said {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var out []said
	for _, v := range b.at[node] {
		out = append(out, v)
	}
	return out
}

// now reports whether what was said is of the node's present boot. Where either does not say its boot, it is.
func (b *board) now(node string, v said) bool {
	id, err := b.boot(node)
	return err == nil && (v.boot == "" || id == "" || v.boot == id)
}

// kernelLog is how the evidence of what is known by a line alone begins.
const kernelLog = "kernel log"

// untilReboot are faults of a GPU that only lines of the kernel log speak of: no line says that they have ended.
var untilReboot = map[string]bool{"gpu/init": true, "gpu/gsp": true}

// measuredKinds are the kinds of conditions that are counters' and states'.
var measuredKinds = map[string]bool{"gpu": true, "nvlink": true, "nvswitch": true, "fabric": true}

// measured reports whether a condition's source looks again and again, so that it ends by itself when what is wrong is mended:
// docs/decisions/0014 says why only those keep a node from being chosen. A GPU that the log names by its bus address alone is not one,
// since DCGM ends it under its UUID.
func (v said) measured() bool {
	kind, _, _ := strings.Cut(v.signal, "/")
	return measuredKinds[kind] && !untilReboot[v.signal] && !(v.logged && v.target.GPU == "")
}

// Unfit implements incident.Conditions.
func (b *board) Unfit(node string) string {
	var worst said
	for _, v := range b.of(node) {
		if !v.active || !v.severity.AtLeast(event.Critical) || !v.measured() || !b.now(node, v) {
			continue
		}
		if worst.key == "" || v.severity.AtLeast(worst.severity) && (v.severity != worst.severity || v.key < worst.key) {
			worst = v
		}
	}
	if worst.key == "" {
		return ""
	}
	out := fmt.Sprintf("%s, %s, since %s", worst.key, worst.severity, worst.since.UTC().Format(time.RFC3339))
	if !b.heard(node) {
		out += ", and its agent is silent since"
	}
	return out
}

var _ incident.Conditions = (*board)(nil)

// lineOnly reports whether a condition is known by lines of the kernel log alone, so that only a reboot ends it.
func (v said) lineOnly() bool {
	return strings.HasPrefix(v.signal, "xid/") || strings.HasPrefix(v.signal, "sxid/") || untilReboot[v.signal] || v.logged && !v.measured()
}

// mended is since when all that is measured of a GPU is well again, if something was ill since the event: then a line about it that was
// read before is history too. Zero where nothing says so.
func mended(all []said, e event.Event) (since time.Time) {
	return mendedSince(all, e.Data.Target, e.Time)
}

func mendedSince(all []said, t event.Target, from time.Time) (since time.Time) {
	for _, v := range all {
		if !v.measured() || v.target.GPU == "" || !about(v.target, t) {
			continue
		}
		if v.active {
			return time.Time{}
		}
		if !v.since.Before(from) && v.since.After(since) {
			since = v.since
		}
	}
	return since
}

// Standing implements incident.Conditions. A condition that ended before the event began is an earlier one: the agent sets a condition
// a moment after it publishes the event.
func (b *board) Standing(e event.Event) (incident.Standing, string) {
	if event.GatewayOf(e.Source) != "" {
		return b.foundStanding(e)
	}
	t, ended := e.Data.Target, ""
	all := b.of(t.Node)
	for _, v := range all {
		if v.signal != e.Data.Cause.Signal() || !about(v.target, t) {
			continue
		}
		switch {
		case v.active && v.lineOnly() && !v.since.After(b.cleared(t.Node)):
			ended = "is history: a person uncordoned the node at " + b.cleared(t.Node).UTC().Format(time.RFC3339)
		case v.active && v.lineOnly() && !mended(all, e).IsZero():
			ended = "is over: all that is measured of the GPU is well since " + mended(all, e).UTC().Format(time.RFC3339)
		case v.active && v.lineOnly() && b.tooOld(v):
			ended = fmt.Sprintf("is older than %s (kernelConditionMaxAge), and only the kernel log reported it", policy.Duration(b.maxAge()))
		case v.active && b.now(t.Node, v) && (b.heard(t.Node) || v.key == witness.Key): // silence is what a lost node's condition is about
			return incident.Holds, "since " + v.since.UTC().Format(time.RFC3339)
		case v.active && b.now(t.Node, v):
			return incident.Silent, "its agent is silent"
		case v.active:
			ended = "was of an earlier boot of the node"
		case !v.since.Before(e.Time) && ended == "":
			ended = "ended by itself at " + v.since.UTC().Format(time.RFC3339)
		}
	}
	if ended != "" {
		return incident.Ended, ended
	}
	return incident.Unknown, ""
}

// tooOld reports that a condition that no line can end has had its time.
func (b *board) tooOld(v said) bool { return b.clock().Sub(v.since) > b.maxAge() }

// over reports that an active condition no longer counts, although nobody reported its end.
func (b *board) over(node string, all []said, v said) bool {
	if !b.now(node, v) {
		return true
	}
	if !v.lineOnly() {
		return false
	}
	return !v.since.After(b.cleared(node)) || b.tooOld(v) || !mendedSince(all, v.target, v.since).IsZero()
}

// grave lists the conditions of severity critical or fatal that count on a node now, whatever they are about, worst first by key.
func (b *board) grave(node string) (out []said) {
	all := b.of(node)
	for _, v := range all {
		if v.active && v.severity.AtLeast(event.Critical) && !b.over(node, all, v) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(x, y said) int { return strings.Compare(x.key, y.key) })
	return out
}

// repaired reports whether the source of an event says that what it reported has ended: by a later report, or since the node has booted again
// and its agent, which is heard, does not report it anew. Age and a person's word are no repair. why is for people.
func (b *board) repaired(e event.Event) (yes bool, why string) {
	t, why := e.Data.Target, "nothing reported its end"
	all := b.of(t.Node)
	for _, v := range all {
		if v.signal != e.Data.Cause.Signal() || !about(v.target, t) {
			continue
		}
		switch {
		case v.active && b.now(t.Node, v) && !(v.lineOnly() && !mended(all, e).IsZero()):
			return false, "it is active since " + v.since.UTC().Format(time.RFC3339)
		case v.active && b.now(t.Node, v):
			yes, why = true, "all that is measured of the GPU is well since "+mended(all, e).UTC().Format(time.RFC3339)
		case v.active && !b.heard(t.Node):
			return false, "the node booted again, and its agent is silent"
		case v.active:
			yes, why = true, "the node booted again, and its agent does not report it"
		case !v.since.Before(e.Time):
			yes, why = true, "it ended at "+v.since.UTC().Format(time.RFC3339)
		}
	}
	return yes, why
}

// about reports whether two targets on a node are one thing: a rank of a pod, an instance or a GPU by its UUID where both know it, else by
// its bus address.
func about(a, b event.Target) bool {
	if a.Rank != nil || b.Rank != nil {
		return a.Rank != nil && b.Rank != nil && *a.Rank == *b.Rank && a.PodUID == b.PodUID
	}
	if a.GPU != "" && b.GPU != "" {
		return a.GPU == b.GPU && a.MIG == b.MIG
	}
	return a.PCI == b.PCI && a.MIG == b.MIG
}
