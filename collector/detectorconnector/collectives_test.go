package detectorconnector

import (
	"fmt"
	"math"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// stands lets a second pass in which no rank steps; each tells of how many collectives it has entered.
func (g *gateway) stands(entered func(rank int) int64) {
	g.t.Helper()
	at := pcommon.NewTimestampFromTime(time.Unix(0, g.at.Add(int64(time.Second))))
	for node := range 4 {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("k8s.node.name", fmt.Sprint("n", node))
		rm.Resource().Attributes().PutStr("pitcrew.job.uid", "job-1")
		sm := rm.ScopeMetrics().AppendEmpty()
		for rank := 2 * node; rank < 2*node+2; rank++ {
			for name, v := range map[string]int64{"pitcrew.train.step": g.step, enqueuedMetric: entered(rank)} {
				m := sm.Metrics().AppendEmpty()
				m.SetName(name)
				p := m.SetEmptyGauge().DataPoints().AppendEmpty()
				p.SetTimestamp(at)
				p.SetIntValue(v)
				attrs := map[string]any{
					"k8s.pod.uid": fmt.Sprint("pod-n", node), "pitcrew.rank": rank, "pitcrew.local_rank": rank % 2, "pitcrew.world_size": 8, "pitcrew.attempt": 0, "hw.id": fmt.Sprint("GPU-", rank),
				}
				if name == enqueuedMetric {
					attrs["pitcrew.process_group.name"], attrs["pitcrew.collective.op"] = "0", "gloo:all_reduce"
				}
				if err := p.Attributes().FromRaw(attrs); err != nil {
					g.t.Fatal(err)
				}
			}
		}
		if err := g.ConsumeMetrics(g.t.Context(), md); err != nil {
			g.t.Fatal(err)
		}
	}
	g.tick()
}

// tick is the connector's own, which comes once a second.
func (g *gateway) tick() {
	g.emit(g.t.Context(), func() []finding.Finding { return g.engine.Tick(g.now()) })
}

func TestTheRankThatDidNotEnterACollectiveIsNamedAcrossNodes(t *testing.T) {
	g := newGateway(t)
	g.seconds(5)
	for range 12 {
		g.stands(func(rank int) int64 {
			if rank == 5 {
				return 56
			}
			return 57
		})
	}
	es := g.said()
	if len(es) != 1 {
		t.Fatalf("said %+v", es)
	}
	d := es[0].Data
	if d.Cause.Signal() != "torch/desync" || *d.Target.Rank != 5 || d.Target.Node != "n2" || d.Target.PodUID != "pod-n2" || d.Target.GPU != "GPU-5" || d.Target.Job.UID != "job-1" {
		t.Errorf("said %+v", d)
	}
	g.seconds(3)
	g.tick()
	if es = g.said(); len(es) != 2 || es[1].Type != event.Recovery {
		t.Errorf("after it steps: %+v", es)
	}
}

func TestAGatewayTakesAnyCountOfCollectives(t *testing.T) {
	g := newGateway(t)
	g.seconds(1)
	for _, v := range []int64{-1, math.MinInt64, math.MaxInt64} {
		g.stands(func(int) int64 { return v })
	}
	if c, _ := g.counts(); c.Malformed != 3*8 {
		t.Errorf("counts %+v", c)
	}
}
