package detector

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/semconv"
)

// answers is a scrape of one maker's exporter: who answers, and how many it counts of how many.
func answers(e *Engine, maker string, s, have, expected float64, gpus ...string) []finding.Finding {
	var out []finding.Finding
	for _, g := range gpus {
		v := status(g, s, 1)
		v.Maker = maker
		out = append(out, e.GPU(v)...)
	}
	e.GPU(Value{Metric: semconv.GPUCount, Maker: maker, Time: at(s), V: have})
	e.GPU(Value{Metric: semconv.GPUExpected, Maker: maker, Time: at(s), V: expected})
	return append(out, e.Settle()...)
}

func TestAMakerThatFellSilentLosesNothingByWhatAnotherLacks(t *testing.T) {
	e := engine(t)
	want(t, answers(e, "AMD", 0, 2, 2, "AMD-1", "AMD-2"))
	want(t, answers(e, "", 0, 2, 2, "GPU-1", "GPU-2"))
	for s := 1.0; s < 120; s++ { // AMD's exporter is gone
		got := answers(e, "", s, 1, 2, "GPU-1")
		if s != 2 {
			want(t, got)
			continue
		}
		want(t, got, "+gpu/lost fatal")
		if g := got[0].Event.Data.Target.GPU; g != "GPU-2" {
			t.Fatalf("lost %q", g)
		}
	}
	want(t, answers(e, "AMD", 121, 2, 2, "AMD-1", "AMD-2"))
	want(t, answers(e, "", 122, 2, 2, "GPU-1", "GPU-2"), "-gpu/lost")
}

func TestEachMakerHasItsOwnExpectedNumber(t *testing.T) {
	e := engine(t)
	for s := range 5 {
		want(t, answers(e, "", float64(s), 8, 8))
		want(t, answers(e, "Huawei", float64(s), 2, 2))
	}
	want(t, answers(e, "Huawei", 5, 1, 2))
	want(t, answers(e, "", 5, 8, 8))
	got := answers(e, "Huawei", 6, 1, 2)
	want(t, got, "+gpu/lost fatal")
	want(t, answers(e, "", 6, 7, 8))
	more := answers(e, "", 7, 7, 8)
	want(t, more, "+gpu/lost fatal") // of nobody's name either, and no less lost
	if got[0].Key == more[0].Key {
		t.Errorf("both are %q", got[0].Key)
	}
	want(t, answers(e, "", 8, 8, 8), "-gpu/lost")
	want(t, answers(e, "Huawei", 8, 2, 2), "-gpu/lost")
}

func TestAnExporterThatStopsForAMinuteAndComesBackLostNothing(t *testing.T) {
	e := engine(t)
	want(t, answers(e, "AMD", 0, 2, 2, "AMD-1", "AMD-2"))
	for s := 1.0; s < 60; s++ {
		want(t, answers(e, "", s, 1, 1, "GPU-1"))
	}
	want(t, answers(e, "AMD", 60, 1, 2, "AMD-1")) // it counts up
	want(t, answers(e, "AMD", 65, 2, 2, "AMD-1", "AMD-2"))
	want(t, answers(e, "AMD", 70, 1, 2, "AMD-1"))
	want(t, answers(e, "AMD", 75, 1, 2, "AMD-1"), "+gpu/lost fatal")
}

// npu-exporter gives a chip's values the time at which it looked, and their number none.
func TestOnlyTheOneThatIsMissingIsLostThoughStatusesAreOlderThanTheCount(t *testing.T) {
	e := engine(t)
	scrape := func(s, have float64, gpus ...string) []finding.Finding {
		for _, g := range gpus {
			v := status(g, s-5, 1)
			v.Maker = "Huawei"
			want(t, e.GPU(v))
		}
		return answers(e, "Huawei", s, have, 3)
	}
	want(t, scrape(10, 3, "NPU-1", "NPU-2", "NPU-3"))
	want(t, scrape(15, 2, "NPU-1", "NPU-3"))
	got := scrape(20, 2, "NPU-1", "NPU-3")
	want(t, got, "+gpu/lost fatal")
	if g := got[0].Event.Data.Target.GPU; g != "NPU-2" {
		t.Errorf("lost %q", g)
	}
	want(t, scrape(25, 2, "NPU-1", "NPU-3"))
}

func TestACountAndItsStatusesMayComeInBatchesOfTheirOwn(t *testing.T) {
	e := engine(t)
	for s := 0.0; s < 50; s += 5 {
		gpus, have := []string{"AMD-1", "AMD-2"}, 2.0
		if s >= 20 {
			gpus, have = gpus[:1], 1
		}
		got := answers(e, "AMD", s, have, 2)
		for _, g := range gpus {
			v := status(g, s, 1)
			v.Maker = "AMD"
			want(t, e.GPU(v))
		}
		want(t, e.Settle())
		if s != 25 {
			want(t, got)
			continue
		}
		want(t, got, "+gpu/lost fatal")
		if g := got[0].Event.Data.Target.GPU; g != "AMD-2" {
			t.Errorf("lost %q", g)
		}
	}
}

func TestWhereMoreAreSilentThanMissingNoneIsAccused(t *testing.T) {
	e := engine(t)
	want(t, answers(e, "AMD", 0, 3, 3, "AMD-1", "AMD-2", "AMD-3"))
	want(t, answers(e, "AMD", 5, 2, 3))
	got := answers(e, "AMD", 10, 2, 3)
	want(t, got, "+gpu/lost fatal")
	if g := got[0].Event.Data.Target.GPU; g != "" {
		t.Errorf("accused %q", g)
	}
	got = answers(e, "AMD", 15, 2, 3, "AMD-1", "AMD-3")
	want(t, got, "+gpu/lost fatal", "-~gpu/lost") // it has a name now, and is one
	if g := got[0].Event.Data.Target.GPU; g != "AMD-2" {
		t.Errorf("accused %q", g)
	}
	want(t, answers(e, "AMD", 20, 2, 3, "AMD-1", "AMD-3"))
}

func TestAGpuThatWasExchangedIsMissedNoMore(t *testing.T) {
	e := engine(t)
	want(t, answers(e, "AMD", 0, 2, 2, "AMD-1", "AMD-2"))
	want(t, answers(e, "AMD", 5, 2, 2, "AMD-1", "AMD-3"))
	want(t, answers(e, "AMD", 10, 2, 2, "AMD-1", "AMD-3"))
	want(t, answers(e, "AMD", 15, 1, 2, "AMD-1"))
	got := answers(e, "AMD", 20, 1, 2, "AMD-1")
	want(t, got, "+gpu/lost fatal")
	if g := got[0].Event.Data.Target.GPU; g != "AMD-3" {
		t.Errorf("lost %q", g)
	}
}

// reborn is a new agent of the same boot that takes up what the old one left open.
func reborn(t *testing.T, old *Engine) (*Engine, []finding.Finding) {
	t.Helper()
	raw, err := json.Marshal(old.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	var open []finding.Open
	if err := json.Unmarshal(raw, &open); err != nil {
		t.Fatal(err)
	}
	e := engine(t)
	return e, e.Restore(open)
}

func TestALostGpuIsNotMissedOnceMoreByANewAgent(t *testing.T) {
	for _, maker := range []string{"", "AMD"} {
		e := engine(t)
		want(t, answers(e, maker, 0, 2, 2, "X-1", "X-2"))
		want(t, answers(e, maker, 1, 1, 2, "X-1"))
		want(t, answers(e, maker, 2, 1, 2, "X-1"), "+gpu/lost fatal")
		e, back := reborn(t, e)
		want(t, back, "+~gpu/lost fatal")
		for s := 10.0; s < 20; s++ {
			want(t, answers(e, maker, s, 1, 2, "X-1"))
			want(t, answers(e, "Huawei", s, 1, 1, "NPU-1"))
		}
		want(t, answers(e, "Huawei", 20, 0, 1))
		want(t, answers(e, "Huawei", 21, 0, 1), "+gpu/lost fatal") // which is another's, and new
		want(t, answers(e, maker, 22, 2, 2, "X-1", "X-2"), "-gpu/lost")
	}
}

// What was found stands until the accelerator answers, whoever is uninstalled meanwhile; what was not is not found by silence.
func TestAnExporterThatIsUninstalledNeitherBeginsNorEndsALoss(t *testing.T) {
	e := engine(t)
	want(t, answers(e, "AMD", 0, 2, 2, "AMD-1", "AMD-2"))
	want(t, answers(e, "AMD", 5, 1, 2, "AMD-1"))
	want(t, answers(e, "AMD", 10, 1, 2, "AMD-1"), "+gpu/lost fatal")
	for s := 11.0; s < 3600; s++ {
		want(t, answers(e, "", s, 1, 1, "GPU-1"))
	}
	e, back := reborn(t, e)
	want(t, back, "+~gpu/lost fatal")
	want(t, answers(e, "", 3601, 1, 1, "GPU-1"))
	next := engine(t, func(o *Options) { o.BootID = "boot-2" })
	want(t, next.Restore(e.Snapshot())) // the boot ended it
}

func TestAnyNumberOfMakersAndAnyCountAreTaken(t *testing.T) {
	e := engine(t)
	for i := range 10 * maxMakers {
		maker := fmt.Sprint("maker-", i)
		e.GPU(Value{Metric: semconv.GPUCount, Maker: maker, Time: at(1), V: -1e300})
		e.GPU(Value{Metric: semconv.GPUExpected, Maker: maker, Time: at(1), V: 1e300})
		e.Settle()
	}
	if n := e.makers.len(); n != maxMakers {
		t.Errorf("%d makers are kept", n)
	}
	before := e.Counts().Malformed
	e.GPU(Value{Metric: semconv.GPUCount, Maker: strings.Repeat("x", maxMaker+1), Time: at(1), V: 1})
	e.GPU(Value{Metric: semconv.GPUCount, Time: time.Time{}, V: 1})
	if n := e.Counts().Malformed - before; n != 2 {
		t.Errorf("%d were malformed", n)
	}
}
