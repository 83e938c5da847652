package page

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Store holds the incidents. bus.Bucket is one.
type Store interface {
	Get(ctx context.Context, id string) (incident.Incident, uint64, error)
	Put(ctx context.Context, id string, i incident.Incident, rev uint64) (uint64, error)
	Watch(ctx context.Context, current func(), handle func(bus.Change[incident.Incident])) error
}

// Row is what is kept of an incident in memory: what the list and the week show. The rest is read when one is looked at.
type Row struct {
	ID, Parent         string
	Signal, Node, Job  string
	Severity           string
	State              string
	Outcome            incident.Outcome
	Text               string // how it stands, in a line
	Policy, Rule       string
	Mode               policy.Mode
	Actions            []string
	Refused            string // by which guard
	Answered           string // the first word of a person's answer
	Opened, At, Closed time.Time
	Children           int
	Open, Asks, Needs  bool
	Acted              bool // nodes were cordoned or ranks restarted
	rev                uint64
	text               string // what a search looks at
}

// maxCell bounds a text of a row.
const maxCell = 160

// names are kept once each: thousands of rows share few.
type names map[string]string

func (n names) of(s string) string {
	s = clean(s, maxCell)
	if had, ok := n[s]; ok {
		return had
	}
	if len(n) < 50_000 {
		s = strings.Clone(s)
		n[s] = s
	}
	return s
}

func (n names) row(i *incident.Incident, rev uint64) *Row {
	r := &Row{
		ID: strings.Clone(clean(i.ID, maxCell)), Parent: n.of(i.Parent), State: n.of(string(i.State)), Outcome: incident.Outcome(n.of(string(i.Outcome))),
		Text: strings.Clone(clean(i.Headline(), maxCell)), Opened: i.Opened, At: i.StateAt, Closed: i.ClosedAt,
		Open: i.Open(), Asks: i.Asks(), Needs: i.NeedsPerson(), Acted: len(i.Cordons) > 0 || i.Restarts > 0, rev: rev,
	}
	if len(i.Faults) > 0 {
		f := i.Faults[0]
		r.Signal, r.Node, r.Severity = n.of(f.Signal), n.of(f.Node), n.of(string(f.Sev))
	}
	if i.Job != nil {
		r.Job = n.of(i.Job.Namespace + "/" + i.Job.Name)
	}
	if g := i.Group; g != nil {
		r.Children, r.Node, r.Job = len(g.Children), n.of(g.Domain.String()), ""
	}
	if p := i.Plan; p != nil {
		r.Policy, r.Rule, r.Mode = n.of(p.Policy), n.of(p.Rule), policy.Mode(n.of(string(p.Mode)))
		for _, v := range p.Verbs() {
			r.Actions = append(r.Actions, n.of(string(v)))
		}
	}
	for _, g := range i.Guards {
		if g.Asked && !g.Allowed {
			r.Refused = n.of(string(g.Guard))
			break
		}
	}
	word, _, _ := strings.Cut(i.Approval, " ")
	r.Answered = n.of(word)
	r.text = n.of(strings.ToLower(strings.Join([]string{r.Signal, r.Node, r.Job, string(r.Outcome), r.State, r.Rule, r.Severity}, " ")))
	return r
}

// Class is how a row is colored and filtered.
func (r *Row) Class() string {
	switch {
	case r.Asks:
		return "asks"
	case r.Needs && r.Outcome != incident.Observed:
		return "needs"
	case r.Open:
		return "open"
	case r.Outcome == incident.Observed:
		return "observed"
	case r.Outcome == incident.Recovered || r.Outcome == incident.Quarantined:
		return "healed"
	}
	return "ended"
}

// Grave reports whether the fault is critical or worse.
func (r *Row) Grave() bool { return event.Severity(r.Severity).AtLeast(event.Critical) }

// mirror follows the store. It holds a row for each incident, newest first.
type mirror struct {
	changed func(id string) // called after each change, without the lock

	mu      sync.RWMutex
	names   names
	by      map[string]*Row
	order   []*Row
	current bool      // everything that was there at the start is known
	heard   time.Time // the last change
	recent  []*incident.Incident
}

// maxRecent bounds the whole records that are kept, for when the store does not answer.
const maxRecent = 16

func newMirror(changed func(string)) *mirror {
	return &mirror{changed: changed, names: names{}, by: map[string]*Row{}}
}

func newest(a, b *Row) int { return cmp.Or(b.Opened.Compare(a.Opened), cmp.Compare(a.ID, b.ID)) }

// take is told of each change of the store.
func (m *mirror) take(c bus.Change[incident.Incident], now time.Time) {
	m.mu.Lock()
	was := m.by[c.Key]
	if was != nil {
		if at, ok := slices.BinarySearchFunc(m.order, was, newest); ok {
			m.order = slices.Delete(m.order, at, at+1)
		}
		delete(m.by, c.Key)
	}
	m.recent = slices.DeleteFunc(m.recent, func(i *incident.Incident) bool { return i.ID == c.Key })
	if !c.Deleted {
		r := m.names.row(&c.Value, c.Rev)
		m.by[c.Key] = r
		at, _ := slices.BinarySearchFunc(m.order, r, newest)
		m.order = slices.Insert(m.order, at, r)
	}
	m.heard = now
	told := m.current
	m.mu.Unlock()
	if told {
		m.changed(c.Key)
	}
}

// keep remembers a whole record that was looked at.
func (m *mirror) keep(i *incident.Incident) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recent = slices.DeleteFunc(m.recent, func(o *incident.Incident) bool { return o.ID == i.ID })
	m.recent = append(m.recent, i)
	if len(m.recent) > maxRecent {
		m.recent = slices.Delete(m.recent, 0, 1)
	}
}

// last is a whole record as it was looked at last; nil if it was not lately.
func (m *mirror) last(id string) *incident.Incident {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if k := slices.IndexFunc(m.recent, func(i *incident.Incident) bool { return i.ID == id }); k >= 0 {
		return m.recent[k]
	}
	return nil
}

func (m *mirror) row(id string) *Row {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.by[id]
}

// all are the rows, newest first. They are never changed.
func (m *mirror) all() []*Row {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Clone(m.order)
}

// ready reports whether the store was read once, and when it last changed.
func (m *mirror) ready() (bool, time.Time) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.current, m.heard
}

// follow keeps the mirror up to date until ctx ends.
func (m *mirror) follow(ctx context.Context, s Store, now func() time.Time) error {
	return s.Watch(ctx, func() {
		m.mu.Lock()
		m.current = true
		m.mu.Unlock()
		m.changed("")
	}, func(c bus.Change[incident.Incident]) { m.take(c, now()) })
}
