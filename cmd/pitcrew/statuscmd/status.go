// Package statuscmd is `pitcrew status`: what Pitcrew sees, does and waits for, on one screen.
package statuscmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
)

// Status is what the command prints; with -o json, its contract.
type Status struct {
	At      time.Time       `json:"at"`
	Cluster string          `json:"cluster"`
	Paused  *bus.KillSwitch `json:"paused,omitempty"`

	Remediator Remediator `json:"remediator"`
	Agents     Agents     `json:"agents"`
	Conditions Conditions `json:"conditions"`
	Incidents  Incidents  `json:"incidents"`
	Limits     Limits     `json:"limits"`

	// Unknown are the parts that could not be read, each with the reason. Their fields above mean nothing.
	Unknown map[string]string `json:"unknown,omitempty"`
	// Problems are what an operator should look at, the most urgent first. Empty: none.
	Problems []string `json:"problems"`
}

// Remediator says whether anybody consumes findings, and how far behind.
type Remediator struct {
	Consuming bool   `json:"consuming"`
	Pending   uint64 `json:"pending_events"`
	Term      int64  `json:"term,omitempty"` // of the leader that wrote the ledger last
}

// Agents are the nodes whose agents were heard while the command listened.
type Agents struct {
	Heard  int      `json:"heard"`
	Silent []string `json:"silent,omitempty"` // nodes with a condition that an agent reported, which were not heard
}

// Conditions are the open conditions of nodes, by severity.
type Conditions struct {
	Active map[event.Severity]int `json:"active,omitempty"`
	Worst  []Condition            `json:"worst,omitempty"` // the gravest, at most five
}

// Condition is one open condition.
type Condition struct {
	Node     string         `json:"node"`
	Key      string         `json:"key"`
	Severity event.Severity `json:"severity,omitempty"`
	Since    time.Time      `json:"since"`
}

// Incidents are counted by state and outcome.
type Incidents struct {
	Open     []Open                   `json:"open,omitempty"` // oldest first
	LastDay  map[incident.Outcome]int `json:"ended_last_24h,omitempty"`
	Recorded int                      `json:"recorded"`
}

// Open is an incident that has not ended.
type Open struct {
	ID          string         `json:"id"`
	Opened      time.Time      `json:"opened"`
	Signal      string         `json:"signal"`
	Node        string         `json:"node"`
	Job         string         `json:"job,omitempty"`
	State       incident.State `json:"state"`
	WaitsFor    string         `json:"waits_for,omitempty"`
	NeedsPerson bool           `json:"needs_person,omitempty"`
}

// Limits are what the admission ledger has granted.
type Limits struct {
	Acting   int                  `json:"acting"`             // incidents that hold a grant
	Cordoned int                  `json:"cordoned"`           // nodes that open grants may cordon
	Tripped  map[string]time.Time `json:"tripped,omitempty"`  // by policy: when its breaker last refused a cordon
	Reserved []string             `json:"reserved,omitempty"` // nodes reserved for replacements
}

const (
	listen       = 1600 * time.Millisecond // three beats of an agent and a little more
	mostWorst    = 5
	trippedFor   = time.Hour // how long a breaker that refused is a problem to mention
	backlogLimit = 1000
)

// Collect reads everything. A part that cannot be read is listed in Unknown and does not keep the others from being read.
func Collect(ctx context.Context, b *bus.Bus, now time.Time) Status {
	s := Status{At: now.UTC(), Cluster: b.Cluster(), Unknown: map[string]string{}, Problems: []string{}}
	heard := make(chan map[string]bool, 1)
	go func() { heard <- agents(ctx, b) }()
	var told map[string]time.Time // nodes whose agents have reported a condition
	for _, part := range []struct {
		name string
		read func() error
	}{
		{"paused", func() error { return s.readPause(ctx, b) }},
		{"incidents", func() error { return s.readIncidents(ctx, b, now) }},
		{"limits", func() error { return s.readLimits(ctx, b) }},
		{"remediator", func() error { return s.readBacklog(ctx, b) }},
		{"conditions", func() (err error) { told, err = s.readConditions(ctx, b); return err }},
	} {
		if err := part.read(); err != nil {
			s.Unknown[part.name] = err.Error()
		}
	}
	beats := <-heard
	s.Agents.Heard = len(beats)
	for _, node := range slices.Sorted(maps.Keys(told)) {
		if !beats[node] {
			s.Agents.Silent = append(s.Agents.Silent, node)
		}
	}
	s.judge(now)
	return s
}

// agents listens for beats.
func agents(ctx context.Context, b *bus.Bus) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, listen)
	defer cancel()
	var mu sync.Mutex
	heard := map[string]bool{}
	_ = b.Beats(ctx, func(node string) {
		mu.Lock()
		defer mu.Unlock()
		heard[node] = true
	})
	mu.Lock()
	defer mu.Unlock()
	return maps.Clone(heard)
}

func (s *Status) readPause(ctx context.Context, b *bus.Bus) error {
	k, _, err := b.Control().Get(ctx, bus.KillKey)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return nil
	case err != nil:
		return err
	case k.On:
		s.Paused = &k
	}
	return nil
}

func (s *Status) readIncidents(ctx context.Context, b *bus.Bus, now time.Time) error {
	all, err := bus.NewBucket[incident.Incident](b, bus.IncidentBucket).List(ctx)
	if err != nil {
		return err
	}
	s.Incidents.Recorded, s.Incidents.LastDay = len(all), map[incident.Outcome]int{}
	for k := range all {
		i := &all[k].Value
		if !i.Open() {
			if i.ClosedAt.After(now.Add(-24 * time.Hour)) {
				s.Incidents.LastDay[i.Outcome]++
			}
			continue
		}
		o := Open{ID: i.ID, Opened: i.Opened, State: i.State, WaitsFor: i.WaitsFor(), NeedsPerson: i.NeedsPerson()}
		if len(i.Faults) > 0 {
			o.Signal, o.Node = i.Faults[0].Signal, i.Faults[0].Node
		}
		if i.Job != nil {
			o.Job = i.Job.Namespace + "/" + i.Job.Name
		}
		s.Incidents.Open = append(s.Incidents.Open, o)
	}
	slices.SortFunc(s.Incidents.Open, func(a, b Open) int { return a.Opened.Compare(b.Opened) })
	return nil
}

func (s *Status) readLimits(ctx context.Context, b *bus.Bus) error {
	book, _, err := bus.NewBucket[ledger.Book](b, bus.LedgerBucket).Get(ctx, ledger.Key)
	if errors.Is(err, bus.ErrNotFound) {
		return nil // nothing was granted yet
	} else if err != nil {
		return err
	}
	s.Remediator.Term, s.Limits.Tripped = book.Term, book.Tripped
	for k := range book.Grants {
		g := &book.Grants[k]
		if !g.Open() {
			continue
		}
		s.Limits.Cordoned += len(g.Nodes)
		s.Limits.Reserved = append(s.Limits.Reserved, g.Targets...)
		if g.Active {
			s.Limits.Acting++
		}
	}
	slices.Sort(s.Limits.Reserved)
	return nil
}

func (s *Status) readBacklog(ctx context.Context, b *bus.Bus) error {
	backlog, err := b.EventBacklog(ctx)
	if err != nil {
		return err
	}
	s.Remediator.Consuming, s.Remediator.Pending = backlog.Waiting > 0, backlog.Pending
	return nil
}

func (s *Status) readConditions(ctx context.Context, b *bus.Bus) (told map[string]time.Time, err error) {
	all, err := b.ConditionsNow(ctx)
	if err != nil {
		return nil, err
	}
	told, s.Conditions.Active = map[string]time.Time{}, map[event.Severity]int{}
	for _, c := range all {
		if !c.Active || c.Gateway != "" {
			continue
		}
		told[c.Node] = c.Since
		x := Condition{Node: c.Node, Key: c.Key, Since: c.Since}
		if c.Event != nil {
			x.Severity = c.Event.Data.Severity
		}
		s.Conditions.Active[x.Severity]++
		s.Conditions.Worst = append(s.Conditions.Worst, x)
	}
	slices.SortFunc(s.Conditions.Worst, func(a, b Condition) int {
		if d := b.Severity.Compare(a.Severity); d != 0 {
			return d
		}
		return a.Since.Compare(b.Since)
	})
	s.Conditions.Worst = s.Conditions.Worst[:min(len(s.Conditions.Worst), mostWorst)]
	return told, nil
}

// judge names what an operator should look at.
func (s *Status) judge(now time.Time) {
	add := func(format string, args ...any) { s.Problems = append(s.Problems, fmt.Sprintf(format, args...)) }
	if s.Paused != nil {
		add("Pitcrew is %s", s.Paused)
	}
	for _, i := range s.Incidents.Open {
		if i.NeedsPerson {
			add("incident %s needs a person: %s (pitcrew incident show %s)", i.ID, i.WaitsFor, i.ID)
		}
	}
	if _, unknown := s.Unknown["remediator"]; !unknown {
		if !s.Remediator.Consuming {
			add("no remediator consumes findings: nothing is acted on (docs/troubleshooting.md)")
		}
		if s.Remediator.Pending > backlogLimit {
			add("%d findings wait to be consumed", s.Remediator.Pending)
		}
	}
	if n := len(s.Agents.Silent); n > 0 {
		add("%d agents with open conditions are silent: %s", n, few(s.Agents.Silent))
	}
	for _, policy := range slices.Sorted(maps.Keys(s.Limits.Tripped)) {
		if at := s.Limits.Tripped[policy]; now.Sub(at) < trippedFor {
			add("the breaker of policy %s refused a cordon %s ago", policy, now.Sub(at).Round(time.Second))
		}
	}
	for _, part := range slices.Sorted(maps.Keys(s.Unknown)) {
		add("%s: cannot be read: %s", part, s.Unknown[part])
	}
}

func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
