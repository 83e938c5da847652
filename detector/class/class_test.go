package class

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func key(driver string) Key {
	return Key{Signature{"gpt-124m", "H100", driver, "torch 2.9", 524288, 1024, 8}, "step"}
}

func store(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// observe lets a run take steps of 100 ms with 1 % of noise, and 150 ms from step 200 on.
func observe(s *Store, k Key, run string, steps int, at int64, factor float64) {
	rng := rand.New(rand.NewPCG(uint64(at), uint64(len(run))))
	for i := range steps {
		v := 0.1 * factor * math.Exp(0.01*rng.NormFloat64())
		if i >= 200 {
			v *= 1.5
		}
		s.Observe(k, run, int64(i), at+int64(i)*1e8, v)
	}
}

func TestANewRunStartsFromItsSiblings(t *testing.T) {
	s := store(t, Config{})
	k := key("570")
	if _, ok := s.Prior(k, "a"); ok || s.Reference(k, "a") != nil {
		t.Error("a class that nobody saw has a prior")
	}
	for i := range 3 {
		observe(s, k, fmt.Sprint("run", i), 400, int64(i)*1e12, 1)
	}
	observe(s, k, "mine", 400, 9e12, 3)
	p, ok := s.Prior(k, "mine")
	if !ok || p.Runs != 3 || p.Values != 1200 {
		t.Fatalf("prior %+v", p)
	}
	for name, x := range map[string][3]float64{"location": {p.Location, 0.099, 0.152}, "noise": {p.Noise, 0.007, 0.013}, "p90": {p.P90, 0.147, 0.156}, "p99": {p.P99, 0.149, 0.159}} {
		if x[0] < x[1] || x[0] > x[2] {
			t.Errorf("%s %.4f is not in [%g, %g]", name, x[0], x[1], x[2])
		}
	}
	ref := s.Reference(k, "mine")
	if a, b := ref.At(100), ref.At(300); math.Abs(float64(a)-0.1) > 0.002 || math.Abs(float64(b)-0.15) > 0.003 {
		t.Errorf("levels %.3f before and %.3f after the change, without the run's own 3×", a, b)
	}
	if ref.Work(150) != 0 || ref.Work(250) != 1 || ref.At(5000) != 0 {
		t.Errorf("work %d and %d, level beyond the end %v", ref.Work(150), ref.Work(250), ref.At(5000))
	}
}

func TestARunLongerThanTheProfileHalvesItsResolution(t *testing.T) {
	s := store(t, Config{MaxSteps: 64})
	k := key("570")
	for run := range 2 {
		for i := range 1000 {
			s.Observe(k, fmt.Sprint(run), int64(i), int64(i), map[bool]float64{true: 2, false: 4}[i < 512])
		}
		s.Observe(k, fmt.Sprint(run), 1<<62, 2000, 8)
	}
	for _, r := range s.runs(k, "") {
		if len(r.level) > 64 {
			t.Errorf("%d entries", len(r.level))
		}
	}
	s2 := store(t, Config{MaxSteps: 64})
	for i := range 1000 {
		s2.Observe(k, "", int64(i), int64(i), map[bool]float64{true: 2, false: 4}[i < 512])
	}
	ref := s2.Reference(k, "another")
	if a, b := ref.At(500), ref.At(530); math.Abs(float64(a)-2) > 0.01 || math.Abs(float64(b)-4) > 0.01 {
		t.Errorf("levels %v and %v", a, b)
	}
}

func TestASlowDriverIsNamedAndAnEqualOneIsNot(t *testing.T) {
	for _, c := range []struct {
		factor float64
		runs   int
		slow   bool
		said   bool
	}{{1, 5, false, true}, {1.1, 5, true, true}, {1 / 1.1, 5, false, true}, {1.1, 2, false, false}} {
		s := store(t, Config{})
		for i := range 5 {
			observe(s, key("570"), fmt.Sprint("old", i), 400, int64(i)*1e12, 1)
		}
		for i := range c.runs {
			observe(s, key("580"), fmt.Sprint("new", i), 300, int64(i)*1e12+5, c.factor)
		}
		gpu, ranks := key("580"), key("580")
		gpu.GPU, ranks.Ranks = "H200", 16
		observe(s, gpu, "x", 400, 1, 9)
		observe(s, ranks, "y", 400, 1, 9)
		d := s.Compare(key("580"), Driver)
		if !c.said {
			if len(d) != 0 {
				t.Errorf("%d runs are too few to say %+v", c.runs, d)
			}
			continue
		}
		if len(d) != 1 || d[0].Slow != c.slow || d[0].Against != "570" || math.Abs(d[0].Ratio-c.factor) > 0.01 || d[0].Lower > c.factor || d[0].Upper < c.factor {
			t.Errorf("factor %g: %+v", c.factor, d)
		}
	}
}

func TestADifferenceThatRunsOfOneClassShowTooIsNoDriversFault(t *testing.T) {
	for name, c := range map[string]struct {
		factor float64
		spread []float64 // of the runs on both drivers
	}{"below the floor": {1.022, []float64{1, 1, 1, 1, 1, 1, 1, 1, 1}}, "within what runs differ": {1.05, []float64{0.9, 0.95, 1, 1.05, 1.1}}} {
		s := store(t, Config{})
		for i, f := range c.spread {
			observe(s, key("570"), fmt.Sprint("old", i), 400, int64(i)*1e12, f)
			observe(s, key("580"), fmt.Sprint("new", i), 400, int64(i)*1e12+5, f*c.factor)
		}
		if d := s.Compare(key("580"), Driver); len(d) != 1 || d[0].Slow || math.Abs(d[0].Ratio-c.factor) > 0.01 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestBadValuesChangeNothing(t *testing.T) {
	s := store(t, Config{})
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1} {
		s.Observe(key("1"), "r", 1, 1, v)
	}
	s.Observe(key("1"), "r", -1, 1, 1)
	if c := s.Counts(); c.Runs != 0 || c.Refused != 6 {
		t.Errorf("counts %+v", c)
	}
	s.Observe(key("1"), "r", 1, 1, math.SmallestNonzeroFloat64)
	s.Observe(key("1"), "r", 2, 2, math.MaxFloat64)
	if p, ok := s.Prior(key("1"), ""); !ok || !(p.P99 > 0) {
		t.Errorf("prior %+v", p)
	}
}

func TestTheLeastRecentlyObservedGoAtTheBounds(t *testing.T) {
	s := store(t, Config{MaxRuns: 8, PerClass: 4})
	for i := range 6 {
		s.Observe(key("a"), fmt.Sprint(i), 0, int64(i), 1)
	}
	if p, _ := s.Prior(key("a"), ""); p.Runs != 4 || s.Counts().Evicted != 2 {
		t.Errorf("%d runs, %+v", p.Runs, s.Counts())
	}
	for i := range 30 {
		s.Observe(key(fmt.Sprint("b", i)), strings.Repeat("long", 1000), 0, int64(100+i), 1)
	}
	if c := s.Counts(); c.Runs != 8 || c.Classes != 8 {
		t.Errorf("%+v", c)
	}
	if _, ok := s.Prior(key("a"), ""); ok {
		t.Error("the class observed least recently is still there")
	}
	if n := len(s.Snapshot()); n > 8*1024 {
		t.Errorf("%d bytes of snapshot", n)
	}
}

// random makes a store of one writer with runs of its own and of runs that others saw too.
func random(t *testing.T, rng *rand.Rand, writer string, cfg Config) *Store {
	cfg.Writer = writer
	s := store(t, cfg)
	for range 1 + rng.IntN(12) {
		k, run, at := key(fmt.Sprint(rng.IntN(3))), fmt.Sprint(rng.IntN(6)), rng.Int64N(50)
		for i := range rng.IntN(100) + 1 {
			s.Observe(k, run, int64(i), at+int64(i), 0.1+rng.Float64())
		}
	}
	return s
}

func merged(t *testing.T, cfg Config, parts ...*Store) *Store {
	out := store(t, cfg)
	for _, p := range parts {
		out.Merge(p)
	}
	return out
}

func TestMergingIsAssociativeCommutativeAndIdempotentAlsoAtTheBounds(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg := Config{MaxRuns: 1 + rng.IntN(12), PerClass: 2 + rng.IntN(3), MaxSteps: 64}
		if seed%2 == 0 {
			cfg = Config{MaxSteps: 64}
		}
		wide := Config{MaxSteps: 64}
		a, b, c := random(t, rng, "a", wide), random(t, rng, "b", wide), random(t, rng, "a", wide) // c: another version of a's records
		want := merged(t, cfg, a, b, c).Snapshot()
		for name, got := range map[string]*Store{
			"c b a":     merged(t, cfg, c, b, a),
			"(a b) c":   merged(t, cfg, merged(t, cfg, a, b), c),
			"a (b c)":   merged(t, cfg, a, merged(t, cfg, b, c)),
			"b (c a)":   merged(t, cfg, b, merged(t, cfg, c, a)),
			"a b c a b": merged(t, cfg, a, b, c, a, b),
		} {
			if !bytes.Equal(got.Snapshot(), want) {
				t.Fatalf("seed %d: %s differs", seed, name)
			}
		}
	}
}

func TestAMergedStoreDoesNotChangeWithItsParts(t *testing.T) {
	a, b := store(t, Config{Writer: "a"}), store(t, Config{Writer: "b"})
	observe(a, key("1"), "r", 100, 1, 1)
	b.Merge(a)
	before := b.Snapshot()
	observe(a, key("1"), "r", 300, 1e12, 2)
	if !bytes.Equal(before, b.Snapshot()) {
		t.Error("what a observed later is in b")
	}
}

func TestARunSeenByTwoGatewaysIsOneRun(t *testing.T) {
	a, b, both := store(t, Config{Writer: "a"}), store(t, Config{Writer: "b"}), store(t, Config{})
	for i := range 600 {
		v := 0.1 + 0.05*float64(i/300)
		if i < 350 {
			a.Observe(key("1"), "r", int64(i), int64(i), v)
		}
		if i >= 250 {
			b.Observe(key("1"), "r", int64(i), int64(i), v)
		}
		both.Observe(key("1"), "r", int64(i), int64(i), v)
	}
	a.Merge(b)
	p, _ := a.Prior(key("1"), "")
	if p.Runs != 1 || p.Values != 700 {
		t.Errorf("prior %+v", p)
	}
	x, y := a.Reference(key("1"), ""), both.Reference(key("1"), "")
	for i := range 600 {
		if x.At(i) != y.At(i) {
			t.Fatalf("step %d: %v and %v", i, x.At(i), y.At(i))
		}
	}
}

func TestSketchesAreWithinOnePercentAndMergeInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var all, left, right sketch
	var values []float64
	for i := range 20000 {
		v := math.Exp(rng.NormFloat64())
		values = append(values, v)
		all.add(v)
		if i%3 == 0 {
			left.add(v)
		} else {
			right.add(v)
		}
	}
	right.merge(&left)
	middle(values) // sorts
	for _, q := range []float64{0.01, 0.1, 0.5, 0.9, 0.99, 1} {
		want := values[int(q*float64(len(values)-1))]
		if got := all.quantile(q); math.Abs(got/want-1) > sketchError {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
		if right.quantile(q) != all.quantile(q) {
			t.Errorf("quantile %g: merged %g, in one %g", q, right.quantile(q), all.quantile(q))
		}
	}
	var wide sketch
	for e := -300.0; e < 300; e++ {
		wide.add(math.Pow(10, e))
	}
	if len(wide.bins) > maxBins || wide.total != 600 || math.Abs(wide.quantile(1)/1e299-1) > sketchError {
		t.Errorf("%d bins, total %d, maximum %g", len(wide.bins), wide.total, wide.quantile(1))
	}
}

func TestAStoreSurvivesARestartAndATornFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "classes")
	s := store(t, Config{})
	observe(s, key("1"), "r", 100, 1, 1)
	first := s.Snapshot()
	for range 2 {
		if err := s.Save(path); err != nil {
			t.Fatal(err)
		}
		observe(s, key("1"), "q", 100, 2, 1)
	}
	whole, _ := os.ReadFile(path)
	for i := range whole {
		torn := bytes.Clone(whole)
		torn[i] ^= 0x10
		if err := store(t, Config{}).Restore(torn); err == nil {
			t.Fatalf("byte %d is wrong and nobody minds", i)
		}
	}
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	back := store(t, Config{})
	if err := back.Load(path); err != nil || !bytes.Equal(back.Snapshot(), first) {
		t.Errorf("the snapshot before was not taken: %v", err)
	}
	// The restored goes on as if nothing had been.
	observe(s, key("1"), "r", 300, 1e12, 1)
	half := store(t, Config{})
	if err := half.Restore(s.Snapshot()); err != nil {
		t.Fatal(err)
	}
	observe(s, key("1"), "r", 500, 2e12, 1)
	observe(half, key("1"), "r", 500, 2e12, 1)
	if !bytes.Equal(s.Snapshot(), half.Snapshot()) {
		t.Error("a restart changed what is remembered")
	}
}

func FuzzRestore(f *testing.F) {
	s, _ := New(Config{MaxSteps: 64})
	observe(s, key("1"), "r", 70, 1, 1)
	f.Add(s.Snapshot())
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = sealed(b)
		s := store(t, Config{MaxRuns: 4, PerClass: 2, MaxSteps: 64})
		if s.Restore(b) != nil {
			return
		}
		for k := range s.classes {
			for range 3 {
				s.Observe(k, "new", 1<<40, 1, 2)
				s.Observe(k, "", 7, 1, 2)
			}
			s.Compare(k, Driver)
			s.Reference(k, "").At(3)
			if p, ok := s.Prior(k, ""); ok && math.IsNaN(p.Location) {
				t.Errorf("prior %+v", p)
			}
		}
		if c := s.Counts(); c.Runs > 4 {
			t.Errorf("%+v", c)
		}
	})
}

// sealed gives bytes the checksum that they should have, so that the fuzzer comes past it.
func sealed(b []byte) []byte {
	if len(b) < 4 {
		return b
	}
	body := bytes.Clone(b[:len(b)-4])
	return binary.LittleEndian.AppendUint32(body, crc32.Checksum(body, castagnoli))
}

func BenchmarkObserve(b *testing.B) {
	s := store(b, Config{})
	k := key("570")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.Observe(k, "run", int64(i), int64(i), 0.1)
	}
}
