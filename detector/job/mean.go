package job

import (
	"math"

	"github.com/pitcrew/pitcrew/detector/peers"
)

// source is which of the two groups of a signal judged.
type source uint8

// Sources. The fine group sees every round. The coarse one sees the mean of eight: a drift that is slow enough to be learnt as a
// rank's own offset, round by round, is not slow there.
const (
	fine source = 1 + iota
	coarse
)

const meanRounds = 8

// mean feeds a group of peers with means over rounds.
type mean struct {
	group  *peers.Group
	sum    []float64 // of logarithms
	n      []float64
	out    []float64
	rounds int
}

func newMean(members int) *mean {
	g, err := peers.New(members)
	if err != nil {
		return &mean{}
	}
	return &mean{group: g, sum: make([]float64, members), n: make([]float64, members), out: make([]float64, members)}
}

func (m *mean) add(t int64, v []float64) []peers.Finding {
	for i, x := range v {
		if !math.IsNaN(x) {
			m.sum[i] += math.Log(x)
			m.n[i]++
		}
	}
	if m.rounds++; m.rounds < meanRounds {
		return nil
	}
	for i := range m.out {
		m.out[i] = math.Exp(m.sum[i] / m.n[i]) // without a value not a number
	}
	m.rounds = 0
	clear(m.sum)
	clear(m.n)
	return m.group.Round(t, m.out)
}

// accept takes a member's place for its own; its part of the mean that is being made is left out.
func (m *mean) accept(i int, apart float64) {
	m.sum[i], m.n[i] = 0, 0
	m.group.Accept(i, apart)
}
