package placement

import (
	"slices"
	"strings"
)

// topology measures how far nodes are from the gang. Members in the same place are measured once: a gang of a thousand nodes
// lies in a few dozen racks.
type topology struct {
	tiers []string
	flat  []bool // by tier: an NVLink domain, which no wider tier contradicts
	gang  []place
	size  int // members; without any, the faulty node stands for them
	alone bool
	// of the faulty node itself
	greatest, sum int
}

// place is where some members are: the value of each tier.
type place struct {
	at      []string
	members int
}

// newTopology keeps the tiers that the faulty node or a peer carries. Others tell nothing about the gang, and would make one step
// away look like several. The candidates are not asked, so that no candidate changes how another is measured.
func newTopology(tiers []string, faulty Node, peers []Node) topology {
	t := topology{alone: len(peers) == 0, size: max(1, len(peers))}
	if t.alone {
		peers = []Node{faulty}
	}
	for _, l := range tiers {
		if faulty.Labels[l] != "" || slices.ContainsFunc(peers, func(p Node) bool { return p.Labels[l] != "" }) {
			t.tiers, t.flat = append(t.tiers, l), append(t.flat, nvlinkLabels[l])
		}
	}
	index := map[string]int{}
	for _, p := range peers {
		at := t.place(p.Labels)
		key := strings.Join(at, "\x00")
		i, ok := index[key]
		if !ok {
			i = len(t.gang)
			index[key] = i
			t.gang = append(t.gang, place{at: at})
		}
		t.gang[i].members++
	}
	t.greatest, t.sum = t.toGang(faulty.Labels)
	return t
}

func (t topology) place(labels map[string]string) []string {
	at := make([]string, len(t.tiers))
	for i, l := range t.tiers {
		at[i] = labels[l]
	}
	return at
}

// between is the index of the nearest tier in which a and b lie in one domain, the number of tiers if in none. A rack's name counts
// only within its block: where a wider tier tells the two apart, equal names are two racks. NVLink domains are identities.
func (t topology) between(a, b []string) int {
	for i := range t.tiers {
		if a[i] != "" && a[i] == b[i] && (t.flat[i] || !t.contradicted(a, b, i+1)) {
			return i
		}
	}
	return len(t.tiers)
}

func (t topology) contradicted(a, b []string, from int) bool {
	for i := from; i < len(t.tiers); i++ {
		if !t.flat[i] && a[i] != "" && b[i] != "" && a[i] != b[i] {
			return true
		}
	}
	return false
}

// toGang is the greatest distance and the sum of distances to the members.
func (t topology) toGang(labels map[string]string) (greatest, sum int) {
	at := t.place(labels)
	for _, p := range t.gang {
		d := t.between(at, p.at)
		greatest, sum = max(greatest, d), sum+d*p.members
	}
	return greatest, sum
}

// loss is by how many tiers a node is farther from the gang than the faulty one was: 0 when neither the greatest distance nor the
// sum is worse; else the greater of the growth of the greatest and the mean growth, rounded up.
func (t topology) loss(greatest, sum int) int {
	if greatest <= t.greatest && sum <= t.sum {
		return 0
	}
	mean := (max(0, sum-t.sum) + t.size - 1) / t.size
	return max(greatest-t.greatest, mean)
}
