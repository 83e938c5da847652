package index

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// twin is a Go map beside the table, which must always agree.
type twin struct {
	t    *Table
	m    map[Key]uint32
	used map[uint32]bool
	most int
}

func newTwin(tb testing.TB, most int) *twin {
	tb.Helper()
	t, err := New(most)
	if err != nil {
		tb.Fatal(err)
	}
	return &twin{t, map[Key]uint32{}, map[uint32]bool{}, most}
}

// do does one thing with a key, and gives what is wrong then.
func (w *twin) do(op byte, k Key) error {
	old, held := w.m[k]
	switch op % 4 {
	case 0:
		if id, ok := w.t.Delete(k); ok != held || ok && id != old {
			return fmt.Errorf("delete %v: %d %t, want %d %t", k, id, ok, old, held)
		}
		delete(w.m, k)
		delete(w.used, old)
	case 1:
		if id, ok := w.t.Find(k); ok != held || ok && id != old {
			return fmt.Errorf("find %v: %d %t, want %d %t", k, id, ok, old, held)
		}
	default:
		id, ok := w.t.Put(k)
		switch room := held || len(w.m) < w.most; {
		case ok != room, held && id != old:
			return fmt.Errorf("put %v: %d %t, want %d %t", k, id, ok, old, room)
		case ok && !held && (w.used[id] || int(id) >= w.most):
			return fmt.Errorf("put %v: number %d is taken or beyond the bound", k, id)
		case ok:
			w.m[k], w.used[id] = id, true
		}
	}
	if w.t.Len() != len(w.m) {
		return fmt.Errorf("%d held, want %d", w.t.Len(), len(w.m))
	}
	return nil
}

func (w *twin) whole() error {
	for k, id := range w.m {
		if got, ok := w.t.Find(k); !ok || got != id {
			return fmt.Errorf("%v has number %d %t, want %d", k, got, ok, id)
		}
	}
	return nil
}

// keys that differ in one part only are among them.
func some(rng *rand.Rand, n int) Key {
	return Key{fmt.Sprint("GPU-", rng.IntN(n)), int64(rng.IntN(3)) - 1, uint8(rng.IntN(2))}
}

func TestATableSaysWhatAMapSays(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		most := 1 + rng.IntN(700)
		w := newTwin(t, most)
		if seed%4 == 0 { // every key has the same home: long rows to move back
			w.t.hash.secret = 0
		}
		for i := range 6000 {
			if err := w.do(byte(rng.IntN(4)), some(rng, max(1, most/4))); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
			if i%1000 == 0 {
				if err := w.whole(); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, i, err)
				}
			}
		}
	}
}

func TestKeysOfOneHashAreNeverTakenForEachOther(t *testing.T) {
	w := newTwin(t, 300)
	w.t.hash.secret = 0 // all hashes are 0
	for i := range 300 {
		if err := w.do(2, Key{Name: strings.Repeat("x", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := w.t.Find(Key{Name: "y"}); ok {
		t.Error("a stranger is known")
	}
	for i := 0; i < 300; i += 2 {
		if err := w.do(0, Key{Name: strings.Repeat("x", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.whole(); err != nil {
		t.Error(err)
	}
}

func TestNumbersDoNotDependOnTheSeed(t *testing.T) {
	a, b := newTwin(t, 200), newTwin(t, 200)
	if a.t.hash == b.t.hash {
		t.Fatal("two tables have one seed")
	}
	rng := rand.New(rand.NewPCG(7, 1))
	for range 6000 {
		op, k := byte(rng.IntN(4)), some(rng, 60)
		if err := a.do(op, k); err != nil {
			t.Fatal(err)
		}
		if err := b.do(op, k); err != nil {
			t.Fatal(err)
		}
		if x, ok := a.m[k]; ok && x != b.m[k] {
			t.Fatalf("%v has number %d and %d", k, x, b.m[k])
		}
	}
}

func TestAFullTableRefusesAndStaysAtItsSize(t *testing.T) {
	for _, most := range []int{0, -1, MaxKeys + 1} {
		if _, err := New(most); err == nil {
			t.Errorf("a bound of %d is taken", most)
		}
	}
	w := newTwin(t, 1000)
	for i := range 20000 { // the oldest leave, as at the bound of an engine
		if i >= 1000 {
			if err := w.do(1, Key{N: int64(i)}); err != nil {
				t.Fatal(err)
			}
			if _, ok := w.t.Put(Key{N: int64(i)}); ok {
				t.Fatal("one more than the bound is taken")
			}
			if err := w.do(0, Key{N: int64(i - 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.do(2, Key{N: int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n, k := len(w.t.slots), len(w.t.keys); n != 2048 || k != 1000 || cap(w.t.free) > 1024 {
		t.Errorf("%d slots, %d keys, %d free", n, k, cap(w.t.free))
	}
}

// Numbers that a pod may choose for itself lie apart: no row of taken places is long.
func TestKeysThatFollowEachOtherSpread(t *testing.T) {
	for name, key := range map[string]func(i int) Key{
		"numbers":       func(i int) Key { return Key{Name: "pod", N: int64(i)} },
		"powers of two": func(i int) Key { return Key{Name: "pod", N: int64(i) << 32, Class: 1} },
		"names":         func(i int) Key { return Key{Name: fmt.Sprint("step.duration{rank=", i, "}")} },
	} {
		w := newTwin(t, 1<<14)
		for i := range 1 << 14 {
			if err := w.do(2, key(i)); err != nil {
				t.Fatal(err)
			}
		}
		steps, mask := 0, len(w.t.slots)-1
		for i, s := range w.t.slots {
			if s.id != 0 {
				steps += (i - int(s.hash)) & mask
			}
		}
		if mean := float64(steps) / (1 << 14); mean > 1.5 { // at load 1/2 of a random hash: 0.5
			t.Errorf("%s: %.2f places from home on average", name, mean)
		}
	}
}

func TestALookUpAllocatesNothing(t *testing.T) {
	w := newTwin(t, 64)
	k := Key{Name: strings.Clone("GPU-1"), N: 3}
	if n := testing.AllocsPerRun(100, func() { w.t.Put(k); w.t.Find(k); w.t.Delete(k) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzTableAgainstAMap(f *testing.F) {
	f.Add(uint8(4), []byte("\x02a\x02b\x00a\x03c\x01b"), false)
	f.Add(uint8(200), []byte("\x02aaaa\x02bbbb"), true)
	f.Fuzz(func(t *testing.T, most uint8, ops []byte, crowded bool) {
		w := newTwin(t, int(most)+1)
		if crowded {
			w.t.hash.secret = 0
		}
		for ; len(ops) >= 2 && len(ops) < 1<<12; ops = ops[2:] {
			k := Key{string(ops[1 : 1+len(ops[1:])%3]), int64(ops[1] >> 2), ops[1] & 1}
			if err := w.do(ops[0], k); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.whole(); err != nil {
			t.Fatal(err)
		}
	})
}

// Rounds in one order are what is guessed from. Keys leave and come between, and the empty key is one of them.
func TestAGuessNeverChangesAnAnswer(t *testing.T) {
	w, rng := newTwin(t, 40), rand.New(rand.NewPCG(3, 1))
	order := []Key{{}}
	for i := range 39 {
		order = append(order, Key{Name: "GPU", N: int64(i / 2), Class: uint8(i % 2)})
	}
	guessed := 0
	for round := range 3000 {
		if round%50 == 0 {
			rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		for _, k := range order {
			op := byte(1)
			if rng.IntN(200) == 0 {
				op = 0
			} else if _, held := w.m[k]; !held && rng.IntN(3) == 0 {
				op = 2
			}
			if w.t.sure {
				guessed++
			}
			if err := w.do(op, k); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	if guessed < 3000*len(order)/4 {
		t.Errorf("%d guesses: this test proves little", guessed)
	}
}

// BenchmarkFind has a million keys, of which each look-up brings its own copy, in the order of the round before and in another one each
// time.
func BenchmarkFind(b *testing.B) {
	const n = 1 << 20
	t, err := New(n)
	if err != nil {
		b.Fatal(err)
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("step.duration{job=a,rank=%d}", i)
		t.Put(Key{Name: strings.Clone(names[i])})
	}
	for _, way := range []struct {
		name string
		step int
	}{{"in order", 1}, {"in another order", 514229}} {
		b.Run(way.name, func(b *testing.B) {
			at := 0
			for i := 0; b.Loop(); i++ {
				if i&(n-1) == 0 && way.step > 1 {
					way.step += 2 // what followed before does no more
				}
				at = (at + way.step) & (n - 1)
				if id, ok := t.Find(Key{Name: names[at]}); !ok || int(id) != at {
					b.Fatalf("%s has number %d %t", names[at], id, ok)
				}
			}
		})
	}
}
