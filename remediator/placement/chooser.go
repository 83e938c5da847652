package placement

import (
	"slices"
	"strings"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// Chooser chooses nodes for the members of one gang that ask for the same, one after the other. What does not depend on the member is
// worked out once. It belongs to one goroutine, and is good for as long as the nodes are: make another for another Fleet.
type Chooser struct {
	Request
	nodes        []*fleet.Node // by name
	selectorKeys []string
	requestKeys  []string
	barredKeys   []string

	reasons  []uint8 // by node: the rank of the first fixed reason against it
	keys     []uint64
	excluded []bool   // faulty as well; none where the job goes back to its own node
	holds    []uint16 // by node: peers on it
	taken    []uint16 // by node: members that were placed there since
	peers    []*fleet.Node
	carried  []int // by tier: how many peers carry it

	classes    map[string][]bool
	topologies map[string]*topology
	fields     []*field // of the moves so far
	apart      *apart   // nil: members may be near each other
	losses     []int32  // by place, of the present move
}

// Move is one member that needs another node.
type Move struct {
	Faulty string // the node that it leaves
	// At is where the member is now, if that is another node: a replacement that came down where it may not stay. It is no peer of itself.
	At string
	// Prefer is the node that was chosen before; it is chosen again while it will do.
	Prefer string
}

// NewChooser prepares a request. Nodes are those of Cluster.Fleet, or any others with unique names; they are not modified. The request's
// own Faulty is not read.
func NewChooser(r Request, nodes []*fleet.Node) *Chooser {
	byName := func(a, b *fleet.Node) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(nodes, byName) {
		nodes = slices.SortedStableFunc(slices.Values(nodes), byName)
	}
	c := &Chooser{Request: r, nodes: nodes, reasons: make([]uint8, len(nodes)), keys: make([]uint64, len(nodes)), excluded: make([]bool, len(nodes)),
		holds: make([]uint16, len(nodes)), taken: make([]uint16, len(nodes)), classes: map[string][]bool{}, topologies: map[string]*topology{}}
	if c.Mode == "" {
		c.Mode = Equivalent
	}
	if c.Tiers == nil {
		c.Tiers = Tiers()
	}
	if c.HardLabels == nil {
		c.HardLabels = HardLabels()
	}
	c.carried = make([]int, len(c.Tiers))
	for k := range r.NodeSelector {
		c.selectorKeys = append(c.selectorKeys, k)
	}
	for k := range r.Requests {
		c.requestKeys = append(c.requestKeys, k)
	}
	for k := range r.Barred {
		c.barredKeys = append(c.barredKeys, k)
	}
	slices.Sort(c.selectorKeys)
	slices.Sort(c.barredKeys)
	slices.Sort(c.requestKeys)
	if len(c.Apart) > 0 && c.Mode != SameNode {
		c.apart = newApart(c.Apart, nodes)
	}
	for _, p := range r.Peers {
		c.add(p)
	}
	for _, name := range r.Exclude {
		if i := c.find(name); i >= 0 && c.Mode != SameNode {
			c.excluded[i] = true
		}
	}
	for i := range nodes {
		c.judge(i)
	}
	return c
}

// Helps reports whether a member could be placed on the node, by what the node's own view says: where the gang is and what else it wants is
// not asked. It is for one node that changed; Choose decides.
func (r Request) Helps(n *fleet.Node) bool {
	r.Peers, r.Exclude, r.Apart, r.Barred, r.Unfit = nil, nil, nil, nil, nil
	return NewChooser(r, []*fleet.Node{n}).reasons[0] == eligible
}

func (c *Chooser) find(name string) int {
	i, ok := slices.BinarySearchFunc(c.nodes, name, func(n *fleet.Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return -1
	}
	return i
}

var unknown = &fleet.Node{} // a peer that is not among the nodes has no labels and is equally far from all

func (c *Chooser) add(peer string) *fleet.Node {
	n := unknown
	if i := c.find(peer); i >= 0 {
		n = c.nodes[i]
		c.holds[i]++
	}
	c.peers = append(c.peers, n)
	c.carry(n, 1)
	c.apart.join(n, 1)
	return n
}

func (c *Chooser) carry(n *fleet.Node, by int) {
	for k, l := range c.Tiers {
		if n.Labels[l] != "" {
			c.carried[k] += by
		}
	}
}

// judge looks for fixed reasons against a node, and ranks it if there are none.
func (c *Chooser) judge(i int) {
	c.drop(i)
	if c.reasons[i] = c.fixedRank(i); c.reasons[i] == eligible {
		c.keys[i] = c.key(i)
	}
	c.put(i)
}

// Take counts a member in that has been given a node: others measure their distance to it, and its room is used.
func (c *Chooser) Take(node string) {
	n := c.add(node)
	for _, t := range c.topologies {
		t.join(n, 1)
	}
	if i := c.find(node); i >= 0 {
		c.taken[i]++
		c.judgeAgain(i)
	}
}

// judgeAgain judges a node that a member came to or left, and those that may not be near it.
func (c *Chooser) judgeAgain(i int) {
	c.judge(i)
	for _, near := range c.apart.near(c.nodes[i]) {
		c.judge(int(near))
	}
}

// stepOut takes a member that is on a node out of the gang while it is placed anew, and returns what puts it back.
func (c *Chooser) stepOut(at string) (back func()) {
	i := c.find(at)
	k := slices.IndexFunc(c.peers, func(n *fleet.Node) bool { return n.Name == at })
	if at == "" || i < 0 || k < 0 {
		return func() {}
	}
	n, was := c.peers[k], c.peers
	c.peers = slices.Delete(slices.Clone(c.peers), k, k+1)
	shift := func(by int) {
		c.holds[i] = uint16(int(c.holds[i]) + by)
		c.carry(n, by)
		c.apart.join(n, by)
		for _, t := range c.topologies {
			t.join(n, by)
		}
		c.judgeAgain(i)
	}
	shift(-1)
	return func() { c.peers = was; shift(1) }
}

// measure is what a move is judged by.
type measure struct {
	Move
	faulty    int // index; -1: not among the nodes
	class     map[string]string
	inClass   []bool
	failed    []bool // nil: no domain has failed
	topology  *topology
	reference reference
	alone     bool // the gang has no other member; the faulty node stands for it
}

func (c *Chooser) measure(m Move) *measure {
	out := &measure{Move: m, faulty: c.find(m.Faulty), alone: len(c.peers) == 0}
	faulty := unknown
	if out.faulty >= 0 {
		faulty = c.nodes[out.faulty]
	}
	out.class = classOf(c.HardLabels, faulty, c.peers)
	out.inClass = c.inClass(out.class)
	if c.Failed != "" && c.Failed != NodeScope && faulty.Labels[c.Failed] != "" {
		out.failed = c.inClass(map[string]string{c.Failed: faulty.Labels[c.Failed]})
	}
	out.topology = c.topologyFor(faulty, out.alone)
	row := make([]int32, len(out.topology.tiers))
	out.topology.read(faulty, row)
	greatest, sum := out.topology.toGang(out.topology.placeAt(row))
	out.reference = reference{greatest, sum, max(1, out.topology.size)}
	places := len(out.topology.at)
	c.losses = slices.Grow(c.losses[:0], places)[:places]
	for p := range places {
		c.losses[p] = int32(out.reference.loss(out.topology.toGang(int32(p))))
	}
	return out
}

// topologyFor keeps the tiers that the faulty node or a peer carries.
func (c *Chooser) topologyFor(faulty *fleet.Node, alone bool) *topology {
	var kept []string
	for k, l := range c.Tiers {
		if c.carried[k] > 0 || faulty.Labels[l] != "" {
			kept = append(kept, l)
		}
	}
	key := strings.Join(kept, ",")
	t := c.topologies[key]
	if t == nil || alone {
		t = newTopology(kept, c.nodes)
		for _, p := range c.peers {
			t.join(p, 1)
		}
		if alone {
			t.join(faulty, 1)
			return t
		}
		c.topologies[key] = t
	}
	return t
}

// reason is the rank of the first reason against a node for this move.
func (c *Chooser) reason(m *measure, i int) uint8 {
	switch {
	case c.Mode == SameNode && i != m.faulty:
		return rankNotSame
	case c.Mode != SameNode && i == m.faulty:
		return rankFaulty
	}
	r := c.standing(&field{inClass: m.inClass, failed: m.failed}, i)
	if r == eligible && c.Mode == Equivalent && int(c.losses[m.topology.of[i]]) > c.MaxTierLoss {
		return rankTooFar
	}
	return r
}

// reasonsOf are the reasons against all nodes.
func (c *Chooser) reasonsOf(m *measure) []uint8 {
	out := make([]uint8, len(c.nodes))
	for i := range out {
		out[i] = c.reason(m, i)
	}
	return out
}

// Check says what would become of one node, as Choose does of all: Chosen if it could be chosen. ok is false for a node that is not there.
func (c *Chooser) Check(m Move, node string) (k Candidate, ok bool) {
	i := c.find(node)
	if i < 0 {
		return Candidate{Node: node}, false
	}
	defer c.stepOut(m.At)()
	measured := c.measure(m)
	r := c.reason(measured, i)
	k = c.candidate(measured, i, r)
	if measured.faulty < 0 {
		return c.unmeasured(k), true
	}
	if r == eligible {
		k.Chosen, k.Reason, k.Detail = true, Chosen, c.about(measured, k)
	}
	return k, true
}
