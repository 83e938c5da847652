package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The trainer's own code reads what the fault wrote.
func TestASlowFaultIsThePaceThatTheTrainerReads(t *testing.T) {
	dir := t.TempDir()
	g := GPU{File: filepath.Join(dir, "GPU-0")}
	read := func() string {
		t.Helper()
		cmd := exec.Command("python3", "-c", `
import sys; sys.path.insert(0, "trainer")
from simgpu import SimulatedGPU
gpu = SimulatedGPU(sys.argv[1], 0)
gpu.touch()
print("%.2f %.2f" % (gpu.slowdown(), gpu.launch() / 1e9))`, dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	now := float64(time.Now().Unix())
	for _, c := range []struct {
		name string
		p    Pace
		want string
	}{
		{"healthy", Pace{}, "1.00 0.00"},
		{"slow", Pace{Slow: 1.3}, "1.30 0.00"},
		{"drifted to its limit", Pace{Slow: 1, PerS: 1, Since: now - 100, Limit: 1.4}, "1.40 0.00"},
		{"a spike", Pace{Launch: 0.06, Until: now + 60}, "1.00 0.06"},
		{"a launch latency that stays", Pace{Launch: 0.06}, "1.00 0.06"},
		{"a spike that is over", Pace{Launch: 0.06, Until: now - 1}, "1.00 0.00"},
		{"healthy again", Pace{}, "1.00 0.00"},
	} {
		if err := g.set(GPUOk); err != nil {
			t.Fatal(err)
		}
		if err := g.setPace(c.p); err != nil {
			t.Fatal(err)
		}
		if got := read(); got != c.want {
			t.Errorf("%s: the trainer reads %q, want %q", c.name, got, c.want)
		}
	}
	if raw, err := os.ReadFile(g.File); err != nil || string(raw) != "o" {
		t.Errorf("a healthy device's file says %q, %v", raw, err)
	}
}
