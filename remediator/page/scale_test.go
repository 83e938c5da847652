package page

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

const (
	manyIncidents = 10_000
	manyNodes     = 5_000
)

// heap is a store that hands out many records, each decoded from its JSON as a message is, and keeps none.
type heap struct{ n int }

func (h heap) record(k int) (i incident.Incident) {
	i = healed(fmt.Sprintf("inc-%016x", k))
	switch {
	case k%500 == 0:
		i = asking(i.ID)
	case k%7 == 0:
		i.Outcome, i.Cordons = incident.Observed, nil
	}
	i.Faults[0].Node = fmt.Sprintf("node-%04d", k%manyNodes)
	i.Job.Name = fmt.Sprintf("job-%d", k%300)
	i.Opened = began.Add(-time.Duration(k) * time.Minute)
	for n := range 20 { // as long as a real one
		i.Notes = append(i.Notes, incident.Note{At: i.Opened, State: incident.Placed, Text: fmt.Sprintf("waits for a node to become free, for the %dth time", n)})
	}
	raw, err := json.Marshal(i)
	if err != nil {
		panic(err)
	}
	i = incident.Incident{}
	if err := json.Unmarshal(raw, &i); err != nil {
		panic(err)
	}
	return i
}

func (h heap) Get(_ context.Context, id string) (incident.Incident, uint64, error) {
	var k int
	if _, err := fmt.Sscanf(id, "inc-%016x", &k); err != nil {
		return incident.Incident{}, 0, bus.ErrNotFound
	}
	return h.record(k), 1, nil
}

func (heap) Put(context.Context, string, incident.Incident, uint64) (uint64, error) { return 0, nil }

func (h heap) Watch(ctx context.Context, current func(), handle func(bus.Change[incident.Incident])) error {
	for k := range h.n {
		i := h.record(k)
		handle(bus.Change[incident.Incident]{Key: i.ID, Value: i, Rev: uint64(k + 1)})
	}
	current()
	<-ctx.Done()
	return nil
}

// manyNodesOf is a fleet of racks of 16.
func manyNodesOf(n int) *nodes {
	out := &nodes{}
	for k := range n {
		x := &fleet.Node{Name: fmt.Sprintf("node-%04d", k), Ready: true, Labels: map[string]string{"pitcrew.dev/rack": fmt.Sprintf("r%03d", k/16)},
			GPUs: fleet.GPUs{Resource: "nvidia.com/gpu", Total: 8}, Free: map[string]int64{"nvidia.com/gpu": int64(k % 9)}}
		if k%97 == 0 {
			x.Quarantined, x.Unschedulable = fmt.Sprintf("inc-%016x", k), true
		}
		out.fleet = append(out.fleet, x)
	}
	return out
}

// large is a page of many incidents and nodes; more is what it keeps in memory, after a collection.
func large(t testing.TB) (h http.Handler, more uint64) {
	t.Helper()
	access := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(access, []byte(accessText), 0o600); err != nil {
		t.Fatal(err)
	}
	fleet := manyNodesOf(manyNodes)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p, err := New(Options{
		Access: access, Actions: true, Cluster: "c", Incidents: heap{manyIncidents}, Nodes: fleet, Log: slog.New(slog.DiscardHandler),
		Conditions: func(ctx context.Context, _ chan<- struct{}, _ func(bus.Condition)) error { <-ctx.Done(); return nil },
		Killed:     func(ctx context.Context, _ func(), _ func(bus.KillSwitch)) error { <-ctx.Done(); return nil },
		Attempts:   func(context.Context, string) (bus.Attempt, error) { return bus.Attempt{}, bus.ErrNotFound },
		Connected:  func() bool { return true }, Now: func() time.Time { return began.Add(time.Hour) },
		Weeks: func([]*Row) ([]Week, error) { return nil, nil }, Audit: func(Act) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); p.Follow(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if ready, _ := p.mirror.ready(); ready {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the store was not read in two minutes")
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	return p.Handler(), after.HeapAlloc - min(after.HeapAlloc, before.HeapAlloc)
}

// ask is one request of a reader; it returns how long the answer took and its size.
func ask(t testing.TB, h http.Handler, path string) (time.Duration, int) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+readerToken)
	w := httptest.NewRecorder()
	from := time.Now()
	h.ServeHTTP(w, r)
	took := time.Since(from)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d", path, w.Code)
	}
	return took, w.Body.Len()
}

var largePages = []string{"/", "/?q=node-0007+recovered", "/?page=199", "/?span=month&show=observed", "/incidents/inc-0000000000000007", "/fleet", "/fleet?page=24", "/fleet?state=quarantined"}

func TestTenThousandIncidentsAndFiveThousandNodesFitIntoTimeAndMemory(t *testing.T) {
	h, more := large(t)
	t.Logf("%d incidents take %.1f MiB", manyIncidents, float64(more)/(1<<20))
	if more > 50<<20 {
		t.Errorf("%d incidents take %.1f MiB, at most 50 are allowed", manyIncidents, float64(more)/(1<<20))
	}
	for _, path := range largePages {
		var took []time.Duration
		size := 0
		for range 5 {
			d, n := ask(t, h, path)
			took, size = append(took, d), n
		}
		slices.Sort(took)
		t.Logf("%-34s %8s %4d KiB", path, took[2].Round(10*time.Microsecond), size>>10)
		if took[2] > 150*time.Millisecond { // half of the time to the first paint
			t.Errorf("%s takes %s", path, took[2])
		}
		if size > 400<<10 {
			t.Errorf("%s has %d KiB", path, size>>10)
		}
	}
}

func BenchmarkPagesOfTenThousandIncidentsAndFiveThousandNodes(b *testing.B) {
	h, more := large(b)
	for _, path := range largePages {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			b.ReportMetric(float64(more)/(1<<20), "MiB-kept")
			for b.Loop() {
				ask(b, h, path)
			}
		})
	}
}
