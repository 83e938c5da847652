// Package statement is what people say of findings: that they know, that they do not want to hear of it for a while, that the present
// level is normal. It promises one meaning of a pattern wherever findings are matched with it; what a statement does is for the
// engines that have the finding.
package statement

import (
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// Verb is what a person says of findings.
type Verb string

// Verbs.
const (
	// Acknowledge: someone knows. The finding stands; it is not said again when it becomes worse.
	Acknowledge Verb = "ack"
	// Mute: what matches is not said until Until. What is still open then is said.
	Mute Verb = "mute"
	// Accept: the present level is the new baseline, and the finding is over without having recovered.
	Accept Verb = "accept"
)

// Statement is what a person said. Key is a finding's condition key, "anomaly/sm-clock gpu/GPU-1"; either half may be "*", or end
// with one. Acknowledge and Accept are of what is open at At, and of nothing later.
type Statement struct {
	Verb   Verb
	Node   string `json:",omitempty"` // of what is found; empty: any; one that ends in "*" is a prefix
	Key    string
	By     string
	Reason string
	At     time.Time
	Until  time.Time // of Mute
}

// Most bounds how many are kept; the newest count.
const Most = 4096

// Newest are at most Most statements, in the order in which they were made.
func Newest(all []Statement) []Statement {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Statement) int { return a.At.Compare(b.At) })
	return all[max(0, len(all)-Most):]
}

// Match reports whether a key is one that a pattern names.
func Match(pattern, key string) bool {
	if pattern == "*" || pattern == key {
		return true
	}
	ps, pt, ok := strings.Cut(pattern, " ")
	ks, kt, _ := strings.Cut(key, " ")
	if !ok {
		pt = "*"
	}
	return glob(ps, ks) && glob(pt, kt)
}

// Names reports whether a pattern can match findings of a name, whatever they are about.
func Names(pattern, name string) bool {
	first, _, _ := strings.Cut(pattern, " ")
	return glob(first, name)
}

func glob(pattern, s string) bool {
	if p, star := strings.CutSuffix(pattern, "*"); star {
		return strings.HasPrefix(s, p)
	}
	return pattern == s
}

// About reports whether the statement is of a finding about something on a node; empty: about none.
func (s *Statement) About(key, node string) bool {
	return (s.Node == "" || glob(s.Node, node)) && Match(s.Key, key)
}

// said are the verbs as they are told with a finding.
var said = map[Verb]string{Acknowledge: "acknowledged by ", Mute: event.MutedBy, Accept: "accepted by "}

// Words say it with the finding that it is of: who, for how long, and why.
func (s *Statement) Words() string {
	w := said[s.Verb] + s.By
	if s.Verb == Mute {
		w += " until " + s.Until.UTC().Format(time.RFC3339)
	}
	if s.Reason != "" {
		w += ": " + s.Reason
	}
	return w
}
