package agentbench

import (
	"strings"
	"testing"
)

// A simulated board: the stub's switches and links do what the script says.
func TestASwitchThatDiesIsAHandfulOfEvents(t *testing.T) {
	n := startNode(t)
	heard := n.listen()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(n.gpus.Switches(4))
	up := func() (series int) {
		for line := range strings.Lines(n.scrape()) {
			if strings.HasPrefix(line, "pitcrew_nvlink_links{") && strings.Contains(line, `pitcrew_nvlink_state="up"`) && !strings.HasSuffix(line, " 0\n") {
				series++
			}
		}
		return series
	}
	n.eventually("the links of eight GPUs and four switches", func() bool { return up() == gpus+4 })
	must(n.gpus.RemoveSwitch(2))
	for gpu := range gpus {
		for link := 8; link < 12; link++ {
			must(n.gpus.NVLink(gpu, link, "down"))
		}
	}
	must(n.gpus.SetSwitch(1, 856, 20034)) // what its neighbour has to say of it
	for _, signal := range []string{"nvswitch/lost", "nvlink/down", "sxid/20034"} {
		n.eventually(signal, func() bool { return len(heard.about(signal)) > 0 })
	}
	if got := heard.about("nvswitch/lost")[0]; got.Subject != "node/node-a" || got.Data.Target.PCI == "" || got.Data.Target.GPU != "" {
		t.Errorf("event %+v", got)
	}
	d := heard.about("nvlink/down")[0].Data
	if len(d.Evidence.Signals) < 3 || d.Target.GPU != "" || !strings.Contains(d.Evidence.Raw, "14 of 18 NVLinks of gpu/GPU-") {
		t.Errorf("data %+v", d)
	}
	heard.mu.Lock()
	defer heard.mu.Unlock()
	if len(heard.all) > 5 {
		t.Errorf("%d events", len(heard.all))
	}
}
