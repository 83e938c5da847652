package remediator

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// board is what nodes last said of themselves: their conditions as the bus keeps them. A condition of another boot is history. One that
// stands on a node whose agent is silent stands on: nobody has said that it ended.
type board struct {
	boot  func(node string) (id string, err error)
	heard func(node string) bool // the node's agent beats

	mu sync.RWMutex
	at map[string]map[string]said // by node and the condition's key
}

// said is what is kept of a condition.
type said struct {
	key, boot string
	active    bool
	since     time.Time // of the present state, by the node's clock
	target    event.Target
	signal    string
	severity  event.Severity
	logged    bool // known by a line of the kernel log, not by a measurement
}

// What is kept of one node is bounded: an agent of 16 GPUs and as many ranks has less to say.
const (
	maxSaid = 1024
	maxKey  = 256 // bytes
)

func newBoard(boot func(string) (string, error)) *board {
	return &board{boot: boot, heard: func(string) bool { return true }, at: map[string]map[string]said{}}
}

// set takes in a condition.
func (b *board) set(c bus.Condition) {
	if c.Event == nil || len(c.Key) > maxKey {
		return // nothing is known of what it is about, or it is not an agent's
	}
	d := c.Event.Data
	v := said{key: c.Key, boot: c.BootID, active: c.Active, since: c.Since, target: d.Target, signal: d.Cause.Signal(), severity: d.Severity,
		logged: d.Evidence.Signal == kernelLog}
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
	for _, v := range all {
		if !v.measured() || v.target.GPU == "" || !about(v.target, e.Data.Target) {
			continue
		}
		if v.active {
			return time.Time{}
		}
		if !v.since.Before(e.Time) && v.since.After(since) {
			since = v.since
		}
	}
	return since
}

// Standing implements incident.Conditions. A condition that ended before the event began is an earlier one: the agent sets a condition
// a moment after it publishes the event.
func (b *board) Standing(e event.Event) (incident.Standing, string) {
	t, ended := e.Data.Target, ""
	all := b.of(t.Node)
	for _, v := range all {
		if v.signal != e.Data.Cause.Signal() || !about(v.target, t) {
			continue
		}
		switch {
		case v.active && v.lineOnly() && !mended(all, e).IsZero():
			ended = "is over: all that is measured of the GPU is well since " + mended(all, e).UTC().Format(time.RFC3339)
		case v.active && b.now(t.Node, v) && b.heard(t.Node):
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
