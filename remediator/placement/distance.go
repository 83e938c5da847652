package placement

import (
	"slices"

	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// topology measures how far nodes are from the gang. Nodes in the same place are measured once: 5,000 nodes lie in a few hundred racks.
// Members join and leave it as they are placed.
type topology struct {
	tiers   []string
	flat    []bool             // by tier: an NVLink domain, which no wider tier contradicts
	values  []map[string]int32 // by tier: the label's values as numbers; 0 is no value
	last    []label            // by tier: the value that was read last; neighbors by name mostly share it
	at      [][]int32          // by place: its value in each tier
	index   map[string]int32   // of a place by its values
	of      []int32            // by node: its place
	members []int              // by place: members of the gang
	dist    []int32            // place by distance: how many members are so far away; width of a row is len(tiers)+1
	sum     []int              // by place: the sum of distances to the members
	size    int
}

// label is the value of a label and its number.
type label struct {
	value string
	id    int32
}

// newTopology keeps the tiers that are asked for. Tiers that neither the faulty node nor a peer carries say nothing about the gang, and
// would make one step away look like several. The candidates are not asked, so that no candidate changes how another is measured.
func newTopology(tiers []string, nodes []*fleet.Node) *topology {
	t := &topology{tiers: tiers, index: map[string]int32{}, of: make([]int32, len(nodes)), last: make([]label, len(tiers))}
	for _, l := range tiers {
		t.flat = append(t.flat, nvlinkLabels[l])
		t.values = append(t.values, map[string]int32{"": 0})
	}
	last, row := int32(-1), make([]int32, len(tiers))
	for i, n := range nodes {
		t.read(n, row)
		if last < 0 || !slices.Equal(row, t.at[last]) { // neighbors by name mostly share a rack
			last = t.placeAt(row)
		}
		t.of[i] = last
	}
	return t
}

func (t *topology) read(n *fleet.Node, row []int32) {
	for k, l := range t.tiers {
		value := n.Labels[l]
		if value == t.last[k].value {
			row[k] = t.last[k].id
			continue
		}
		id, ok := t.values[k][value]
		if !ok {
			id = int32(len(t.values[k]))
			t.values[k][value] = id
		}
		row[k], t.last[k] = id, label{value, id}
	}
}

// placeAt numbers a place. One that is new is as far from each member as it is.
func (t *topology) placeAt(row []int32) int32 {
	key := make([]byte, 0, 4*len(row))
	for _, v := range row {
		key = append(key, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	}
	if p, ok := t.index[string(key)]; ok {
		return p
	}
	p := int32(len(t.at))
	t.index[string(key)] = p
	t.at = append(t.at, slices.Clone(row))
	t.members, t.sum = append(t.members, 0), append(t.sum, 0)
	t.dist = append(t.dist, make([]int32, len(t.tiers)+1)...)
	for q, m := range t.members {
		if m != 0 {
			t.measure(int(p), t.between(t.at[p], t.at[q]), m)
		}
	}
	return p
}

// join adds so many members in the place of a node, or takes them away.
func (t *topology) join(n *fleet.Node, members int) {
	row := make([]int32, len(t.tiers))
	t.read(n, row)
	q := t.placeAt(row)
	t.members[q] += members
	t.size += members
	for p := range t.at {
		t.measure(p, t.between(t.at[p], t.at[q]), members)
	}
}

func (t *topology) measure(p, distance, members int) {
	t.dist[p*(len(t.tiers)+1)+distance] += int32(members)
	t.sum[p] += distance * members
}

// toGang is the greatest distance and the sum of distances from a place to the members.
func (t *topology) toGang(p int32) (greatest, sum int) {
	width := len(t.tiers) + 1
	row := t.dist[int(p)*width : (int(p)+1)*width]
	for d := len(t.tiers); d > 0; d-- {
		if row[d] > 0 {
			return d, t.sum[p]
		}
	}
	return 0, t.sum[p]
}

// between is the index of the nearest tier in which a and b are in one domain, the number of tiers if in none. A rack's name counts
// only within its block: if a wider tier tells the two apart, equal names are two racks. NVLink domains are identities.
func (t *topology) between(a, b []int32) int {
	for i := range a {
		if a[i] != 0 && a[i] == b[i] && (t.flat[i] || !t.contradicted(a, b, i+1)) {
			return i
		}
	}
	return len(a)
}

func (t *topology) contradicted(a, b []int32, from int) bool {
	for i := from; i < len(a); i++ {
		if !t.flat[i] && a[i] != 0 && b[i] != 0 && a[i] != b[i] {
			return true
		}
	}
	return false
}

// reference is how far the faulty node is from the gang, which is what replacements are measured by.
type reference struct{ greatest, sum, size int }

// loss is by how many tiers a node is farther from the gang than the faulty one was: 0 if neither the greatest distance nor the sum is
// worse; else the greater of the growth of the greatest and the mean growth, rounded up.
func (r reference) loss(greatest, sum int) int {
	if greatest <= r.greatest && sum <= r.sum {
		return 0
	}
	mean := (max(0, sum-r.sum) + r.size - 1) / r.size
	return max(greatest-r.greatest, mean)
}
