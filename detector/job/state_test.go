package job

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/durable"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// again is an engine that takes up what another left.
func again(t *testing.T, e *Engine, now time.Time) *Engine {
	t.Helper()
	n := New(e.o)
	if err := n.Restore(now, e.Snapshot(now)); err != nil {
		t.Fatal(err)
	}
	if a, b := e.Counts(), n.Counts(); a.Jobs != b.Jobs || a.Ranks != b.Ranks || a.Judged != b.Judged || a.Open != b.Open || a.Classed != b.Classed {
		t.Fatalf("left %+v, took up %+v", a, b)
	}
	return n
}

// story is a job in which everything happens. At every step for which cut is true the gateway begins anew.
func story(t *testing.T, cut func(step int64) bool) (lines []string) {
	t.Helper()
	f := newFleet(t, class.Config{})
	f.past(3, gpt, 1)
	g := f.job(gpt)
	g.ranks, g.world = 8, 8
	small := f.job(gpt)
	small.now, g.now = f.now, f.now
	g.job, g.step, g.attempt = "everything", 0, 3
	scheduled(small, 1.3)
	find := func(found []finding.Finding) {
		for _, x := range found {
			b, err := event.Encode(x.Event)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, string(b))
		}
	}
	for n := range int64(260) {
		s := g.step + 1
		g.every = 1 + n/200*3
		g.compute = func(r int) float64 {
			switch {
			case r == 6: // from the start
				return 0.3
			case r == 2 && s > 80 && s <= 140:
				return 0.28
			case s > 160 && s <= 175: // all
				return 0.35
			}
			return 0.2
		}
		g.launch = func(r int) float64 {
			if r == 5 && s > 100 && s <= 130 {
				return 0.06
			}
			return 0.0005
		}
		g.silent = func(r int) bool { return r == 3 && s > 90 && s <= 170 }
		find(g.run(1))
		small.now = g.now
		find(small.run(1))
		g.now = small.now
		if cut(g.step) {
			n := again(t, f.e, g.now)
			f.e, g.e, small.e = n, n, n
		}
	}
	find(g.pass(6 * time.Minute))
	return lines
}

func TestARestartInTheMiddleChangesNoFindingAndSaysNothingTwice(t *testing.T) {
	want := story(t, func(int64) bool { return false })
	for _, name := range []string{"straggler", "imbalance", "absent", "slowdown"} {
		if !slices.ContainsFunc(want, func(l string) bool { return strings.Contains(l, name) }) {
			t.Errorf("the story has no %s", name)
		}
	}
	for name, cut := range map[string]func(int64) bool{
		"early":  func(s int64) bool { return s == 3 },
		"fresh":  func(s int64) bool { return s == 86 },
		"open":   func(s int64) bool { return s == 112 },
		"silent": func(s int64) bool { return s == 150 },
		"all":    func(s int64) bool { return s == 168 },
		"often":  func(s int64) bool { return s%5 == 0 },
	} {
		got := story(t, cut)
		if !slices.Equal(got, want) {
			for i := range min(len(got), len(want)) {
				if got[i] != want[i] {
					t.Errorf("%s: finding %d\n got %s\nwant %s", name, i, got[i], want[i])
					break
				}
			}
			t.Errorf("%s: %d findings, want %d", name, len(got), len(want))
		}
	}
}

func TestTheTimeInWhichTheGatewayWasAwayIsNobodysSilence(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.want(g.run(60), "")
	g.compute = slow(5, 1.5)
	g.want(g.run(40), "straggler(5)")
	left := g.e.Snapshot(g.now)
	g.now = g.now.Add(time.Hour)
	g.e = engine()
	if err := g.e.Restore(g.now, left); err != nil {
		t.Fatal(err)
	}
	g.want(g.tick(), "")
	g.silent = func(r int) bool { return r == 2 } // whose agent takes longest to come back
	g.want(g.run(20), "")
	g.silent = nil
	g.want(g.run(60), "")
	g.compute = nil
	g.want(g.run(60), "-straggler(5)")
	g.compute = slow(1, 1.5)
	g.want(g.run(40), "straggler(1)")
	left = g.e.Snapshot(g.now)
	g.now = g.now.Add(time.Hour)
	g.e = engine()
	if err := g.e.Restore(g.now, left); err != nil {
		t.Fatal(err)
	}
	g.want(g.pass(rejoin-2*time.Second), "")
	g.want(g.pass(4*time.Second), "-straggler(1)") // the job is over
	if c := g.e.Counts(); c.Jobs != 0 || c.Ranks != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestADamagedSnapshotIsRefusedAndTheEngineIsAsItWas(t *testing.T) {
	g := newGang(t, engine(), 8)
	g.run(60)
	g.compute = slow(5, 1.5)
	g.run(40)
	good := g.e.Snapshot(g.now)
	for i := 0; i < len(good); i += 97 {
		b := slices.Clone(good)
		b[i] ^= 1
		if err := g.e.Restore(g.now, b); err == nil {
			t.Fatalf("byte %d is wrong, and it was taken", i)
		}
	}
	g.want(g.run(20), "")
	small := New(Options{Cluster: "c", Gateway: "gw-0", MaxRanks: 7})
	if err := small.Restore(g.now, good); err == nil {
		t.Error("more ranks were taken than the bound")
	}
}

func TestASnapshotIsBoundedAndLeavesOutWhoWasHeardOfLeastRecently(t *testing.T) {
	e := engine()
	first, last := newGang(t, e, 8), newGang(t, e, 8)
	first.job, last.job = "first", "last"
	first.run(40)
	one := len(e.Snapshot(first.now))
	t.Logf("%d bytes of 8 ranks", one)
	last.now = first.now
	last.run(40)
	n := engine()
	if err := n.Restore(last.now, e.snapshot(last.now, one+one/2)); err != nil {
		t.Fatal(err)
	}
	if c := n.Counts(); c.Jobs != 1 || c.Ranks != 8 || n.jobs[key{job: "last"}] == nil {
		t.Errorf("counts %+v", c)
	}
}

// FuzzRestore gives an engine a snapshot whose checksum holds and whose body is anything: it refuses it or works.
func FuzzRestore(f *testing.F) {
	fl := newFleet(&testing.T{}, class.Config{MaxRuns: 4})
	g := newGang(&testing.T{}, fl.e, 5)
	g.run(30)
	g.compute = slow(4, 1.6)
	g.run(30)
	body, err := durable.Unseal(snapshotMagic, snapshotVersion, g.e.Snapshot(g.now))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body, 0, byte(0))
	f.Add(body, 300, byte(0xff))
	f.Add([]byte{}, 0, byte(1))
	f.Fuzz(func(t *testing.T, b []byte, at int, change byte) {
		if b = slices.Clone(b); len(b) > 0 {
			b[int(uint(at)%uint(len(b)))] ^= change
		}
		store, err := class.New(class.Config{MaxRuns: 4})
		if err != nil {
			t.Fatal(err)
		}
		e := New(Options{Cluster: "c", Gateway: "gw-0", MaxJobs: 512, MaxRanks: 64, Classes: store})
		if e.Restore(t0.Add(time.Minute), durable.Seal(snapshotMagic, snapshotVersion, b)) != nil {
			if c := e.Counts(); c.Jobs != 0 || c.Ranks != 0 {
				t.Fatalf("refused, and took %+v", c)
			}
			return
		}
		next := newGang(t, e, 5)
		next.now, next.step = t0.Add(time.Minute), 60
		for _, x := range append(next.run(20), next.pass(time.Minute)...) {
			if err := event.MayGateway(x.Event); err != nil {
				t.Fatal(err)
			}
		}
		e.Snapshot(next.now)
		e.Tick(next.now.Add(time.Hour))
		if c := e.Counts(); c.Jobs != 0 || c.Ranks != 0 || c.Open != 0 {
			t.Fatalf("after an hour of silence: %+v", c)
		}
	})
}
