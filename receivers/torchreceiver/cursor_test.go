package torchreceiver

import (
	"maps"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/hook"
)

// looks reads a ring at ten looks a second and counts what is told, by metric. change is what the rank does before each look.
func looks(t *testing.T, n int, change func(i int, s *hook.Snapshot)) map[string]int {
	t.Helper()
	began := time.Unix(1_700_000_000, 0)
	s := &hook.Snapshot{Torch: "2.9.0", MemoryMono: 1, Section: hook.SectionStep, NowMono: uint64(time.Hour)}
	s.StepMono, s.HeartbeatMono = s.NowMono, s.NowMono
	c := cursor{}
	c.meet(podUID, s)
	told := map[string]int{}
	for i := range n {
		s.NowMono = uint64(time.Hour) + uint64(i)*uint64(100*time.Millisecond)
		change(i, s)
		b := newBatch(&torchReceiver{cfg: NewDefaultConfig()}, began.Add(time.Duration(i)*100*time.Millisecond))
		c = b.rank(c, i > 0, func(n int) int { return n }, &hook.Rank{}, nil, s)
		if b.md.DataPointCount() == 0 {
			continue
		}
		for _, m := range b.md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			told[m.Name()]++
			if m.Name() == info.name {
				p := m.Gauge().DataPoints().At(0)
				if v, _ := p.Attributes().Get("pitcrew.framework"); v.Str() != "torch 2.9.0" || p.Timestamp() != pcommon.NewTimestampFromTime(b.now) {
					t.Errorf("look %d: %v", i, p.Attributes().AsRaw())
				}
			}
		}
	}
	return told
}

func TestALookThatShowsNothingNewTellsNothing(t *testing.T) {
	ages := []string{"pitcrew.train.step.age", "pitcrew.train.heartbeat.age", "pitcrew.train.section", "pitcrew.train.step"}
	const memory, ofCheckpoint, about = "pitcrew.train.memory.allocated", "pitcrew.train.checkpoint.step", "pitcrew.train.info"
	beats := func(s *hook.Snapshot) { s.HeartbeatMono = s.NowMono }
	for name, c := range map[string]struct {
		change func(i int, s *hook.Snapshot)
		life   int
		more   map[string]int
	}{
		"a rank that goes on is told of once a second": {
			func(_ int, s *hook.Snapshot) { beats(s); s.StepMono = s.NowMono }, 3, map[string]int{memory: 3, about: 3}},
		"a step that stands is told at each look from 0.3 s": {
			func(_ int, s *hook.Snapshot) { beats(s) }, 28, map[string]int{memory: 3, about: 3}},
		"a heartbeat that stands is told at each look from 0.3 s": {
			func(_ int, s *hook.Snapshot) { s.StepMono = s.NowMono }, 28, map[string]int{memory: 3, about: 3}},
		"another section is told at once": {
			func(i int, s *hook.Snapshot) {
				beats(s)
				s.StepMono = s.NowMono
				if i == 14 {
					s.Section = hook.SectionCheckpoint
				}
			}, 4, map[string]int{memory: 3, about: 3}},
		"a checkpoint is told at once": {
			func(i int, s *hook.Snapshot) {
				beats(s)
				s.StepMono = s.NowMono
				if i == 14 {
					s.CkptStep = 7
				}
			}, 3, map[string]int{memory: 4, about: 4, ofCheckpoint: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			told := looks(t, 30, c.change)
			want := maps.Clone(c.more)
			for _, a := range ages {
				want[a] = c.life
			}
			for name, n := range want {
				if told[name] != n {
					t.Errorf("%s is told %d times in 3 s, want %d", name, told[name], n)
				}
			}
		})
	}
}

func TestThePointsOfARankShareNothingButTheirWords(t *testing.T) {
	s := &hook.Snapshot{Section: hook.SectionStep, StepMono: 1, HeartbeatMono: 1}
	c := cursor{}
	c.meet(podUID, s)
	b := newBatch(&torchReceiver{cfg: NewDefaultConfig()}, time.Unix(1_700_000_000, 0))
	b.state(&c, s, lifeMetrics)
	var points []pmetric.NumberDataPoint
	eachPoint(b.md.ResourceMetrics().At(0), func(p pmetric.NumberDataPoint) { points = append(points, p) })
	if len(points) != 3 {
		t.Fatalf("%d points", len(points))
	}
	points[0].Attributes().PutStr("k8s.pod.uid", "changed by a consumer")
	points[0].Attributes().PutStr("added", "by a consumer")
	for _, a := range []pcommon.Map{points[1].Attributes(), c.identity} {
		if v, _ := a.Get("k8s.pod.uid"); v.Str() != podUID || a.Len() != c.identity.Len() {
			t.Errorf("what a consumer did to one point is in another's: %v", a.AsRaw())
		}
	}
}
