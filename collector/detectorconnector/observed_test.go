package detectorconnector

import (
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func later(ld plog.Logs, d time.Duration) plog.Logs {
	ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).SetTimestamp(pcommon.NewTimestampFromTime(t0.Add(d)))
	return ld
}

func TestAProcessOnAGpuThatAnotherPodHoldsIsAFinding(t *testing.T) {
	seen := func(pod string, more ...any) plog.Logs {
		attrs := map[string]any{"process.pid": 42, "pitcrew.process.start": 100, "process.executable.name": "python3", "hw.id": "GPU-1", "k8s.pod.uid": "u",
			"k8s.namespace.name": "a", "k8s.pod.name": pod}
		for k := 0; k < len(more); k += 2 {
			attrs[more[k].(string)] = more[k+1]
		}
		return kernelLine("pitcrew.gpu.process", attrs)
	}
	for name, c := range map[string]struct {
		serve bool
		line  func() plog.Logs
		want  []string
	}{
		"another pod's":                  {true, func() plog.Logs { return seen("thief") }, []string{"isolation/foreign-process"}},
		"its own":                        {true, func() plog.Logs { return seen("owner") }, nil},
		"a pod that nobody names":        {true, func() plog.Logs { return seen("") }, nil},
		"a process of the host":          {true, func() plog.Logs { return seen("", "k8s.pod.uid", "", "k8s.namespace.name", "") }, []string{"isolation/foreign-process"}},
		"a kubelet that does not answer": {false, func() plog.Logs { return seen("thief") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			cfg.PodResourcesSocket = filepath.Join(t.TempDir(), "k.sock")
			if c.serve {
				(&kubelet{pods: []*podresourcesv1.PodResources{pod("a", "owner", "GPU-1")}}).serve(t, cfg.PodResourcesSocket)
			}
			r := start(t, cfg)
			core := r.logs.(*logsSkin).core
			core.pods.Refresh(t.Context(), 10*time.Second)
			r.line(t, c.line())
			r.line(t, later(c.line(), 5*time.Second))
			r.want(t, c.want...)
		})
	}
}

func TestAPortOfTheFabricThatGoesDownIsAFinding(t *testing.T) {
	r := start(t, config(t))
	change := func(before, state string) plog.Logs {
		return kernelLine("pitcrew.fabric.port", map[string]any{"hw.name": "mlx5_0", "pitcrew.fabric.port": 1, "pitcrew.fabric.layer": "InfiniBand",
			"pitcrew.fabric.state": state, "pitcrew.fabric.state.before": before})
	}
	r.line(t, change("ACTIVE", "DOWN"))
	r.line(t, later(change("DOWN", "ACTIVE"), time.Second))
	if e := r.want(t, "fabric/port-down", "-fabric/port-down")[0]; e.Subject != "node/n1" {
		t.Errorf("subject %q", e.Subject)
	}
}
