package agentbench

import (
	"net"
	"net/http"
	"testing"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

func TestAPodThatWasGivenAnOpaqueMIGDeviceHasItsInstancesSeries(t *testing.T) {
	const a, b = "MIG-0d1e2f3a-0000-1111-2222-333344445555", "MIG-1d1e2f3a-0000-1111-2222-333344445555"
	n := startNode(t, "PITCREW_DCGM_MAX_INTERVAL=1s", "PITCREW_DCGM_EXTRA_FIELDS=[251, 1001]")
	if err := n.gpus.MIG(3, // as a real driver: DCGM tells the parts, NVML whose UUID is whose
		simgpu.Instance{GI: 1, Profile: "3g.40gb", Slices: 3, Compute: []simgpu.Compute{{UUID: a, NVML: true}}},
		simgpu.Instance{GI: 5, Profile: "1g.10gb", Slices: 1, Compute: []simgpu.Compute{{UUID: b, NVML: true}}}); err != nil {
		t.Fatal(err)
	}
	n.kubelet.give("mig", "large", "main", a)
	n.kubelet.give("mig", "small", "main", b)
	n.kubelet.give("train", "llm-0", "torch", n.gpus.GPUs()[4].UUID)
	var s scraped
	n.eventually("the instances' pods", func() bool {
		s = parse(t, n.scrape())
		return len(s.ask(t, `DCGM_FI_DEV_FB_USED{namespace="mig"}`)) == 2 && len(s.ask(t, `DCGM_FI_DEV_FB_USED{namespace="train"}`)) == 1
	})
	for query, want := range map[string]int{
		`DCGM_FI_DEV_FB_USED{gpu="3", GPU_I_ID="1", GPU_I_PROFILE="3g.40gb", pod="large"}`: 1,
		`DCGM_FI_DEV_FB_USED{gpu="3", GPU_I_ID="5", GPU_I_PROFILE="1g.10gb", pod="small"}`: 1,
		`DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID="5", pod="small"}`:                         1,
		`DCGM_FI_DEV_GPU_TEMP{gpu="3"}`:                                                    2, // the card's own, for each of its holders
	} {
		if got := s.ask(t, query); len(got) != want {
			t.Errorf("%s answers %d series, want %d: %v", query, len(got), want, got)
		}
	}
	_, port, err := net.SplitHostPort(n.prometheus)
	if err != nil {
		t.Fatal(err)
	}
	if _, code := get("http://127.0.0.1:" + port + "/metrics"); code == http.StatusOK {
		t.Error("the endpoint answers on the loopback address as well, though PITCREW_PROMETHEUS names another")
	}
}
