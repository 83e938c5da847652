package detector

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
)

// links gives a GPU's or switch's count of links by state, as the receiver does.
func links(e *Engine, s float64, id string, up, down float64) {
	for state, v := range map[string]float64{"up": up, "down": down, "disabled": 0} {
		e.Link(LinkValue{Metric: "pitcrew.nvlink.links", Kind: state, ID: id, Number: -1, Time: at(s), V: v})
	}
}

func linkCount(metric, kind, id string, number int, s, v float64) LinkValue {
	return LinkValue{Metric: metric, Kind: kind, ID: id, Number: number, Time: at(s), V: v}
}

func aSwitch(e *Engine, id, pci string, s, v float64) {
	e.Link(LinkValue{Metric: "pitcrew.nvswitch.status", ID: id, PCI: pci, Number: -1, Time: at(s), V: v})
}

func keys(fs []finding.Finding) (out []string) {
	for _, f := range fs {
		out = append(out, f.Key)
	}
	return out
}

func TestALinkThatWasUpAndIsDownIsOneFindingOfItsGPUUntilAllAreUp(t *testing.T) {
	e := engine(t)
	e.GPU(Value{Metric: "pitcrew.gpu.status", GPU: "GPU-1", PCI: "0000:1a:00", Time: at(0), V: 1})
	links(e, 0, "GPU-1", 18, 0)
	want(t, e.Settle())
	e.LinkChanged("GPU-1", 3, "down", at(10))
	e.LinkChanged("GPU-1", 7, "down", at(10))
	links(e, 10, "GPU-1", 16, 2)
	got := e.Settle()
	want(t, got, "+nvlink/down critical")
	d := got[0].Event.Data
	if got[0].Key != "nvlink/down gpu/GPU-1" || d.Target.GPU != "GPU-1" || d.Target.PCI != "0000:1a:00" || *d.Evidence.Value != 16 || *d.Evidence.Expected != 18 || got[0].Event.Time != at(10) {
		t.Errorf("finding %+v", got[0])
	}
	if d.Evidence.Raw != "16 of 18 NVLinks of gpu/GPU-1 are up; down: 3, 7" {
		t.Errorf("raw %q", d.Evidence.Raw)
	}
	links(e, 20, "GPU-1", 17, 1)
	want(t, e.Settle())
	links(e, 30, "GPU-1", 18, 0)
	want(t, e.Settle(), "-nvlink/down")
	links(e, 40, "GPU-1", 17, 1)
	want(t, e.Settle(), "+nvlink/down critical")
}

func TestALinkThatWasNeverUpOrThatIsDisabledIsNoFinding(t *testing.T) {
	e := engine(t)
	links(e, 0, "GPU-1", 17, 1)
	want(t, e.Settle())
	for state, v := range map[string]float64{"up": 15, "down": 0, "disabled": 3} {
		e.Link(LinkValue{Metric: "pitcrew.nvlink.links", Kind: state, ID: "GPU-1", Number: -1, Time: at(10), V: v})
	}
	want(t, e.Settle())
	links(e, 20, "GPU-1", 16, 2)
	want(t, e.Settle(), "+nvlink/down critical")
}

func TestAnOlderCountOfLinksNeitherBeginsNorEndsAnything(t *testing.T) {
	e := engine(t)
	links(e, 10, "GPU-1", 18, 0)
	e.Settle()
	links(e, 9, "GPU-1", 12, 6)
	want(t, e.Settle())
	links(e, 20, "GPU-1", 12, 6)
	want(t, e.Settle(), "+nvlink/down critical")
	links(e, 19, "GPU-1", 18, 0)
	want(t, e.Settle())
	links(e, 5, "GPU-1", 18, 0) // the clock was set back
	want(t, e.Settle(), "-nvlink/down")
}

// A board of eight GPUs with 18 links and four switches with 64: one of the switches dies.
func TestASwitchThatDiesIsAHandfulOfFindings(t *testing.T) {
	e := engine(t)
	board := func(s, up, down float64) []finding.Finding {
		for i := range 4 {
			aSwitch(e, fmt.Sprint("nvswitch-", i), fmt.Sprintf("0000:c%d:00", i), s, 1)
		}
		for i := range 8 {
			links(e, s, fmt.Sprint("GPU-", i), up, down)
			for _, kind := range []string{"crc_flit", "crc_data", "replay", "recovery"} {
				e.Link(linkCount("pitcrew.gpu.nvlink.errors", kind, fmt.Sprint("GPU-", i), -1, s, 100*down))
			}
		}
		return e.Settle()
	}
	want(t, board(0, 18, 0))
	aSwitch(e, "nvswitch-2", "0000:c2:00", 10.5, 0)
	got := e.Settle()
	want(t, got, "+nvswitch/lost critical")
	if got[0].Key != "nvswitch/lost switch/nvswitch-2" || got[0].Event.Data.Target.PCI != "0000:c2:00" || got[0].Event.Subject != "" && got[0].Event.Subject != "node/n1" {
		t.Errorf("finding %+v", got[0])
	}
	got = board(11, 14, 4)
	want(t, got, "-nvswitch/lost", "+nvlink/down critical", "+nvlink/crc warning", "+nvlink/replay warning", "+nvlink/recovery warning")
	got = got[1:]
	d := got[0].Event.Data
	if got[0].Key != "nvlink/down node" || d.Count != 8 || len(d.Evidence.Signals) != 8 || d.Evidence.Signals[0].Signal != "gpu/GPU-0" || *d.Evidence.Signals[0].Expected != 18 {
		t.Errorf("finding %+v", got[0])
	}
	if d.Target.GPU != "" || !strings.HasPrefix(d.Evidence.Raw, "8 at once: 14 of 18 NVLinks of gpu/GPU-0 are up; ") {
		t.Errorf("target %+v, raw %q", d.Target, d.Evidence.Raw)
	}
	links(e, 40, "nvswitch-1", 32, 0)
	want(t, e.Settle())
	links(e, 50, "nvswitch-1", 16, 16) // joins what stands
	want(t, e.Settle())
	for i := range 7 {
		links(e, 60, fmt.Sprint("GPU-", i), 18, 0)
	}
	want(t, e.Settle())
	links(e, 70, "GPU-7", 18, 0)
	want(t, e.Settle())
	links(e, 80, "nvswitch-1", 32, 0)
	got = e.Settle()
	want(t, got, "-nvlink/down")
	if got[0].Key != "nvlink/down node" {
		t.Errorf("key %q", got[0].Key)
	}
}

func TestTwoAreTwoFindingsAndMoreInTheSameHalfMinuteAreOneMore(t *testing.T) {
	e := engine(t)
	all := func(s float64, down ...float64) []finding.Finding {
		for i, d := range down {
			links(e, s, fmt.Sprint("GPU-", i), 18-d, d)
		}
		return e.Settle()
	}
	want(t, all(0, 0, 0, 0, 0, 0))
	if got := keys(all(10, 1, 0, 0, 0, 0)); fmt.Sprint(got) != "[nvlink/down gpu/GPU-0]" {
		t.Errorf("keys %v", got)
	}
	if got := keys(all(20, 1, 1, 1, 0, 0)); fmt.Sprint(got) != "[nvlink/down node]" {
		t.Errorf("keys %v", got)
	}
	want(t, all(100, 1, 1, 1, 1, 0)) // within two minutes
	if got := keys(all(300, 1, 1, 1, 1, 1)); fmt.Sprint(got) != "[nvlink/down gpu/GPU-4]" {
		t.Errorf("keys %v", got)
	}
	if got := keys(all(310, 0, 0, 0, 0, 0)); fmt.Sprint(got) != "[nvlink/down gpu/GPU-0 nvlink/down node nvlink/down gpu/GPU-4]" {
		t.Errorf("keys %v", got)
	}
}

func TestWhatStandsOfLinksStandsAcrossANewAgent(t *testing.T) {
	before := engine(t)
	lost := func(e *Engine, s float64, down ...float64) []finding.Finding {
		for i, d := range down {
			links(e, s, fmt.Sprint("GPU-", i), 18-d, d)
		}
		return e.Settle()
	}
	lost(before, 0, 0, 0, 0, 0)
	lost(before, 10, 2, 2, 2, 0)
	lost(before, 100, 2, 2, 2, 2) // joined in silence
	e := engine(t)
	want(t, e.Restore(before.Snapshot()), "+~nvlink/down critical")
	want(t, lost(e, 110, 2, 2, 2, 2))
	want(t, lost(e, 120, 0, 0, 0, 2))
	want(t, lost(e, 500, 0, 0, 0, 2))
	want(t, lost(e, 510, 0, 0, 0, 0), "-nvlink/down")

	before = engine(t)
	lost(before, 0, 0)
	lost(before, 10, 2)
	e = engine(t)
	want(t, e.Restore(before.Snapshot()), "+~nvlink/down critical")
	want(t, lost(e, 110, 2))
	want(t, lost(e, 120, 0), "-nvlink/down")
}

func TestErrorsOfLinksAreCountedWithinTheirWindow(t *testing.T) {
	const errors = "pitcrew.gpu.nvlink.errors"
	e := engine(t)
	count := func(kind string, s, v float64) []finding.Finding {
		e.Link(linkCount(errors, kind, "GPU-1", -1, s, v))
		return e.Settle()
	}
	want(t, count("replay", 0, 500)) // of before
	for i := 1; i <= 40; i++ {       // one in 61 s is ten in ten minutes at the most
		want(t, count("replay", 61*float64(i), 500+float64(i)))
	}
	from := 61.0 * 40
	want(t, count("replay", from+15, 545), "+nvlink/replay warning")
	want(t, count("replay", from+300, 545))
	want(t, count("replay", from+620, 545), "-nvlink/replay")
	want(t, count("replay", from+630, 3)) // a reset
	want(t, count("replay", from+645, 14), "+nvlink/replay warning")

	e = engine(t)
	want(t, count("crc_flit", 0, 0))
	want(t, count("crc_data", 0, 0))
	want(t, count("crc_flit", 15, 8))
	want(t, count("crc_data", 15, 7))
	want(t, count("crc_data", 30, 8), "+nvlink/crc warning") // both kinds together
	want(t, count("recovery", 30, 4))
	want(t, count("recovery", 45, 5), "+nvlink/recovery warning")
	want(t, count("recovery", 300, 5))
	want(t, count("recovery", 299, 4)) // older: no reset
	want(t, count("recovery", 315, 5))
	stands := e.Snapshot()
	want(t, count("recovery", 700, 5), "-nvlink/recovery")

	e = engine(t)
	want(t, e.Restore(stands), "+~nvlink/crc warning", "+~nvlink/recovery warning")
	want(t, count("recovery", 400, 5)) // what was before is not known
	want(t, count("recovery", 900, 5))
	want(t, count("recovery", 1000, 5), "-nvlink/recovery")
	want(t, count("recovery", 100, 5)) // the clock was set back
	want(t, count("recovery", 115, 6), "+nvlink/recovery warning")
	want(t, count("recovery", 800, 6), "-nvlink/recovery")
}

func TestAnIncreaseOverAGapLongerThanTheWindowIsNoRate(t *testing.T) {
	e := engine(t)
	for i, v := range []float64{0, 1e6} {
		e.Link(linkCount("pitcrew.fabric.errors", "symbol_error", "mlx5_0/1", -1, float64(i)*7200, v))
		e.Link(linkCount("pitcrew.gpu.nvlink5.recoveries", "failed", "GPU-1", -1, float64(i)*7200, v))
	}
	want(t, e.Settle(), "+nvlink/recovery-failed critical") // one is enough, whenever it was
}

func TestASwitchsErrorsAreItsLinksTogetherAndTheWorstIsNamed(t *testing.T) {
	e := engine(t)
	aSwitch(e, "nvswitch-0", "0000:c0:00", 0, 1)
	all := func(s float64, v func(int) float64) []finding.Finding {
		for n := range 64 {
			e.Link(linkCount("pitcrew.nvswitch.link.errors", "crc", "nvswitch-0", n, s, v(n)))
		}
		return e.Settle()
	}
	want(t, all(0, func(int) float64 { return 7 }))
	got := all(30, func(n int) float64 {
		if n == 11 {
			return 22
		}
		return 7 + float64(n%64/63)
	})
	want(t, got, "+nvlink/crc warning")
	if d := got[0].Event.Data; got[0].Key != "nvlink/crc switch/nvswitch-0" || d.Evidence.Raw != "link 11: 15 of 16" || *d.Evidence.Value != 16 || *d.Evidence.Upper != 15 || d.Evidence.WindowS != 900 {
		t.Errorf("finding %+v", got[0])
	}
}

func TestASwitchIsJudgedAndItsHealthIsNotAGPUs(t *testing.T) {
	e := engine(t)
	aSwitch(e, "SW-1", "0000:c0:00", 0, 1)
	health := func(s float64, system string, v float64) []finding.Finding {
		e.GPU(Value{Metric: "pitcrew.gpu.health", Kind: system, GPU: "SW-1", Time: at(s), V: v})
		return e.Settle()
	}
	want(t, health(1, "thermal", 2))
	want(t, health(2, "nvswitch_fatal", 2), "+nvswitch/unhealthy critical")
	want(t, health(3, "nvswitch_fatal", 0), "-nvswitch/unhealthy")
	e.Link(linkCount("pitcrew.nvswitch.reset_required", "", "SW-1", -1, 4, 1))
	want(t, e.Settle(), "+nvswitch/reset-required critical")
	e.Link(linkCount("pitcrew.nvswitch.reset_required", "", "SW-1", -1, 5, math.NaN()))
	want(t, e.Settle())
	e.Link(linkCount("pitcrew.nvswitch.reset_required", "", "SW-1", -1, 6, 0))
	want(t, e.Settle(), "-nvswitch/reset-required")
}

func TestTheLastSXidIsSaidWhereTheKernelLogDidNot(t *testing.T) {
	e := engine(t)
	sxid := func(s float64, class string, code float64) []finding.Finding {
		return e.Link(linkCount("pitcrew.nvswitch.sxid", class, "SW-1", -1, s, code))
	}
	aSwitch(e, "SW-1", "0000:c0:00", 0, 1)
	want(t, sxid(0, "fatal", 20009)) // of before
	got := sxid(1, "fatal", 20034)
	want(t, got, "+sxid/20034 fatal")
	if d := got[0].Event.Data; got[0].Key != "sxid/20034 pci/0000:c0:00" || d.Target.PCI != "0000:c0:00" || d.Cause.Name != "LTSSM Fault Up" {
		t.Errorf("finding %+v", got[0])
	}
	want(t, sxid(2, "fatal", 20034))
	want(t, sxid(2, "non_fatal", 0))
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "sxid", Code: 11012, PCI: "0000:c0:00"}, Time: at(3), Seq: 1, Raw: "nvidia-nvswitch0: SXid …"}), "+sxid/11012 warning")
	want(t, sxid(4, "non_fatal", 11012)) // the log said it
	n := engine(t)
	want(t, n.Restore(e.Snapshot()), "+~sxid/20034 fatal") // the log's own is read again from the log
}

func TestAPortsCountersAreJudgedByTheTable(t *testing.T) {
	port := func(e *Engine, metric, kind string, s, v float64) []finding.Finding {
		e.Link(LinkValue{Metric: metric, Kind: kind, ID: "mlx5_0/1", PCI: "0000:1b:00", Number: -1, Time: at(s), V: v})
		return e.Settle()
	}
	for _, c := range []struct {
		metric, kind string
		just, more   float64 // within its window
		signal       string
	}{
		{"pitcrew.fabric.link.downs", "", 2, 3, "fabric/unstable"},
		{"pitcrew.fabric.errors", "symbol_error", 120, 121, "fabric/symbol-errors"},
		{"pitcrew.fabric.errors", "link_error_recovery", 25, 26, "fabric/recovery"},
		{"pitcrew.fabric.errors", "local_link_integrity", 0, 1, "fabric/integrity"},
		{"pitcrew.fabric.errors", "excessive_buffer_overrun", 0, 1, "fabric/integrity"},
		{"pitcrew.fabric.errors", "receive", 3000, 3001, "fabric/receive-errors"},
		{"pitcrew.fabric.errors", "transmit_discard", 30000, 30001, "fabric/discards"},
	} {
		e := engine(t)
		want(t, port(e, c.metric, c.kind, 0, 9))
		want(t, port(e, c.metric, c.kind, 15, 9+c.just))
		got := port(e, c.metric, c.kind, 30, 9+c.more)
		want(t, got, "+"+c.signal+" warning")
		if got[0].Key != c.signal+" port/mlx5_0/1" || got[0].Event.Data.Target.PCI != "0000:1b:00" {
			t.Errorf("finding %+v", got[0])
		}
		want(t, port(e, c.metric, c.kind, 7*3600, 9+c.more), "-"+c.signal)
	}
	e := engine(t)
	up := func(s, v float64) { port(e, "hw.network.up", "", s, v) }
	const rate = "hw.network.bandwidth.limit"
	up(0, 1)
	want(t, port(e, rate, "", 0, 50e9))
	up(15, 0)
	want(t, port(e, rate, "", 15, 1e9)) // what a port says that is down
	up(30, 1)
	want(t, port(e, rate, "", 30, 25e9), "+fabric/slow-link warning")
	want(t, port(e, rate, "", 45, 50e9), "-fabric/slow-link")
}

func TestNonsenseOfLinksIsCountedAndBounded(t *testing.T) {
	e := engine(t)
	for _, v := range []LinkValue{
		{Metric: "pitcrew.nvlink.links", ID: "GPU-1", V: 1},
		{Metric: "pitcrew.nvlink.links", Time: at(1), V: 1},
		{Metric: "pitcrew.nvlink.links", ID: strings.Repeat("x", 257), Time: at(1), V: 1},
		{Metric: "pitcrew.nvlink.links", ID: "GPU-1", Time: at(1), V: math.Inf(1)},
		{Metric: "pitcrew.nvswitch.link.errors", Kind: "crc", ID: "SW", Number: 256, Time: at(1), V: 1},
	} {
		want(t, e.Link(v))
	}
	if got := e.Counts().Malformed; got != 5 {
		t.Errorf("%d malformed", got)
	}
	e.LinkChanged("GPU-1", -5, "down", time.Time{})
	e = engine(t)
	for i := range 2000 {
		e.Link(linkCount("pitcrew.nvswitch.link.errors", "crc", fmt.Sprint("SW-", i), 255, 1, 1))
		e.Link(linkCount("pitcrew.gpu.nvlink.errors", "crc_data", fmt.Sprint("GPU-", i), 255-i%2*1<<31, 1, 1))
	}
	e.Settle()
	if n, switches := e.carriers.len(), e.switches(); n != maxCarriers || switches > maxSwitches {
		t.Errorf("%d carriers are held, %d of them switches", n, switches)
	}
	counters := 0
	e.carriers.each(func(_ string, c *carrier) {
		for _, g := range c.counts {
			counters += len(g.counters)
		}
	})
	if most := 512*2 + maxSwitches*256*2; counters > most {
		t.Errorf("%d counters are kept", counters)
	}
}

func FuzzAnyValueOfALinkIsBoundedAndSaysWhatCanBeSent(f *testing.F) {
	f.Add(uint8(0), "up", "GPU-1", 3, int64(5), 18.0)
	f.Add(uint8(9), "crc", "SW-1", 255, int64(-7), math.Inf(1))
	f.Fuzz(func(t *testing.T, rule uint8, kind, id string, number int, ns int64, v float64) {
		e := engine(t)
		for i := range 30 {
			r := &linkRules[(int(rule)+i)%len(linkRules)]
			for _, k := range append([]string{kind, "up", "down"}, r.kinds...) {
				for s := range 4 {
					at := at(float64(i)).Add(time.Duration(ns * int64(s) % int64(48*time.Hour)))
					e.Link(LinkValue{Metric: r.metric, Kind: k, ID: fmt.Sprint(id, s), PCI: kind, Number: number, Time: at, V: v * float64(s)})
				}
			}
			e.LinkChanged(id+"1", number, kind, at(float64(i)))
			words(e.Settle()) // which encodes them
		}
		other := engine(t)
		words(other.Restore(e.Snapshot()))
	})
}
