package torchreceiver

import (
	"context"
	"fmt"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

// overBudget is the metric of what pods did beyond their budgets. Its series end with their pod.
var overBudget = about{semconv.TrainOverBudget, "{excess}", "What a pod did beyond one of its budgets; it was dropped or left unread", counter}

// excessEvery is the time between two reports as metrics. It is shorter than the exporter keeps a series that is not renewed.
const excessEvery = 10 * time.Second

// overBudget names a pod and the budget that it exceeded. The fleet reports each pair at most once a minute.
func (r *torchReceiver) overBudget(ctx context.Context, e hook.Event) {
	name, total := string(e.Excess.Resource), int64(min(e.Excess.Total, math.MaxInt64))
	r.log.Warn("a pod exceeds its budget; the excess is dropped", zap.String(semconv.K8sPodUID, e.PodUID), zap.String("budget", name), zap.Int64("excess", total))
	body := fmt.Sprintf("pod %s exceeds its budget of %s", e.PodUID, name)
	r.emit(ctx, semconv.EventTrainOverBudget, plog.SeverityNumberWarn, time.Now(), body, func(a pcommon.Map) {
		a.PutStr(semconv.K8sPodUID, e.PodUID)
		a.PutStr(semconv.Budget, name)
		a.PutInt(semconv.Excess, total)
	})
}

// excesses adds the counts of each pod and budget, now and then.
func (r *torchReceiver) excesses(b *batch, pods []*hook.Pod) {
	if b.now.Sub(r.reported) < excessEvery {
		return
	}
	r.reported = b.now
	for _, pod := range pods {
		for _, x := range pod.Excesses() {
			p := b.group("").point(&overBudget)
			p.SetTimestamp(pcommon.NewTimestampFromTime(b.now))
			p.SetIntValue(int64(min(x.Total, math.MaxInt64)))
			p.Attributes().PutStr(semconv.K8sPodUID, pod.UID())
			p.Attributes().PutStr(semconv.Budget, string(x.Resource))
		}
	}
}
