package detector

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
)

// entered is what rank says of group "0" at a time.
func entered(rank int, s float64, step, enqueued int64, op string) Collective {
	r := sample(rank, s, step, 0.1)
	return Collective{Target: r.Target, Time: at(s), Group: "0", Desc: "default_pg", Step: step, Enqueued: enqueued, Completed: enqueued - 1, Op: op}
}

// stand lets ranks stand still in a step.
func stand(e *Engine, s float64, step int64, ranks ...int) {
	for _, r := range ranks {
		e.Rank(sample(r, s, step, 0.1))
	}
	e.take()
}

func TestTheRanksThatHaveEnteredFewerCollectivesAreNamed(t *testing.T) {
	e := engine(t)
	stand(e, 1, 12, 0, 1, 2)
	want(t, e.Collective(entered(0, 4, 12, 57, "gloo:all_reduce [[4]]")))
	want(t, e.Collective(entered(2, 4.1, 12, 57, "gloo:all_reduce [[4]]")))
	got := e.Collective(entered(1, 4.2, 12, 56, "gloo:all_reduce [[4]]"))
	want(t, got, "+torch/desync warning")
	d := got[0].Event.Data
	if *d.Target.Rank != 1 || *d.Evidence.Value != 56 || *d.Evidence.Expected != 57 || d.Evidence.Raw !=
		"step 12: entered 56 collectives of group 0 (default_pg), 2 of 3 ranks have entered 57, the last gloo:all_reduce" {
		t.Errorf("finding %+v, evidence %+v", d, d.Evidence)
	}
	want(t, e.Collective(entered(1, 9, 12, 56, "gloo:all_reduce"))) // one onset, one finding
	want(t, e.Rank(sample(1, 10, 13, 0.1)), "-torch/desync")
}

func TestTheOrderInWhichRanksSpeakChangesNothing(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
		e := engine(t)
		stand(e, 1, 12, order...)
		var got []finding.Finding
		for i, r := range order {
			n := int64(57)
			if r == 1 {
				n = 56
			}
			got = append(got, e.Collective(entered(r, 4+float64(i), 12, n, "x"))...)
		}
		want(t, got, "+torch/desync warning")
		if *got[0].Event.Data.Target.Rank != 1 {
			t.Errorf("order %v names rank %d", order, *got[0].Event.Data.Target.Rank)
		}
	}
}

func TestRanksThatPartedWaysAreNamed(t *testing.T) {
	e := engine(t)
	stand(e, 1, 12, 0, 1, 2)
	want(t, e.Collective(entered(0, 4, 12, 57, "nccl:all_reduce [[4]]")))
	want(t, e.Collective(entered(1, 4, 12, 57, "nccl:all_reduce [[8]]"))) // sizes may differ
	got := e.Collective(entered(2, 4, 12, 57, "nccl:broadcast [[4]]"))
	want(t, got, "+torch/desync warning")
	if raw := got[0].Event.Data.Evidence.Raw; *got[0].Event.Data.Target.Rank != 2 || !strings.Contains(raw, "entered nccl:broadcast as collective 57") {
		t.Errorf("named: %s", raw)
	}
}

func TestWhatIsOldUnknownOrOfOthersIsNotCompared(t *testing.T) {
	other := entered(1, 4, 12, 40, "x")
	other.Group = "1"
	elsewhere := entered(1, 4, 12, 40, "x")
	elsewhere.Target.PodUID = "another"
	unknown := entered(1, 4, 12, -1, "")
	for name, second := range map[string]Collective{
		"another group": other, "another pod": elsewhere, "no count": unknown, "as many": entered(1, 4, 12, 57, "x"), "no operation told": entered(1, 4, 12, 57, ""),
		"long after": entered(1, 4+1.1*collectivesFresh.Seconds(), 12, 40, "x"),
	} {
		e := engine(t)
		stand(e, 1, 12, 0, 1)
		got := append(e.Collective(entered(0, 4, 12, 57, "x")), e.Collective(second)...)
		if len(got) != 0 {
			t.Errorf("%s: %q", name, words(got))
		}
	}
	e := engine(t)
	stand(e, 1, 12, 0, 1)
	want(t, e.Collective(entered(0, 4, 12, 57, "x")))
	stand(e, 5, 13, 0) // it went on: what it said is of a step that is over
	want(t, e.Collective(entered(1, 6, 12, 56, "x")))
}

func TestAnExitOutdoesADesync(t *testing.T) {
	e := engine(t)
	stand(e, 1, 12, 0, 1)
	want(t, e.Collective(entered(0, 4, 12, 57, "x")))
	want(t, e.Collective(entered(1, 4, 12, 56, "x")), "+torch/desync warning")
	r := sample(1, 5, 12, 0.1)
	want(t, e.Exit(Exit{Target: r.Target, Time: at(5), Signal: 9, Code: -1}), "-~torch/desync", "+rank/dead fatal")
	want(t, e.Collective(entered(1, 6, 12, 56, "x"))) // the dead say nothing
	if _, stands := e.open.get("rank/desync pod/" + r.Target.PodUID + "/rank/1"); stands {
		t.Error("the desync stands beside the death")
	}
}

func TestGroupsAreBounded(t *testing.T) {
	e := engine(t)
	stand(e, 1, 12, 0)
	for i := range 3 * maxGangs {
		c := entered(0, 4, 12, 1, "x")
		c.Group = strings.Repeat("g", i%200) + time.Duration(i).String()
		e.Collective(c)
	}
	if n := e.gangs.len(); n > maxGangs {
		t.Errorf("%d groups are kept", n)
	}
}
