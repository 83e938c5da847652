package checkpoint

import (
	"context"
	"fmt"
	"testing"

	"github.com/pitcrew/pitcrew/bus"
)

// pods are agents that say what they are told to, of one pod a node.
type pods map[string]bus.PodStatus // by node

func (p pods) Request(_ context.Context, node, _ string, _ bus.Command) (bus.Reply, error) {
	return bus.Reply{Pods: []bus.PodStatus{p[node]}}, nil
}

// Whatever the order in which agents answer, and whether or not its ranks ever spoke.
func TestAWorkerThatEndedIsSeenByItsLauncherAndNotForgottenForANewerAttempt(t *testing.T) {
	says := func(pod, state string, attempt int, ranks ...bus.RankStatus) bus.PodStatus {
		return bus.PodStatus{PodUID: pod, Ranks: ranks, Launcher: &bus.LauncherStatus{State: state, Attempt: attempt, NProc: 2}}
	}
	fell := func(pod string, rank, attempt int) bus.PodStatus {
		return says(pod, bus.LauncherFailed, attempt, bus.RankStatus{Rank: rank, WorldSize: 2, Attempt: attempt})
	}
	for name, c := range map[string]struct {
		first, second bus.PodStatus
		want          string // node and attempt of each
	}{
		"before its rank spoke":            {says("p0", bus.LauncherFailed, 3), says("p1", "running", 3, bus.RankStatus{Rank: 1, WorldSize: 2, Attempt: 3}), "n0/3 "},
		"behind the others":                {says("p0", "running", 3), fell("p1", 1, 3), "n1/3 "},
		"of the attempt before, seen last": {says("p0", "running", 4, bus.RankStatus{Attempt: 4}), fell("p1", 1, 3), "n1/3 "},
		"of the attempt before":            {fell("p0", 0, 3), says("p1", "running", 4, bus.RankStatus{Rank: 1, Attempt: 4}), "n0/3 "},
		"of both":                          {fell("p0", 0, 3), fell("p1", 1, 3), "n0/3 n1/3 "},
		"of none: told to, or at the end":  {says("p0", "stopped", 3), says("p1", "done", 3), ""},
		"of none: no launcher":             {bus.PodStatus{PodUID: "p0"}, bus.PodStatus{PodUID: "p1"}, ""},
		"of another pod":                   {fell("p7", 0, 3), fell("p8", 1, 3), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, _ := (&Coordinator{Agents: pods{"n0": c.first, "n1": c.second}}).Observe(context.Background(), []Member{{Node: "n0", PodUID: "p0"}, {Node: "n1", PodUID: "p1"}})
			got := ""
			for _, f := range g.Fallen {
				got += fmt.Sprintf("%s/%d ", f.Node, f.Attempt)
			}
			if got != c.want {
				t.Errorf("fallen: %q, want %q", got, c.want)
			}
		})
	}
}
