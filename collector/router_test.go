//go:build gateway

package collector

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
)

// backend stands for a gateway: it notes whose points it gets.
type backend struct {
	pmetricotlp.UnimplementedGRPCServer
	addr string
	mu   sync.Mutex
	jobs map[string]int
}

func (b *backend) Export(_ context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, rm := range r.Metrics().ResourceMetrics().All() {
		job, _ := rm.Resource().Attributes().Get("pitcrew.job.uid")
		for _, sm := range rm.ScopeMetrics().All() {
			b.jobs[job.Str()] += sm.Metrics().Len()
		}
	}
	return pmetricotlp.NewExportResponse(), nil
}

func (b *backend) count() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.jobs {
		n += k
	}
	return n
}

func listen(t *testing.T) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{addr: l.Addr().String(), jobs: map[string]int{}}
	s := grpc.NewServer()
	pmetricotlp.RegisterGRPCServer(s, b)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return b
}

func TestARouterBringsAllRanksOfAJobToOneGateway(t *testing.T) {
	backends := []*backend{listen(t), listen(t), listen(t)}
	surround(t, t.TempDir(), "nats://127.0.0.1:1")
	t.Setenv("PITCREW_GATEWAYS", fmt.Sprintf("[%s, %s, %s]", backends[0].addr, backends[1].addr, backends[2].addr))
	defer run(t, Router)()
	to := dial(t, os.Getenv("PITCREW_OTLP"))
	const jobs, points = 30, 4 * 10 * 4
	for job := range jobs {
		for rank := range 4 {
			to.send(steps(fmt.Sprint("job-", job), rank, 1, 10, func() float64 { return 0.1 }))
		}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n := 0
		for _, b := range backends {
			n += b.count()
		}
		if n == jobs*points {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d points arrived", n, jobs*points)
		}
	}
	seen := map[string]int{}
	for i, b := range backends {
		if len(b.jobs) == 0 {
			t.Errorf("gateway %d got no job", i)
		}
		for job, n := range b.jobs {
			if seen[job]++; n != points {
				t.Errorf("gateway %d got %d of %d points of %s", i, n, points, job)
			}
		}
	}
	if len(seen) != jobs {
		t.Errorf("%d jobs arrived", len(seen))
	}
}
