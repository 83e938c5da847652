// Package ledger admits incidents: it decides, records and counts everything that limits what may be done at once.
//
// There is one book. It lists a grant for each incident that was allowed to change something: which nodes it may cordon, whether it may
// restart its job, what it charged to the action budget, which nodes it reserved and what it did. Guards judge a request against the book
// inside one critical section, and the answer takes effect only when the new book is stored. So two incidents are never admitted by the
// same free place, whatever they do at once.
//
// The book is one value of a JetStream bucket, written by compare-and-swap, and it carries the leader's term. A remediator that finds a
// later term in the book has been replaced, and nothing it asks for is granted. docs/decisions/0026 has the alternatives.
package ledger

import (
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
)

// Key is the key of the book in its bucket.
const Key = "book"

// The book has to fit into one message of 1 MiB. Beyond MaxBytes it grants nothing new, so that there is always room to record what was
// granted, and to return it.
const (
	MaxGrants = 2048
	MaxBytes  = 600 << 10
)

// bytes estimates the size of the stored book. A grant with one node, one cause and two actions takes about 550 bytes.
func (b *Book) bytes() (n int) {
	for _, g := range b.Grants {
		n += 300 + 120*len(g.Nodes) + 90*len(g.Did) + 40*(len(g.Causes)+len(g.Targets))
	}
	return n + 60*(len(b.Cleared)+len(b.Tripped))
}

// clearedFor is how long a person's word on a node is remembered: no condition counts for longer (policy.MaxKernelConditionAge).
const clearedFor = 30 * 24 * time.Hour

// Book is the ledger as it is stored.
type Book struct {
	Term    int64                `json:"term"`              // of the leader that wrote it
	Grants  []guard.Grant        `json:"grants,omitempty"`  // one for each incident that was admitted, oldest first
	Tripped map[string]time.Time `json:"tripped,omitempty"` // by policy: when its breaker last refused a cordon
	Cleared map[string]time.Time `json:"cleared,omitempty"` // by node: when a person declared it healthy by uncordoning it
}

// Grant returns the grant of an incident, or nil. It points into the book.
func (b *Book) Grant(incident string) *guard.Grant {
	for k := range b.Grants {
		if b.Grants[k].Incident == incident {
			return &b.Grants[k]
		}
	}
	return nil
}

// acts reports whether the incident has one of the places of those that act.
func (b *Book) acts(incident string) bool {
	g := b.Grant(incident)
	return g != nil && g.Open() && g.Active
}

// clone copies the book so deep that changes of the copy leave the original as it is.
func (b *Book) clone() Book {
	c := Book{Term: b.Term, Grants: slices.Clone(b.Grants), Tripped: map[string]time.Time{}, Cleared: map[string]time.Time{}}
	for k, t := range b.Tripped {
		c.Tripped[k] = t
	}
	for k, t := range b.Cleared {
		c.Cleared[k] = t
	}
	return c
}

// change replaces the grant of an incident by what f makes of a copy of it. It reports whether there is one and f changed it.
func (b *Book) change(incident string, f func(*guard.Grant) bool) bool {
	for k := range b.Grants {
		if b.Grants[k].Incident != incident {
			continue
		}
		g := b.Grants[k].Clone()
		if !f(&g) {
			return false
		}
		b.Grants[k] = g
		return true
	}
	return false
}

// set adds a grant, or replaces the one of the same incident.
func (b *Book) set(g guard.Grant) {
	if !b.change(g.Incident, func(have *guard.Grant) bool { *have = g; return true }) {
		b.Grants = append(b.Grants, g)
	}
}

// prune drops what no guard looks at any more: grants that ended, and marks, from before `before`.
func (b *Book) prune(before, now time.Time) {
	b.Grants = slices.DeleteFunc(b.Grants, func(g guard.Grant) bool { return !g.Ended.IsZero() && !g.Kept(before, now) })
	for node, at := range b.Cleared {
		if now.Sub(at) > clearedFor {
			delete(b.Cleared, node)
		}
	}
	for k, t := range b.Tripped {
		if t.Before(before) {
			delete(b.Tripped, k)
		}
	}
}
