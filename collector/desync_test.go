package collector

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

func TestMain(m *testing.M) {
	hooktest.Main()
	os.Exit(m.Run())
}

func TestAnAgentsStalledRanksLetTheGatewayNameTheOneThatAllWaitFor(t *testing.T) {
	s := bustest.Server(t)
	surround(t, t.TempDir(), s.URL())
	t.Setenv("PITCREW_NODE", "gw-0")
	defer run(t, Gateway)()
	gateway, dir := os.Getenv("PITCREW_OTLP"), t.TempDir()
	surround(t, dir, s.URL())
	t.Setenv(GatewayEnv, gateway)
	pods := []string{"0b9f5a1e-1111-4222-8333-444455556666", "0b9f5a1e-2222-4222-8333-444455556666"}
	ranks := make([]*hooktest.Process, 3)
	for r := range ranks { // the last is alone in its pod, so that no comparison within one can name it
		ranks[r] = hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, filepath.Join(dir, "kubelet"), pods[r/2]), Rank: r, LocalRank: r % 2, WorldSize: 3, JobUID: "job-1"})
	}
	defer run(t, Agent)()

	b := bustest.Connect(t, s.URL())
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	done := make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		for tick := time.NewTicker(2 * time.Second); ; {
			for r, n := range []int{57, 57, 56} {
				ranks[r].Tell(fmt.Sprintf(`say {"t":"collectives","attempt":0,"step":0,"groups":[{"name":"0","desc":"default_pg","ranks":"0-2","size":3,"enqueued":%d,"started":-1,"completed":55,"op":"gloo:all_reduce [[1]]"}]}`, n))
			}
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	var got *bus.Delivery
	err := b.Events(ctx, "test", func(_ context.Context, d bus.Delivery) error {
		if d.Event.Data.Cause.Signal() == "torch/desync" {
			got = &d
			cancel()
		}
		return nil
	}, func(subject string, err error) { t.Errorf("%s: %v", subject, err) })
	if err != nil || got == nil {
		t.Fatalf("no event: %v", err)
	}
	d := got.Event.Data
	if got.Gateway != "gw-0" || *d.Target.Rank != 2 || d.Target.PodUID != pods[1] || d.Target.Node != "n1" || d.Target.Job.UID != "job-1" || *d.Evidence.Expected != 57 {
		t.Errorf("from gateway %q: %+v", got.Gateway, d)
	}
}
