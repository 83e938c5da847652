package collector

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func TestWhatMegatronTellsOverOTLPIsServedUnderOurNames(t *testing.T) {
	dir := t.TempDir()
	surround(t, dir, "nats://127.0.0.1:1")
	t.Setenv("PITCREW_PROMETHEUS_INTERVAL", "0s")
	t.Setenv("PITCREW_PEAK_TFLOPS", "989")
	defer run(t, Agent)()

	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "run", "training", "otlp.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutInt("nv.dl.rank", 5)
	rm.Resource().Attributes().PutInt("nv.dl.world_size", 8)
	ms := rm.ScopeMetrics().AppendEmpty().Metrics()
	now := pcommon.NewTimestampFromTime(time.Now())
	for name, v := range map[string]float64{"megatron.training.loss": 2.5, "megatron.training.throughput_tflops": 494.5} {
		m := ms.AppendEmpty()
		m.SetName(name)
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetDoubleValue(v)
		p.SetTimestamp(now)
	}
	forged := ms.AppendEmpty()
	forged.SetName("pitcrew.gpu.health")
	forged.SetEmptyGauge().DataPoints().AppendEmpty().SetTimestamp(now)
	m := ms.AppendEmpty()
	m.SetName("megatron.training.step_duration_ms")
	h := m.SetEmptyHistogram()
	h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	p := h.DataPoints().AppendEmpty()
	p.SetCount(4)
	p.SetSum(1000)
	p.SetTimestamp(now)
	if _, err := pmetricotlp.NewGRPCClient(conn).Export(context.Background(), pmetricotlp.NewExportRequestFromMetrics(md)); err != nil {
		t.Fatal(err)
	}
	ld := plog.NewLogs()
	ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().SetEventName("pitcrew.kernel.xid")
	if _, err := plogotlp.NewGRPCClient(conn).Export(context.Background(), plogotlp.NewExportRequestFromLogs(ld)); status.Code(err) != codes.Unimplemented {
		t.Errorf("a training process may tell of the kernel's log: %v", err)
	}

	want := map[string]string{"pitcrew_train_loss": "2.5", "pitcrew_train_mfu": "0.5", "pitcrew_train_step_duration_seconds": "0.25", "megatron_training_loss": "2.5"}
	for deadline := time.Now().Add(20 * time.Second); len(want) > 0; time.Sleep(20 * time.Millisecond) {
		page := scrape(t)
		for name, v := range want {
			for _, line := range regexp.MustCompile(`(?m)^`+name+`(_ratio)?\{.*$`).FindAllString(page, -1) {
				if strings.HasSuffix(line, " "+v) && (strings.HasPrefix(name, "megatron") || strings.Contains(line, `pitcrew_rank="5"`)) {
					delete(want, name)
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not served: %v\n%s", want, page)
		}
	}
	if strings.Contains(scrape(t), "pitcrew_gpu_health") {
		t.Error("a training process may tell of a GPU")
	}
}

func scrape(t *testing.T) string {
	t.Helper()
	r, err := http.Get("http://" + os.Getenv("PITCREW_PROMETHEUS") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	page, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}
