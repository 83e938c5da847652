package simgpu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func node(t *testing.T) *Node {
	t.Helper()
	n, err := New(filepath.Join(t.TempDir(), "dcgm.script"), H100s("node-a", 8))
	if err != nil {
		t.Fatal(err)
	}
	n.now = func() time.Time { return time.Unix(1700000000, 0) }
	return n
}

func script(t *testing.T, n *Node) string {
	t.Helper()
	b, err := os.ReadFile(n.Path())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEachFaultIsOneLineOfTheScript(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Node) error
		want string
	}{
		{"a lost GPU", func(n *Node) error { return n.Lose(3) }, "\nlost 3\n"},
		{"a removed GPU", func(n *Node) error { return n.Remove(3) }, "\ngone 3\n"},
		{"an XID", func(n *Node) error { return n.XID(2, 79) }, "\nxid 2 79 id=1\n"},
		{"a violation", func(n *Node) error { return n.Violate(2, "dbe", 1, 0) }, "\nviolation 2 dbe 1 0 id=1\n"},
		{"a ramp", func(n *Node) error { return n.Ramp(1, 312, 0, 5, 100) }, "\nfield 1 312 ramp 0 5 max=100 since=1700000000.000000\n"},
		{"degrading memory", func(n *Node) error { return n.RampECC(1, 10) }, "\nfield 1 396 const 1\n"},
		{"a device that is too hot", func(n *Node) error { return n.Throttle(2, Throttling{CelsiusPerSecond: 1, MHz: 1250}) }, "\nfield 2 112 const 64\n"},
		{"a blank on all", func(n *Node) error { return n.Blank(All, 150, "notsupported") }, "\nfield * 150 blank notsupported\n"},
		{"a hang", func(n *Node) error { return n.Hang("dcgmHealthCheck", 60*time.Second) }, "\nhang dcgmHealthCheck 60\n"},
		{"an error", func(n *Node) error { return n.Fail("dcgmHealthCheck", -3) }, "\nfail dcgmHealthCheck -3\n"},
		{"a dead engine", func(n *Node) error { return n.EngineDown(true) }, "\nengine down\n"},
		{"a link", func(n *Node) error { return n.NVLink(0, 4, "down") }, "\nnvlink 0 4 down\n"},
		{"an instance", func(n *Node) error {
			return n.MIG(1, Instance{3, "1g.10gb", 1, []Compute{{0, "MIG-a", false}, {1, "", false}, {2, "MIG-b", true}}})
		}, "\nmig 1 3 1g.10gb 1 0:MIG-a 1 2=MIG-b\n"},
		{"an instance's field", func(n *Node) error { return n.SetInstance(1, 3, 252, 7) }, "\nfield 1/3 252 const 7\n"},
		{"switches", func(n *Node) error { return n.Switches(4) }, "\nswitches 4\n"},
		{"a switch that is gone", func(n *Node) error { return n.RemoveSwitch(2) }, "\nswitch 2 gone\n"},
		{"a switch's link", func(n *Node) error { return n.SwitchLink(2, 7, "down") }, "\nnvlink switch:2 7 down\n"},
		{"a switch's field", func(n *Node) error { return n.SetSwitch(2, 856, 20034) }, "\nfield switch:2 856 const 20034\n"},
		{"a field of a switch's link", func(n *Node) error { return n.SetSwitchLink(2, 7, 784, 5) }, "\nfield switch:2/7 784 const 5\n"},
		{"a switch's incident", func(n *Node) error { return n.SwitchHealth(0, "nvswitch_fatal", "fail", 9, "x y") }, "\nhealth switch:0 nvswitch_fatal fail 9 \"x y\"\n"},
		{"no profiling", func(n *Node) error { return n.Profiling("none") }, "\nprofiling none\n"},
		{"a path", func(n *Node) error { return n.Topology(0, 3, "pix") }, "\npath 0 3 pix\n"},
		{"an incident", func(n *Node) error { return n.Health(0, "mem", "fail", 95, "bad rows") }, "\nhealth 0 mem fail 95 \"bad rows\"\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t)
			if err := c.do(n); err != nil {
				t.Fatal(err)
			}
			if got := script(t, n); !strings.Contains(got, c.want) {
				t.Errorf("script lacks %q:\n%s", c.want, got)
			}
		})
	}
}

func TestHealingTakesAFaultBack(t *testing.T) {
	n := node(t)
	healthy := script(t, n)
	for _, err := range []error{n.Lose(3), n.RampECC(3, 1), n.Throttle(3, Throttling{1, 1000}), n.NVLink(3, 0, "down"), n.XID(3, 79), n.Health(3, "mem", "warn", 1, "x"), n.Heal(3)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := script(t, n); got != healthy {
		t.Errorf("script after healing:\n%s\nwant:\n%s", got, healthy)
	}
}

func TestAGPUThatIsNotThereIsRefused(t *testing.T) {
	if err := node(t).Lose(8); err == nil || !strings.Contains(err.Error(), "no GPU 8 among 8") {
		t.Errorf("error is %v", err)
	}
}

func TestUUIDsDependOnNodeAndSlotAlone(t *testing.T) {
	a, b, other := H100s("node-a", 8), H100s("node-a", 8), H100s("node-b", 8)
	seen := map[string]bool{}
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("GPU %d is %v, then %v", i, a[i], b[i])
		}
		seen[a[i].UUID], seen[other[i].UUID] = true, true
	}
	if len(seen) != 16 {
		t.Errorf("%d different UUIDs among 16 GPUs", len(seen))
	}
}

func TestNoTemporaryFileStaysBehind(t *testing.T) {
	n := node(t)
	if err := n.Lose(0); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(filepath.Dir(n.Path()))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 {
		t.Errorf("%d files beside the script", len(files)-1)
	}
}
