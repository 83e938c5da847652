package hook

import (
	"math/rand/v2"
	"testing"
)

// A model of the ring's memory under the weakest ordering that the protocol assumes: stores between two fences of the
// writer become visible in any order, one 8-byte word at a time, and a reading may see each of its words at another
// moment. Only fences, and the end of one reading before the beginning of the next, order anything.
type weakRing struct {
	capacity uint64
	stores   []weakStore // in program order
}

type weakStore struct {
	word  uint64
	value uint64
	fence bool // nothing is stored: what came before is visible before what comes after
}

const modelWords = 4 // of a record: number, and three that a reader must find to be of that number

func (w *weakRing) slot(n uint64) uint64 { return 1 + (n-1)%w.capacity*modelWords }

// write is pitcrew_torch.ring.Ring.record: clear the number, body, number, fence, count (word 0).
func (w *weakRing) write(n uint64, fenced bool) {
	at := w.slot(n)
	w.stores = append(w.stores, weakStore{word: at})
	for i := uint64(1); i < modelWords; i++ {
		w.stores = append(w.stores, weakStore{word: at + i, value: n})
	}
	w.stores = append(w.stores, weakStore{word: at, value: n}, weakStore{fence: fenced}, weakStore{word: 0, value: n})
}

// visible gives the stores in an order in which they may become visible: any within a stretch between fences, but the
// stores to one word keep theirs.
func (w *weakRing) visible(rng *rand.Rand) []weakStore {
	var out, stretch []weakStore
	flush := func() {
		for len(stretch) > 0 {
			i := rng.IntN(len(stretch))
			for j := range i { // coherence: an earlier store to the same word goes first
				if stretch[j].word == stretch[i].word {
					i = j
					break
				}
			}
			out = append(out, stretch[i])
			stretch = append(stretch[:i:i], stretch[i+1:]...)
		}
	}
	for _, s := range w.stores {
		if s.fence {
			flush()
			continue
		}
		if s.word != 0 || s.value != 0 {
			stretch = append(stretch, s)
		}
	}
	flush()
	return out
}

// tornIn reads a running ring many times as Ring.Records does and counts records that `published` gives out though
// their words are not all of that record.
func tornIn(t *testing.T, seed uint64, fenced bool, margin func(uint64) uint64) int {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	const capacity, laps = 16, 4
	w := &weakRing{capacity: capacity}
	for n := uint64(1); n <= capacity*laps; n++ {
		w.write(n, fenced)
	}
	history := w.visible(rng)
	memory := make([]uint64, 1+capacity*modelWords)
	at := 0
	advance := func(most int) {
		for range rng.IntN(most + 1) {
			if at < len(history) {
				memory[history[at].word] = history[at].value
				at++
			}
		}
	}
	torn := 0
	for at < len(history) {
		advance(20)
		written := memory[0]
		if written == 0 {
			continue
		}
		advance(rng.IntN(200)) // the reader may be interrupted
		count := min(written, capacity)
		first := written - count + 1
		words := make([]uint64, count*modelWords)
		for _, i := range rng.Perm(len(words)) { // its loads come in any order
			words[i] = memory[w.slot(first+uint64(i)/modelWords)+uint64(i)%modelWords]
			advance(rng.IntN(2))
		}
		end := memory[0]
		for i := range count {
			n := first + i
			if n+capacity <= end+margin(capacity) || words[i*modelWords] != n {
				continue
			}
			for j := uint64(1); j < modelWords; j++ {
				if words[i*modelWords+j] != n {
					torn++
					break
				}
			}
		}
	}
	return torn
}

func TestNoOrderInWhichStoresBecomeVisibleGivesATornRecord(t *testing.T) {
	for seed := range uint64(3000) {
		if n := tornIn(t, seed, true, ringMargin); n != 0 {
			t.Fatalf("seed %d: %d torn records", seed, n)
		}
	}
}

// The model can fail: each of the two rules is needed.
func TestWithoutTheFenceOrTheMarginTheModelFindsTornRecords(t *testing.T) {
	for name, c := range map[string]struct {
		fenced bool
		margin func(uint64) uint64
	}{
		"no fence":        {false, ringMargin},
		"no margin":       {true, func(uint64) uint64 { return 0 }},
		"a margin of one": {true, func(uint64) uint64 { return 1 }},
	} {
		torn := 0
		for seed := uint64(0); seed < 3000 && torn == 0; seed++ {
			torn += tornIn(t, seed, c.fenced, c.margin)
		}
		if torn == 0 {
			t.Errorf("%s: no torn record was found", name)
		}
	}
}
