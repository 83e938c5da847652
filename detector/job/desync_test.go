package job

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// stalled is a gang of four ranks in two pods whose step stands still; told is what each says, -1 nothing.
func stalled(t *testing.T) *gang {
	g := newGang(t, engine(), 4)
	g.pod = func(r int) string { return "pod-" + string(rune('a'+r/2)) }
	g.want(g.run(20), "")
	return g
}

// tell lets ranks say their numbers once a second, as agents do.
func (g *gang) tell(d time.Duration, group string, told ...int64) (found []finding.Finding) {
	for end := g.now.Add(d); g.now.Before(end); {
		g.now = g.now.Add(time.Second)
		for r, n := range told {
			if n == -1 {
				continue
			}
			found = append(found, g.heard(g.e.Add(g.now, Sample{Job: g.job, Target: g.target(r), Step: g.step, Time: g.now, Stands: true}))...)
			g.e.Collective(g.now, g.job, g.target(r), Collective{Group: group, Enqueued: n, Op: "nccl:all_reduce"})
		}
		found = append(found, g.tick()...)
	}
	return found
}

const settled = desyncSettle + 2*time.Second

func TestTheRankThatDidNotEnterACollectiveIsNamedThoughItIsInAnotherPod(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(desyncSettle-2*time.Second, "0", 57, 57, 57, 56), "")
	f := g.want(g.tell(4*time.Second, "0", 57, 57, 57, 56), "desync(3)")[0].Event
	ev, to := f.Data.Evidence, f.Data.Target
	if to.PodUID != "pod-b" || to.Node != "node-pod-b" || to.Job.UID != "job-1" || f.Data.Severity != event.Warning || f.Data.Cause.Signal() != "torch/desync" {
		t.Errorf("event %+v", f)
	}
	if *ev.Value != 56 || *ev.Expected != 57 || ev.Baseline != "peers(3)" ||
		ev.Raw != "rank 3 entered 56 collectives of group 0, 3 of 4 ranks that tell have entered 57, the last nccl:all_reduce; the job has 4 ranks" {
		t.Errorf("evidence %+v", ev)
	}
	g.want(g.tell(20*time.Second, "0", 57, 57, 57, 56), "") // once
	g.step++
	end := g.want(g.run(10), "-desync(3)")[0].Event
	if end.Type != event.Recovery || end.Data.Evidence.State != event.StateCleared || !strings.HasPrefix(end.Data.Evidence.Raw, "it steps; 1") || end.Data.Evidence.LostGPUSeconds != round3(4*end.Time.Sub(f.Data.Onset).Seconds()) {
		t.Errorf("end %+v", end)
	}
	if c := g.e.Counts(); c.Open != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestNobodyIsNamedOnTooLittle(t *testing.T) {
	for what, f := range map[string]func(g *gang) []finding.Finding{
		"a rank that has not told":     func(g *gang) []finding.Finding { return g.tell(settled, "0", 57, 57, 57, -1) },
		"one rank ahead":               func(g *gang) []finding.Finding { return g.tell(settled, "0", 57, 56, 56, 56) },
		"one ahead of one":             func(g *gang) []finding.Finding { return g.tell(settled, "0", 57, -1, -1, 56) },
		"two ahead, each with its own": func(g *gang) []finding.Finding { return g.tell(settled, "0", 1<<52, 1<<51, 56, 56) },
		"all level":                    func(g *gang) []finding.Finding { return g.tell(settled, "0", 57, 57, 57, 57) },
		"another group's number": func(g *gang) []finding.Finding {
			return append(g.tell(settled, "0", 57, 57, -1, -1), g.tell(settled, "1", -1, -1, 3, 3)...)
		},
		"numbers that move": func(g *gang) (found []finding.Finding) {
			for n := int64(50); n < 60; n++ {
				found = append(found, g.tell(5*time.Second, "0", n, n, n, n-1)...)
			}
			return found
		},
		"what somebody else says for it": func(g *gang) []finding.Finding {
			for range 12 {
				liar := g.target(3)
				liar.PodUID = "liar"
				g.e.Collective(g.now, g.job, liar, Collective{Group: "0", Enqueued: 1})
				g.want(g.tell(time.Second, "0", 57, 57, 57, -1), "")
			}
			return nil
		},
		"a job that steps": func(g *gang) []finding.Finding {
			for range 20 {
				for r, n := range []int64{57, 57, 57, 56} {
					g.e.Collective(g.now, g.job, g.target(r), Collective{Group: "0", Enqueued: n})
				}
				g.want(g.run(5), "")
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := stalled(t)
			g.want(f(g), "")
		})
	}
}

func TestARankAloneAheadDoesNotHideTheOneBehind(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(settled, "0", 1<<50, 57, 57, 56), "desync(3)")
}

func TestADesyncEndsWhenTheRankCatchesUpOrTellsNoMore(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(settled, "0", 57, 57, 57, 56), "desync(3)")
	g.want(g.tell(2*time.Second, "0", 57, 57, 57, 57), "-desync(3)")
	g = stalled(t)
	g.want(g.tell(settled, "0", 57, 57, 57, 56), "desync(3)")
	g.want(g.tell(desyncFresh+2*time.Second, "0", 57, 57, 57, -1), "-desync(3)")
}

func TestALaterAttemptSilencesWhatTheOneBeforeToldAndItsGroupsAreItsOwn(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(settled, "0", 57, 57, 57, 56), "desync(3)")
	old := *g
	g.attempt, g.pod = 1, func(r int) string { return "new-pod-" + string(rune('a'+r/2)) }
	g.want(g.run(1), "")
	g.want(g.pass(time.Second), "-desync(3)")
	old.now, old.ticked = g.now, g.ticked
	old.attempt = 0
	old.want(old.tell(settled, "0", 57, 57, 57, 56), "")
	g.now, g.ticked = old.now, old.ticked
	g.want(g.tell(settled, "0", 3, 3, 3, 3), "")
	g.want(g.tell(settled, "0", 4, 3, 4, 4), "desync(1)")
}

func TestAnAttemptThatBeginsAnewEndsItsDesyncs(t *testing.T) {
	g := stalled(t)
	g.want(g.tell(settled, "0", 57, 57, 57, 56), "desync(3)")
	g.step = 3
	g.want(g.run(1), "-desync(3)")
	if c := g.e.Counts(); c.Open != 0 || c.Restarts != 1 {
		t.Errorf("counts %+v", c)
	}
}

func TestWhatRanksMakeUpOfTheirGroupsIsBounded(t *testing.T) {
	g := newGang(t, engine(), 64)
	g.want(g.run(2), "")
	for _, c := range []Collective{
		{}, {Group: "0", Enqueued: -1}, {Group: "0", Enqueued: 1 << 62}, {Group: strings.Repeat("x", 1000)}, {Group: "0", Op: strings.Repeat("x", 1000)},
	} {
		g.e.Collective(g.now, g.job, g.target(0), c)
	}
	if c := g.e.Counts(); c.Malformed != 5 {
		t.Errorf("counts %+v", c)
	}
	for i := range 200 {
		g.e.Collective(g.now, g.job, g.target(0), Collective{Group: fmt.Sprint("made-up-", i)})
	}
	a := g.e.recent.Front().Value.(*attempt)
	if n := len(a.desync.groups); n != maxRankGroups {
		t.Errorf("%d groups of one rank", n)
	}
	told := make([]int64, 64)
	told[62], told[63] = 9, 9
	if found := g.tell(settled, "1", told...); len(found) != maxDesyncs {
		t.Errorf("%d findings by the word of two", len(found))
	}
	g.pass(DefaultForget + time.Minute)
	if c := g.e.Counts(); c.Open != 0 || c.Jobs != 0 {
		t.Errorf("counts %+v", c)
	}
}
