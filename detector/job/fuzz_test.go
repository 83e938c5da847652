package job

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/event"
)

// FuzzSamples gives the engine samples made of any bytes, among them a real job's, and looks that its bounds hold and that what it
// says can be said.
func FuzzSamples(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 0.2, math.NaN())
	f.Add([]byte("\x00\x00\x00\x10\x00\x01\x00\x10\x00\x02\x00\x10\x00\x03\x00\x10"), 1e300, math.Inf(1))
	f.Add([]byte(strings.Repeat("\x0e\x01\x00\x39\x00\x80\x0e\x02\x00\x39\x00\x80\x0e\x03\x00\x38\x00\x80", 8)), 0.2, 0.1) // the third rank did not enter a collective
	f.Fuzz(func(t *testing.T, b []byte, v, w float64) {
		store, err := class.New(class.Config{MaxRuns: 4, PerClass: 2, MaxSteps: 64})
		if err != nil {
			t.Fatal(err)
		}
		e := New(Options{Cluster: "c", Gateway: "g", MaxJobs: 4, MaxRanks: 32, Absent: time.Second, Forget: 20 * time.Second, Classes: store})
		now := t0
		values := [...]float64{v, w, 0.2, 0, -1, math.NaN()}
		for len(b) >= 6 {
			c := b[:6]
			b = b[6:]
			now = now.Add(time.Duration(c[0]%16) * 100 * time.Millisecond)
			rank, attempt := int(c[1]%10)-1, int(c[2]%3)
			at := now.Add(time.Duration(int8(c[3])) * time.Second)
			if c[3] == 0x80 {
				at = time.Unix(math.MaxInt64, 0)
			}
			s := Sample{
				Job: "job-" + string(rune('a'+c[2]/3%8)), Role: []string{"", "x"}[c[4]&1], Step: int64(int8(c[4])), Time: at, Stands: c[5]&0x80 != 0,
				Target:   event.Target{PodUID: "p" + string(rune('a'+c[5]%4)), Node: "n", Rank: &rank, WorldSize: 8 + int(c[5]>>6&1), Attempt: &attempt},
				Duration: values[c[0]%6], Wait: values[c[1]%6], Compute: values[c[2]%6], Launch: values[c[3]%6],
			}
			e.Tell(now, s.Job, s.Target, Work{Workload: "model=" + string(c[4:5]), GPU: string(c[5:]), Driver: string(rune('a' + c[0]%2)), Framework: "f"})
			found := e.Add(now, s)
			e.Collective(now, s.Job, s.Target, Collective{Group: string(c[4:5]), Enqueued: int64(int8(c[3])) << (c[4] % 60), Op: string(c[5:])})
			if c[0]&1 == 0 {
				found = append(found, e.Tick(now)...)
			}
			for _, x := range found {
				if _, err := event.Encode(x.Event); err != nil {
					t.Fatal(err)
				}
				if err := event.MayGateway(x.Event); err != nil {
					t.Fatal(err)
				}
			}
			if n := e.Counts(); n.Jobs > 4 || n.Ranks > 32 || n.Open < 0 || n.Ranks < 0 || n.ClassRuns > 4 || n.Classed > n.Jobs {
				t.Fatalf("counts %+v", n)
			}
		}
		e.Tick(now.Add(time.Hour))
		if n := e.Counts(); n.Jobs != 0 || n.Ranks != 0 || n.Open != 0 || n.Classed != 0 {
			t.Fatalf("after an hour of silence: %+v", n)
		}
	})
}

func BenchmarkStepOf64Ranks(b *testing.B) {
	e := engine()
	g := newGang(&testing.T{}, e, 64)
	g.pod = func(r int) string { return "pod-" + string(rune('0'+r)) }
	g.run(50)
	b.ReportAllocs()
	for b.Loop() {
		g.run(1)
	}
}
