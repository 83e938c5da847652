package torchreceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

// info says what a rank runs. By its attributes runs of one workload are known as such.
var info = about{semconv.TrainInfo, "1", "Always 1; its attributes say what the rank runs", integer}

func (b *batch) info(c *cursor, s *hook.Snapshot) {
	a := b.put(&info, c, s, pcommon.NewTimestampFromTime(b.now), 1).Attributes()
	if s.Workload != "" {
		a.PutStr(semconv.Workload, s.Workload)
	}
	if s.Torch != "" {
		a.PutStr(semconv.Framework, "torch "+s.Torch)
	}
}
