package torchreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/pitcrew/pitcrew/hook"
)

// info says what a rank runs. By its attributes runs of one workload are known as such.
var info = about{"pitcrew.train.info", "1", "Always 1; its attributes say what the rank runs", integer}

// infoEvery is how often it is said again: who joins late is not to wait for long.
const infoEvery = time.Second

// info says what a rank runs, unless it did so lately, and gives when it was said last.
func (b *batch) info(pod string, s *hook.Snapshot, last time.Time) time.Time {
	if b.now.Sub(last) < infoEvery {
		return last
	}
	a := b.put(&info, pod, s, pcommon.NewTimestampFromTime(b.now), 1).Attributes()
	if s.Workload != "" {
		a.PutStr("pitcrew.workload", s.Workload)
	}
	if s.Torch != "" {
		a.PutStr("pitcrew.framework", "torch "+s.Torch)
	}
	return b.now
}
