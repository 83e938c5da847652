package incident

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// DomainKind is a kind of failure domain.
type DomainKind string

// The kinds, from the narrowest to the widest.
const (
	RackDomain DomainKind = "rack" // or what shares one leaf switch: see policy.RackOf
	PoolDomain DomainKind = "pool"
)

// width orders the kinds. One cause is looked for in the narrowest domain first.
var width = map[DomainKind]int{RackDomain: 1, PoolDomain: 3}

// Domain is something that nodes share and that can fail as a whole.
type Domain struct {
	Kind DomainKind `json:"kind"`
	Name string     `json:"name"`
}

func (d Domain) String() string { return string(d.Kind) + " " + d.Name }

// domainsOf are the domains of a node, the narrowest first. Labels are what the API server has; what a node's owner forges there can put
// the node's incident beside others, and changes nothing of what the guards allow it.
func domainsOf(n *fleet.Node) (out []Domain) {
	if n == nil {
		return nil
	}
	for _, d := range []Domain{{RackDomain, policy.RackOf(n.Labels)}, {PoolDomain, n.Pool}} {
		if d.Name != "" {
			out = append(out, d)
		}
	}
	return out
}

// sibling is an incident that may have its cause in common with others.
type sibling struct {
	id, node string
	rule     string // with its policy
	domains  []Domain
	opened   time.Time
	limits   policy.Grouping
	later    bool // another of its domains opened before it, within the window: its notices wait
}

func siblingOf(i *Incident, p *Plan) *sibling {
	return &sibling{id: i.ID, node: i.Faults[0].Node, rule: p.Policy + "/" + p.Rule, domains: i.Domains, opened: i.Opened, limits: p.OneCause}
}

// shared is a domain under one rule.
type shared struct {
	rule string
	Domain
}

// kin finds incidents with one cause. Its methods may be called from any goroutine, and call nothing that takes another lock.
type kin struct {
	mu      sync.Mutex
	lone    map[string]*sibling   // opened within the window, and without a parent
	by      map[shared][]*sibling // the same, oldest first
	parents map[shared]string     // open ones
	named   map[string]bool       // parents that a child names; another leader may have made them
	news    chan struct{}
}

func newKin() *kin {
	return &kin{lone: map[string]*sibling{}, by: map[shared][]*sibling{}, parents: map[shared]string{}, named: map[string]bool{}, news: make(chan struct{}, 1)}
}

// meets takes an incident in. parent is the open parent that it is to be a child of, empty if there is none. One that is being born is stored
// as its child; any other joins it later.
func (k *kin) meets(s *sibling, born bool) (parent string) {
	if s.limits.Nodes < 1 || len(s.domains) == 0 {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if parent = k.parentOf(s); parent != "" && born || k.lone[s.id] != nil {
		return parent
	}
	k.lone[s.id] = s
	for _, d := range s.domains {
		at := shared{s.rule, d}
		s.later = s.later || slices.ContainsFunc(k.by[at], func(o *sibling) bool {
			return o.node != s.node && s.opened.Sub(o.opened) < time.Duration(s.limits.Within)
		})
		k.by[at] = append(k.by[at], s)
	}
	k.tell()
	return parent
}

func (k *kin) tell() {
	select {
	case k.news <- struct{}{}:
	default:
	}
}

// names notes that a child names a parent.
func (k *kin) names(parent string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.named[parent] = true
	k.tell()
}

// takeNamed gives the parents that were named since it was last asked.
func (k *kin) takeNamed() map[string]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.named
	k.named = map[string]bool{}
	return out
}

func (k *kin) parentOf(s *sibling) string {
	for _, d := range s.domains {
		if id := k.parents[shared{s.rule, d}]; id != "" {
			return id
		}
	}
	return ""
}

// leads notes an open parent, or that it has ended.
func (k *kin) leads(p *Incident) {
	at := shared{p.Plan.Policy + "/" + p.Plan.Rule, p.Group.Domain}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p.Open() {
		k.parents[at] = p.ID
	} else if k.parents[at] == p.ID {
		delete(k.parents, at)
	}
}

// waits reports whether the notices of an incident wait, since it may turn out to have its cause in common with others.
func (k *kin) waits(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.lone[id]
	return s != nil && s.later
}

func (k *kin) drop(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget(k.lone[id])
}

func (k *kin) forget(s *sibling) {
	if s == nil {
		return
	}
	delete(k.lone, s.id)
	for _, d := range s.domains {
		at := shared{s.rule, d}
		if rest := slices.DeleteFunc(k.by[at], func(o *sibling) bool { return o == s }); len(rest) > 0 {
			k.by[at] = rest
		} else {
			delete(k.by, at)
		}
	}
}

// sort gives what is to be done now: incidents that join an open parent, parents to be made, and incidents whose notices waited and that
// turned out to stand alone. left is how many may still find others.
func (k *kin) sort(now time.Time) (join map[string]string, make []gathering, alone []string, left int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	join = map[string]string{}
	var rest []*sibling
	for _, s := range k.lone {
		switch parent := k.parentOf(s); {
		case parent != "":
			join[s.id] = parent
		case now.Sub(s.opened) >= time.Duration(s.limits.Within):
			if k.forget(s); s.later {
				alone = append(alone, s.id)
			}
		default:
			rest = append(rest, s)
		}
	}
	return join, gatherings(rest), alone, len(k.lone)
}

// gathering is a parent to be made: incidents of enough nodes of one domain, under one rule.
type gathering struct {
	Domain
	rule    string
	members []*sibling // oldest first
}

// gatherings finds them. The narrowest domain wins, so that a rack that fails is told as a rack; but where as many racks as make a parent
// each have one's worth of nodes, the domain around them is what failed.
func gatherings(lone []*sibling) (out []gathering) {
	rest := slices.Clone(lone)
	slices.SortFunc(rest, func(a, b *sibling) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), a.opened.Compare(b.opened), cmp.Compare(a.id, b.id))
	})
	for {
		g, ok := widest(rest)
		if !ok {
			return out
		}
		out = append(out, g)
		rest = slices.DeleteFunc(rest, func(s *sibling) bool { return slices.Contains(g.members, s) })
	}
}

// widest is the first gathering among siblings in order.
func widest(all []*sibling) (gathering, bool) {
	by := map[shared]*gathering{}
	nodes := map[shared]map[string]bool{}
	var keys []shared // in order, so that equal ones are always chosen alike
	for _, s := range all {
		for _, d := range s.domains {
			at := shared{s.rule, d}
			if by[at] == nil {
				by[at], nodes[at] = &gathering{Domain: d, rule: s.rule}, map[string]bool{}
				keys = append(keys, at)
			}
			by[at].members = append(by[at].members, s)
			nodes[at][s.node] = true
		}
	}
	full := func(at shared) bool { return len(nodes[at]) >= by[at].members[0].limits.Nodes }
	// rank is how good a gathering is, the least the best: a domain around enough full racks, a full rack, any other full domain.
	rank := func(at shared) int {
		if at.Kind == RackDomain {
			return 2
		}
		racks := map[Domain]bool{}
		for _, s := range by[at].members {
			for _, d := range s.domains {
				racks[d] = racks[d] || d.Kind == RackDomain && full(shared{s.rule, d})
			}
		}
		n := 0
		for _, is := range racks {
			if is {
				n++
			}
		}
		if n >= by[at].members[0].limits.Nodes {
			return 1
		}
		return 3
	}
	keys = slices.DeleteFunc(keys, func(at shared) bool { return !full(at) })
	if len(keys) == 0 {
		return gathering{}, false
	}
	best := slices.MinFunc(keys, func(a, b shared) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(nodes[b]), len(nodes[a])), cmp.Compare(width[a.Kind], width[b.Kind]), cmp.Compare(a.rule, b.rule),
			cmp.Compare(a.Name, b.Name))
	})
	return *by[best], true
}
