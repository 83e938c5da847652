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
)

// overBudget is the metric of what pods did beyond their budgets. Its series end with their pod.
var overBudget = about{"pitcrew.train.over_budget", "{excess}", "What a pod did beyond one of its budgets; it was dropped or left unread", counter}

// excessEvery is the time between two reports as metrics. It is shorter than the exporter keeps a series that is not renewed.
const excessEvery = 10 * time.Second

// overBudget names a pod and the budget that it exceeded. The fleet reports each pair at most once a minute.
func (r *torchReceiver) overBudget(ctx context.Context, e hook.Event) {
	name, total := string(e.Excess.Resource), int64(min(e.Excess.Total, math.MaxInt64))
	r.log.Warn("a pod exceeds its budget; the excess is dropped", zap.String("k8s.pod.uid", e.PodUID), zap.String("budget", name), zap.Int64("excess", total))
	body := fmt.Sprintf("pod %s exceeds its budget of %s", e.PodUID, name)
	r.emit(ctx, EventOverBudget, plog.SeverityNumberWarn, time.Now(), body, func(a pcommon.Map) {
		a.PutStr("k8s.pod.uid", e.PodUID)
		a.PutStr("pitcrew.budget", name)
		a.PutInt("pitcrew.excess", total)
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
			p.Attributes().PutStr("k8s.pod.uid", pod.UID())
			p.Attributes().PutStr("pitcrew.budget", string(x.Resource))
		}
	}
}
