package detectorconnector

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func gpuLost(gpus ...string) plog.Logs {
	all := plog.NewLogs()
	for _, gpu := range gpus {
		ld := kernelLine("pitcrew.kernel.gpu_lost", map[string]any{"hw.pci": "0000:1a:0" + gpu[4:], "hw.id": gpu, "pitcrew.kmsg.seq": 7})
		ld.ResourceLogs().MoveAndAppendTo(all.ResourceLogs())
	}
	return all
}

// The kernel log and DCGM are read at once. The end of a fault must not overtake its beginning: the last state of a condition is the one that
// holds.
func TestTheEndOfAFaultDoesNotOvertakeIt(t *testing.T) {
	r := start(t, config(t))
	entered, leave := make(chan struct{}, 2), make(chan struct{})
	r.sink.before = func() {
		entered <- struct{}{}
		if len(r.sink.AllLogs()) == 0 {
			<-leave
		}
	}
	lost, back := make(chan error, 1), make(chan error, 1)
	go func() { lost <- r.logs.ConsumeLogs(context.Background(), gpuLost("GPU-1")) }()
	<-entered
	r.sink.before = nil // read by the second call, which begins after this
	go func() {
		back <- r.metrics.ConsumeMetrics(context.Background(), samples(t0.Add(time.Second), status(1)))
	}()
	select {
	case err := <-back:
		back <- err
	case <-time.After(100 * time.Millisecond):
	}
	close(leave)
	for _, done := range []chan error{lost, back} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	r.want(t, "gpu/lost", "-gpu/lost")
}

// stuck is a kubelet that does not answer.
type stuck struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
}

func (stuck) List(ctx context.Context, _ *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAKubeletThatHangsDelaysManyFindingsNoLongerThanOne(t *testing.T) {
	cfg := config(t)
	cfg.PodResourcesSocket = filepath.Join(t.TempDir(), "k.sock")
	serve(t, stuck{}, cfg.PodResourcesSocket)
	r := start(t, cfg)
	gpus := make([]string, 9)
	want := make([]string, len(gpus))
	for i := range gpus {
		gpus[i], want[i] = "GPU-"+string(rune('1'+i)), "gpu/lost"
	}
	began := time.Now()
	r.line(t, gpuLost(gpus...))
	if took, all := time.Since(began), time.Duration(len(gpus))*askDeadline; took >= all {
		t.Errorf("%d findings took %v", len(gpus), took)
	}
	r.want(t, want...)
}
