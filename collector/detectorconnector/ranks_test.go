package detectorconnector

import (
	"strings"
	"testing"
	"time"
)

func rankPoints(step, age, beat float64, durations ...float64) []point {
	attrs := map[string]any{"k8s.pod.uid": "u-1", "pitcrew.rank": 3, "pitcrew.local_rank": 1, "pitcrew.world_size": 8, "pitcrew.attempt": 2}
	ps := []point{
		{"pitcrew.train.step", step, attrs}, {"pitcrew.train.step.age", age, attrs}, {"pitcrew.train.heartbeat.age", beat, attrs},
		{"pitcrew.train.section", 1, attrs},
	}
	for _, d := range durations {
		ps = append(ps, point{"pitcrew.train.step.duration", d, attrs})
	}
	return ps
}

func TestARanksValuesOfOneBatchAreOneSample(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, rankPoints(10, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2)...))
	r.sample(t, samples(t0.Add(2*time.Second), rankPoints(10, 2.1, 0.1)...))
	e := r.want(t, "rank/stalled")[0]
	if d := e.Data.Target; d.PodUID != "u-1" || *d.Rank != 3 || *d.LocalRank != 1 || d.WorldSize != 8 || *d.Attempt != 2 {
		t.Errorf("target %+v", d)
	}
	r.line(t, kernelLine("pitcrew.train.rank_exited", map[string]any{
		"k8s.pod.uid": "u-1", "pitcrew.rank": 3, "pitcrew.attempt": 2, "pitcrew.exit.clean": false, "pitcrew.exit.code": 1, "pitcrew.exit.signal": 0, "pitcrew.step": 10,
	}))
	r.want(t, "rank/stalled", "-~rank/stalled", "rank/dead")
}

func TestAWorkerThatItsLauncherKilledIsNoDeadRank(t *testing.T) {
	r := start(t, config(t))
	r.sample(t, samples(t0, rankPoints(10, 0.1, 0.1)...))
	end := map[string]any{
		"k8s.pod.uid": "u-1", "pitcrew.rank": 3, "pitcrew.attempt": 2, "pitcrew.exit.clean": false, "pitcrew.exit.code": -1, "pitcrew.exit.signal": 9,
		"pitcrew.exit.told": true, "process.pid": 77, "process.creation.time": "2026-11-21T04:00:00Z",
	}
	r.line(t, kernelLine("pitcrew.train.rank_exited", end))
	r.want(t)
	end["pitcrew.rank"], end["pitcrew.exit.told"] = 4, false
	r.line(t, kernelLine("pitcrew.train.rank_exited", end))
	first := r.want(t, "rank/dead")[0].ID
	again := start(t, config(t)) // an agent without the memory of the one before
	again.line(t, kernelLine("pitcrew.train.rank_exited", end))
	if id := again.want(t, "rank/dead")[0].ID; id != first {
		t.Error("a new agent names the same dead rank anew")
	}
}

func TestTheRankThatDidNotEnterACollectiveIsNamed(t *testing.T) {
	r := start(t, config(t))
	said := func(rank, enqueued int) map[string]any {
		return map[string]any{
			"k8s.pod.uid": "u-1", "pitcrew.rank": rank, "pitcrew.attempt": 2, "pitcrew.step": 10, "pitcrew.process_group.name": "0",
			"pitcrew.process_group.desc": "default_pg", "pitcrew.collective.enqueued": enqueued, "pitcrew.collective.completed": 56,
			"pitcrew.collective.op": "nccl:all_reduce",
		}
	}
	r.line(t, kernelLine("pitcrew.train.collectives", said(3, 56)))
	r.want(t)
	r.line(t, kernelLine("pitcrew.train.collectives", said(4, 57)))
	e := r.want(t, "torch/desync")[0]
	if *e.Data.Target.Rank != 3 || *e.Data.Evidence.Expected != 57 || !strings.Contains(e.Data.Evidence.Raw, "0 (default_pg)") {
		t.Errorf("named %+v, %+v", e.Data.Target, e.Data.Evidence)
	}
}
