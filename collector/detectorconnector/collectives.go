package detectorconnector

import (
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/detector/job"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

const enqueuedMetric = semconv.TrainCollectiveEnqueued

// claim is what a rank says of one of its process groups.
type claim struct {
	job        string
	target     event.Target
	collective job.Collective
}

func collectivesOf(rm pmetric.ResourceMetrics) (claims []claim) {
	res := rm.Resource().Attributes()
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if m.Name() != enqueuedMetric {
				continue
			}
			for _, p := range points(m).All() {
				if p.Flags().NoRecordedValue() {
					continue
				}
				n := int64(-1)
				if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
					n = p.IntValue()
				}
				a := both{p.Attributes(), res}
				s := stepOf(a, p.Timestamp().AsTime())
				claims = append(claims, claim{s.Job, s.Target, job.Collective{
					Group: short(a, semconv.ProcessGroupName), Op: short(a, semconv.CollectiveOp), Enqueued: n,
				}})
			}
		}
	}
	return claims
}
