package collector

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"

	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/hook"
)

// listener stands for a gateway: it passes on what it is sent.
type listener struct {
	pmetricotlp.UnimplementedGRPCServer
	got chan pmetric.Metrics
}

func (l *listener) Export(_ context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	select {
	case l.got <- r.Metrics():
	default:
	}
	return pmetricotlp.NewExportResponse(), nil
}

func TestAnAgentTellsAGatewayWhatItsRanksRunAndOnWhat(t *testing.T) {
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{got: make(chan pmetric.Metrics, 64)}
	receiver := grpc.NewServer()
	pmetricotlp.RegisterGRPCServer(receiver, l)
	done := make(chan struct{})
	go func() { defer close(done); _ = receiver.Serve(at) }()
	defer func() { receiver.Stop(); <-done }()

	s := bustest.Server(t) // the agent has something to say of a ring without a process, and would try for seconds
	defer s.Stop()
	dir := t.TempDir()
	surround(t, dir, s.URL())
	t.Setenv(GatewayEnv, at.Addr().String())
	ring, err := os.ReadFile("../hook/testdata/ring-v1.bin")
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(ring[512:], hook.Monotonic()) // its process lives …
	binary.LittleEndian.PutUint32(ring[548:], 0)                // … and has not ended
	pod := hook.PodDir(filepath.Join(dir, "kubelet"), "0b9f5a1e-1111-4222-8333-444455556666")
	if err := os.MkdirAll(pod, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pod, hook.RingName(1)), ring, 0o600); err != nil {
		t.Fatal(err)
	}
	defer run(t, Agent)()

	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("pitcrew.gpu.info")
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	if err := p.Attributes().FromRaw(map[string]any{"hw.id": "GPU-6e5a1f2c-0b0d-4d6e-9a55-1d8e4a1b0c3d", "hw.model": "NVIDIA H100 80GB HBM3", "hw.driver_version": "570.86.15"}); err != nil {
		t.Fatal(err)
	}
	dial(t, "unix://"+filepath.Join(dir, "run", "otlp.sock")).send(md)

	want := map[string]string{
		"pitcrew.workload": "model=gpt-124m;tokens=524288;seq=1024", "pitcrew.framework": "torch 2.3.1+cu121", "hw.model": "NVIDIA H100 80GB HBM3", "hw.driver_version": "570.86.15",
	}
	last := map[string]any{}
	for late := time.After(20 * time.Second); ; {
		select {
		case <-late:
			t.Fatalf("told %v, want %v", last, want)
		case md := <-l.got:
			for _, rm := range md.ResourceMetrics().All() {
				for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
					if m.Name() == "pitcrew.gpu.info" {
						t.Error("what GPUs say of themselves goes to the gateway as well")
					}
					if m.Name() == "pitcrew.train.info" {
						last = m.Gauge().DataPoints().At(0).Attributes().AsRaw()
					}
				}
			}
		}
		found := 0
		for k, v := range want {
			if last[k] == v {
				found++
			}
		}
		if found == len(want) {
			return
		}
	}
}
