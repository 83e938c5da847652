package agentbench

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

func TestWhereTheKernelLogCannotBeReadAnXidComesFromDCGMAndOnceThoughTheLogComesBack(t *testing.T) {
	kmsg := filepath.Join(t.TempDir(), "kmsg") // which is not there
	n := startNode(t, "PITCREW_KMSG="+kmsg)
	heard := n.listen()
	if err := n.gpus.XID(2, 31); err != nil { // which leaves the card where it is
		t.Fatal(err)
	}
	n.eventually("the XID that DCGM tells", func() bool { return len(heard.about("xid/31")) > 0 })
	e := heard.about("xid/31")[0]
	if d := e.Data; e.Source != "//c/node/node-a/dcgm" || d.Target.GPU != n.gpus.GPUs()[2].UUID || d.Target.PCI == "" {
		t.Errorf("event %+v", e)
	}
	n.xid(2, 31) // the log has the line as well, and can be read at last
	if err := os.Rename(n.kmsg.Name(), kmsg); err != nil {
		t.Fatal(err)
	}
	n.xid(3, 94)
	n.eventually("an XID of the log", func() bool { return len(heard.about("xid/94")) > 0 })
	if err := n.gpus.XID(4, 79); err != nil { // which the log alone tells from now on
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`\npitcrew_gpu_xid\S*"` + n.gpus.GPUs()[4].UUID + `"\S* 79`)
	n.eventually("DCGM's value of it", func() bool { return shown.MatchString(n.scrape()) })
	n.xid(5, 48)
	n.eventually("another XID of the log", func() bool { return len(heard.about("xid/48")) > 0 })
	for signal, want := range map[string]int{"xid/31": 1, "xid/94": 1, "xid/79": 0} {
		if got := heard.about(signal); len(got) != want {
			t.Errorf("%s was told %d times: %+v", signal, len(got), got)
		}
	}
}
