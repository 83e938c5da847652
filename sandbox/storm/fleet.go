package storm

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
)

// GPUs of a node. A pod of a gang takes all of them and runs a rank on each.
const GPUs = 8

// A rack has rackNodes nodes, of which the last spares run no gang. A spine switch connects spineRacks racks.
const (
	rackNodes  = 32
	spares     = 3
	spineRacks = 16
)

// fleet is a cluster on paper: which nodes there are, and which gang's members run where.
type fleet struct {
	nodes []node
	gangs []gang
	fill  int // pods on each node that belong to no gang, as those of DaemonSets
}

type node struct{ name, rack, spine string }

// gang is a job of one pod per node; members[i] is the node of the pod with completion index i.
type gang struct {
	name    string
	members []int
}

// newFleet lays gangs on nodes in order, so that a gang fills whole racks before it begins the next.
func newFleet(nodes, gangs, fill int) (fleet, error) {
	if nodes < 1 || gangs < 1 || fill < 0 {
		return fleet{}, fmt.Errorf("a fleet needs nodes and gangs, got NODES=%d GANGS=%d FILL=%d", nodes, gangs, fill)
	}
	f := fleet{fill: fill}
	var room []int
	for i := range nodes {
		rack := i / rackNodes
		f.nodes = append(f.nodes, node{name: fmt.Sprintf("n%04d", i), rack: fmt.Sprintf("rack-%03d", rack), spine: fmt.Sprintf("spine-%02d", rack/spineRacks)})
		if i%rackNodes < rackNodes-spares {
			room = append(room, i)
		}
	}
	sizes := gangSizes(gangs, len(room))
	if sizes == nil {
		return fleet{}, fmt.Errorf("%d gangs do not fit on %d nodes: at most %d, one node each", gangs, nodes, len(room))
	}
	for g, size := range sizes {
		f.gangs = append(f.gangs, gang{name: fmt.Sprintf("gang-%03d", g), members: room[:size]})
		room = room[size:]
	}
	return f, nil
}

// Gangs have 4 to 512 pods on a cluster of 5,000 nodes.
const (
	largestGang  = 512
	smallestGang = 4
)

// gangSizes is the number of pods of each gang: one of the largest size, two of half of it, four of a quarter, down to the smallest. All
// are halved until they fit; nil if even one pod each is too much.
func gangSizes(gangs, room int) []int {
	for most, least := largestGang, smallestGang; most >= 1; most, least = most/2, max(1, least/2) {
		sizes, total := make([]int, gangs), 0
		for i := range sizes {
			sizes[i] = max(least, most>>(bits.Len(uint(i+1))-1))
			total += sizes[i]
		}
		if total <= room {
			return sizes
		}
	}
	return nil
}

// pods is how many pods there are, those beside the gangs included.
func (f fleet) pods() int {
	n := f.fill * len(f.nodes)
	for _, g := range f.gangs {
		n += len(g.members)
	}
	return n
}

// pick chooses n different nodes of the list, the same ones for the same seed.
func pick(from []string, n int, seed uint64) []string {
	order := rand.New(rand.NewPCG(seed, 10)).Perm(len(from))
	out := make([]string, 0, n)
	for _, i := range order[:min(n, len(order))] {
		out = append(out, from[i])
	}
	return out
}
