package torchreceiver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
	"github.com/pitcrew/pitcrew/semconv"
)

func TestAStalledRanksCollectivesAreToldAsEventsAndMetricsUntilItSteps(t *testing.T) {
	root, logs := t.TempDir(), &logSink{}
	metrics := start(t, componenttest.NewNopHost(), root, logs, nil)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), Rank: 1, WorldSize: 2, Attempt: 3})
	logs.wait(t, semconv.EventTrainRankAttached)
	rank.Tell("step 7")
	rank.Tell(`say {"t":"collectives","attempt":2,"step":7,"groups":[{"name":"old","enqueued":1}]}`) // of another attempt
	rank.Tell(`say {"t":"collectives","attempt":3,"step":7,"groups":[{"name":"0","desc":"default_pg","ranks":"0-1","size":2,"enqueued":57,"started":-1,"completed":56,"op":"gloo:all_reduce [[1]]"}]}`)
	x := logs.wait(t, semconv.EventTrainCollectives)
	for k, want := range map[string]any{
		"k8s.pod.uid": podUID, "pitcrew.rank": int64(1), "pitcrew.attempt": int64(3), "pitcrew.step": int64(7), "pitcrew.process_group.name": "0",
		"pitcrew.process_group.desc": "default_pg", "pitcrew.process_group.ranks": "0-1", "pitcrew.process_group.size": int64(2),
		"pitcrew.collective.enqueued": int64(57), "pitcrew.collective.started": int64(-1), "pitcrew.collective.completed": int64(56), "pitcrew.collective.op": "gloo:all_reduce [[1]]",
	} {
		if got := x.Attributes().AsRaw()[k]; got != want {
			t.Errorf("%s is %v, want %v", k, got, want)
		}
	}
	got := until(t, metrics, func(got map[string][]pmetric.NumberDataPoint) bool {
		return len(got["pitcrew.train.collective.enqueued"]) > 0 && len(got["pitcrew.train.collective.completed"]) > 0
	})
	p := got["pitcrew.train.collective.enqueued"][0]
	if name, _ := p.Attributes().Get("pitcrew.process_group.name"); p.IntValue() != 57 || name.Str() != "0" {
		t.Errorf("%d collectives of group %q", p.IntValue(), name.Str())
	}
	if op, _ := p.Attributes().Get("pitcrew.collective.op"); op.Str() != "gloo:all_reduce" {
		t.Errorf("the operation is %q", op.Str())
	}
	rank.Tell("step 8")
	time.Sleep(50 * time.Millisecond)
	metrics.Reset()
	time.Sleep(50 * time.Millisecond)
	if n := len(points(metrics)["pitcrew.train.collective.enqueued"]); n != 0 {
		t.Errorf("%d points of a step that is over", n)
	}
}

func TestAPodCannotMakeMoreSeriesThanItsGroups(t *testing.T) {
	root, logs := t.TempDir(), &logSink{}
	start(t, componenttest.NewNopHost(), root, logs, nil)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	logs.wait(t, semconv.EventTrainRankAttached)
	for i := range 40 {
		rank.Tell(fmt.Sprintf(`say {"t":"collectives","attempt":0,"step":0,"groups":[{"name":"g%d\u0007%s","ranks":"all of them","enqueued":%d}]}`, i, strings.Repeat("x", 500), i))
	}
	rank.Tell(`say {"t":"collectives","attempt":0,"step":0,"groups":[` + strings.Repeat(`{"name":"y"},`, 400) + `{"name":"z"}]}`)
	rank.Tell(`say {"t":"error","attempt":0,"step":0,"error":"last"}`)
	rank.End("bye")
	logs.wait(t, semconv.EventTrainRankExited)
	names := map[string]bool{}
	logs.mu.Lock()
	defer logs.mu.Unlock()
	for _, x := range logs.got {
		if x.EventName() != semconv.EventTrainCollectives {
			continue
		}
		name, _ := x.Attributes().Get("pitcrew.process_group.name")
		ranks, _ := x.Attributes().Get("pitcrew.process_group.ranks")
		names[name.Str()] = true
		if len(name.Str()) > 128 || strings.ContainsRune(name.Str(), 7) || ranks.Str() != "" {
			t.Errorf("name %q, ranks %q", name.Str(), ranks.Str())
		}
	}
	if len(names) != maxGroupNames {
		t.Errorf("%d names of groups, want %d", len(names), maxGroupNames)
	}
}

// Of the words for operations, which are the pod's too, so many are attributes of series; a number is told whatever its operation.
func TestOperationsThatAPodMakesUpAreBounded(t *testing.T) {
	var s claims
	rank, now := &hook.Rank{}, time.Now()
	ops := map[string]bool{}
	for i := range 3 * maxOps {
		s.take(rank, hook.Collectives{Groups: []hook.CollectiveGroup{{Name: "g", Op: fmt.Sprintf("made_up_%d [[4]]", i), Enqueued: int64(i)}}}, now)
		told := s.of(rank, &hook.Snapshot{}, now)
		if len(told) != 1 || told[0].Enqueued != int64(i) {
			t.Fatalf("told %+v", told)
		}
		ops[told[0].Op] = true
	}
	if delete(ops, ""); len(ops) != maxOps || !ops["made_up_0"] {
		t.Errorf("operations %v", ops)
	}
}
