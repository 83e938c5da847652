package guard

import (
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Grant is what one incident was allowed to do and what it did. The ledger keeps one for each incident that changed something, for as long
// as a guard looks back.
type Grant struct {
	Incident string    `json:"i"`
	Policy   string    `json:"p"`
	Job      string    `json:"j,omitempty"` // UID
	Causes   []string  `json:"x,omitempty"` // ids of the events behind it
	Active   bool      `json:"a,omitempty"` // it takes one of the places of maxConcurrentIncidents
	At       time.Time `json:"t"`           // when it was first granted
	Ended    time.Time `json:"e,omitzero"`  // when it was returned
	Charged  int       `json:"c,omitempty"` // disruptive actions that its plan may do, charged to the budget while it is open
	Restart  bool      `json:"r,omitempty"` // it may restart its job
	Nodes    []Place   `json:"n,omitempty"` // nodes that it may cordon
	Targets  []string  `json:"g,omitempty"` // nodes reserved for its replacements
	Did      []Done    `json:"d,omitempty"` // recorded before it was done
	Finding  string    `json:"f,omitempty"` // the statistical finding that it was granted for, as its signal
	Vain     bool      `json:"v,omitempty"` // the move did not help: the node was not the cause
	Helped   bool      `json:"h,omitempty"` // the move helped, by the pace of steps. Without either, nobody could tell
}

// VainWindow is how long moves for statistical findings are remembered: one that did not help, and one that did, since it ends a row of those.
const VainWindow = 30 * 24 * time.Hour

// Kept reports whether a guard may still look at a grant that has ended.
func (g Grant) Kept(before, now time.Time) bool {
	return !g.Ended.Before(before) && len(g.Did) > 0 || (g.Vain || g.movedForFinding()) && now.Sub(g.Ended) < VainWindow
}

func (g Grant) movedForFinding() bool {
	return g.Finding != "" && slices.ContainsFunc(g.Did, func(d Done) bool { return d.Verb == policy.RestartJob })
}

// Place is a node with the domains that breakers count by.
type Place struct {
	Node string `json:"n"`
	Pool string `json:"p,omitempty"`
	Rack string `json:"r,omitempty"` // see policy.RackOf
	Job  string `json:"j,omitempty"` // UID of the job that was on it; set by the grant
}

// PlaceOf is a node with its domains.
func PlaceOf(n *fleet.Node) Place {
	p := Place{Node: n.Name, Pool: n.Pool}
	if rack := policy.RackOf(n.Labels); rack != "" {
		p.Rack = rack
	}
	return p
}

// Done is an action that was done or intended.
type Done struct {
	Verb  policy.Verb `json:"v"`
	Node  string      `json:"n,omitempty"`
	At    time.Time   `json:"t"`
	Round int         `json:"r,omitempty"` // of the incident: a restart in each round is an action of its own
}

// Clone copies the grant; the places are shared, since nothing changes one.
func (g Grant) Clone() Grant {
	g.Nodes, g.Targets, g.Did = slices.Clone(g.Nodes), slices.Clone(g.Targets), slices.Clone(g.Did)
	return g
}

// Open reports whether the grant has not been returned.
func (g Grant) Open() bool { return g.Ended.IsZero() }

// Covers reports whether the grant is active and allows all that want asks for.
func (g Grant) Covers(want Grant) bool {
	return g.Open() && g.Active && g.Policy == want.Policy && g.Charged >= want.Charged && (g.Restart || !want.Restart) &&
		!slices.ContainsFunc(want.Nodes, func(p Place) bool { return !g.allows(p.Node) })
}

func (g Grant) allows(node string) bool {
	return slices.ContainsFunc(g.Nodes, func(p Place) bool { return p.Node == node })
}

// Add is the grant with what want asks for besides.
func (g Grant) Add(want Grant) Grant {
	out := g.Clone()
	out.Policy, out.Charged, out.Restart, out.Finding = want.Policy, max(g.Charged, want.Charged), g.Restart || want.Restart, want.Finding
	for _, p := range want.Nodes {
		if !g.allows(p.Node) {
			out.Nodes = append(out.Nodes, p)
		}
	}
	return out
}

func (g Grant) sameCause(causes []string) bool {
	return slices.ContainsFunc(g.Causes, func(c string) bool { return slices.Contains(causes, c) })
}

// Cordons are the nodes that the incident cordoned and that were not given back since.
func (g Grant) Cordons() (nodes []string) {
	for _, d := range g.Did {
		switch d.Verb {
		case policy.Cordon:
			nodes = append(nodes, d.Node)
		case policy.Uncordon:
			nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == d.Node })
		}
	}
	return nodes
}

// Undo records that a node was given back. It reports whether it had been taken.
func (g *Grant) Undo(node string, at time.Time) bool {
	if !slices.Contains(g.Cordons(), node) {
		return false
	}
	g.Did = append(g.Did, Done{Verb: policy.Uncordon, Node: node, At: at})
	g.Nodes = slices.DeleteFunc(g.Nodes, func(p Place) bool { return p.Node == node })
	return true
}

// End returns the grant: its place, its reservations and what it was allowed but did not do. It reports whether it was open.
func (g *Grant) End(now time.Time) bool {
	if !g.Open() {
		return false
	}
	cordoned := g.Cordons()
	g.Active, g.Ended, g.Targets, g.Restart, g.Charged = false, now, nil, false, 0
	g.Nodes = slices.DeleteFunc(g.Nodes, func(p Place) bool { return !slices.Contains(cordoned, p.Node) })
	return true
}

// disruptions counts the incident's actions since from.
func (g Grant) disruptions(from time.Time) (times []time.Time) {
	for _, d := range g.Did {
		if d.Verb.Disruptive() && d.At.After(from) {
			times = append(times, d.At)
		}
	}
	return times
}
