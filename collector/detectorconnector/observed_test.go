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

func TestLinksSwitchesAndPortsAreJudgedFromTheirPoints(t *testing.T) {
	r := start(t, config(t))
	of := func(id string, more ...any) map[string]any {
		a := map[string]any{"hw.id": id}
		for i := 0; i < len(more); i += 2 {
			a[more[i].(string)] = more[i+1]
		}
		return a
	}
	links := func(s float64, up, down float64, more ...point) {
		more = append(more, point{"pitcrew.nvswitch.status", 1, of("SW-1", "hw.pci", "0000:c0:00")},
			point{"pitcrew.nvlink.links", up, of("GPU-1", "pitcrew.nvlink.state", "up")}, point{"pitcrew.nvlink.links", down, of("GPU-1", "pitcrew.nvlink.state", "down")})
		r.sample(t, samples(t0.Add(time.Duration(s*1e9)), more...))
	}
	const errors, crc, sxid = "pitcrew.nvswitch.link.errors", "pitcrew.nvlink.error", "pitcrew.sxid.class"
	links(0, 18, 0, point{errors, 5, of("SW-1", crc, "crc", "pitcrew.nvlink.link", 7)}, point{"pitcrew.nvswitch.sxid", 0, of("SW-1", sxid, "fatal")},
		point{"pitcrew.gpu.nvlink.errors", 0, of("GPU-1", crc, "recovery")}, point{"pitcrew.gpu.nvlink5.recoveries", 0, of("GPU-1", "pitcrew.nvlink.recovery", "failed")},
		point{"pitcrew.fabric.errors", 0, of("mlx5_0/1", "error.type", "local_link_integrity")})
	r.line(t, kernelLine("pitcrew.nvlink.transition", of("GPU-1", "pitcrew.nvlink.link", 11, "pitcrew.nvlink.from", "up", "pitcrew.nvlink.to", "down")))
	links(10, 17, 1, point{errors, 40, of("SW-1", crc, "crc", "pitcrew.nvlink.link", 7)}, point{"pitcrew.nvswitch.sxid", 20034, of("SW-1", sxid, "fatal")},
		point{"pitcrew.gpu.nvlink.errors", 1, of("GPU-1", crc, "recovery")}, point{"pitcrew.gpu.nvlink5.recoveries", 1, of("GPU-1", "pitcrew.nvlink.recovery", "failed")},
		point{"pitcrew.gpu.health", 2, of("SW-1", "pitcrew.gpu.health.system", "nvswitch_fatal")}, point{"pitcrew.fabric.errors", 1, of("mlx5_0/1", "error.type", "local_link_integrity")})
	es := r.want(t, "sxid/20034", "nvlink/crc", "nvswitch/unhealthy", "nvlink/down", "nvlink/recovery", "nvlink/recovery-failed", "fabric/integrity")
	if d := es[1].Data; d.Evidence.Raw != "link 7: 35 of 35" || d.Target.PCI != "0000:c0:00" {
		t.Errorf("data %+v", d)
	}
	if raw := es[3].Data.Evidence.Raw; raw != "17 of 18 NVLinks of gpu/GPU-1 are up; down: 11" || es[3].Subject != "gpu/GPU-1" {
		t.Errorf("%s: %q", es[3].Subject, raw)
	}
	links(20, 18, 0)
	if _, all := r.found(t); all[len(all)-1] != "-nvlink/down" {
		t.Errorf("findings %q", all)
	}
}
