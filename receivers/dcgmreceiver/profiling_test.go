//go:build cgo && linux

package dcgmreceiver

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
	"github.com/pitcrew/pitcrew/semconv"
)

func TestDCGMProfilingFieldsThatTheCardLacksAreLeftOutAndSaidOnce(t *testing.T) {
	b, node := startDCGM(t, func(c *Config, n *simgpu.Node) {
		c.ExtraFields = []uint16{1001, 1011}
		must(t, n.Profiling("group 0 0 1001 1002"))
	})
	eventually(t, "what it has", func() bool { _, ok := b.seen("pitcrew.gpu.activity", semconv.GPUPipe, "graphics"); return ok })
	if _, ok := b.seen("pitcrew.gpu.nvlink.io"); ok {
		t.Error("a field that the card lacks has a value")
	}
	must(t, node.RestartEngine())
	time.Sleep(300 * time.Millisecond)
	eventually(t, "it reads again", func() bool { return b.stale() < 0.2 })
	if n := b.lines("does not measure them"); n != 1 || b.lines("[1011]") != 1 {
		t.Errorf("said %d times: %v", n, b.said.All())
	}
}

func TestDCGMWithoutProfilingTheRestIsReadAndTheRemedyIsSaid(t *testing.T) {
	b, _ := startDCGM(t, func(c *Config, n *simgpu.Node) {
		c.ExtraFields = []uint16{1001}
		must(t, n.Profiling("none"))
	})
	eventually(t, "a temperature", func() bool { _, ok := b.seen("hw.temperature"); return ok })
	if b.lines("needs the profiling module") != 1 {
		t.Errorf("said: %v", b.said.All())
	}
}

func TestDCGMGroupsThatExcludeOneAnotherAreReducedToTheOneWithMostOfWhatIsAsked(t *testing.T) {
	b, _ := startDCGM(t, func(c *Config, n *simgpu.Node) {
		c.ExtraFields = []uint16{1001, 1002, 1004, 1005}
		must(t, n.Profiling("group 0 0 1001 1002", "group 0 1 1004", "group 1 0 1005"))
	})
	eventually(t, "what can be had at once", func() bool {
		_, sm := b.seen("pitcrew.gpu.activity", semconv.GPUPipe, "sm")
		_, dram := b.seen("pitcrew.gpu.activity", semconv.GPUPipe, "dram")
		return sm && dram
	})
	if _, ok := b.seen("pitcrew.gpu.activity", semconv.GPUPipe, "tensor"); ok {
		t.Error("the field that was given up has a value")
	}
	if b.lines("exclude one another") != 1 || b.lines("[1004]") != 1 {
		t.Errorf("said: %v", b.said.All())
	}
}

func TestDCGMCountersThatAnotherProgramHasAreTakenWhenItGivesThemBack(t *testing.T) {
	cfg, node := stubNode(t)
	cfg.ExtraFields = []uint16{1001, 1004}
	must(t, node.Profiling("busy"))
	e, logs := stubEngine(t, cfg)
	e.profilingRetry = 50 * time.Millisecond
	round := rounds(t, cfg, e)
	activity := func() bool {
		b := round(time.Minute, false)
		md, batch := b.begin(time.Now())
		values, err := e.Read(b.inv, []uint16{150, 1001, 1004}, false)
		must(t, err)
		b.values(batch, b.inv, values)
		if len(points(md, "hw.temperature", semconv.HWID)) != 8 {
			t.Fatal("the other fields are not read")
		}
		return len(points(md, "pitcrew.gpu.activity", semconv.GPUPipe)) == 2
	}
	for range 3 {
		if activity() {
			t.Fatal("counters were had that another has")
		}
		time.Sleep(60 * time.Millisecond)
	}
	must(t, node.Profiling())
	eventually(t, "the counters are had", activity)
	said := []string{}
	for _, l := range logs.All() {
		said = append(said, l.Message)
	}
	if len(said) != 2 || !strings.Contains(said[0], "dcgmi profile --pause") || !strings.Contains(said[1], "read again") {
		t.Errorf("said: %v", said)
	}
}
