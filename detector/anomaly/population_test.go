package anomaly

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// The hash of labels is seeded anew for each engine; what an engine says and keeps is not.
func TestTwoEnginesKeepTheSameOfTheSame(t *testing.T) {
	a, b := newNode(t, 4).pass(time.Minute), newNode(t, 4).pass(time.Minute)
	if x := a.e.Snapshot(); len(x) < 1000 || !bytes.Equal(x, b.e.Snapshot()) {
		t.Error("two engines that saw the same keep other bytes")
	}
}

func TestAPopulationHoldsWhomItWasGiven(t *testing.T) {
	p, err := newPopulation(100)
	if err != nil {
		t.Fatal(err)
	}
	held := map[entityKey]*entity{}
	for i := range 1000 {
		k := entityKey{About(i % 2), fmt.Sprint("GPU-", i%150/2), int64(i % 3)}
		en := p.of(k)
		if en != held[k] {
			t.Fatalf("%v is %p, want %p", k, en, held[k])
		}
		switch {
		case en != nil:
			p.remove(en)
			delete(held, k)
		default:
			en = &entity{key: k}
			if ok := p.add(en); ok != (len(held) < 100) {
				t.Fatalf("%d are held, and one more: %t", len(held), ok)
			} else if ok {
				held[k] = en
			}
		}
		n := 0
		for en := range p.all {
			if n++; held[en.key] != en {
				t.Fatalf("%v is among all", en.key)
			}
		}
		if n != len(held) || p.len() != n {
			t.Fatalf("%d of %d among all, %d by its word", n, len(held), p.len())
		}
	}
}
