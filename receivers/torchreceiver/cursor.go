package torchreceiver

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

const (
	// sayAtLeast is how often everything of a rank is said again, news or not: who joins late is not to wait for long.
	sayAtLeast = time.Second
	// standsFor is the age of a step or a heartbeat from which each look is news: the detector's shortest limits are a second and more.
	standsFor = 300 * time.Millisecond
)

// cursor is what has been told of a ring so far, and what all points of its rank bear. The zero value is of a ring that was never seen.
type cursor struct {
	identity pcommon.Map

	pace, detail uint64 // records
	section      hook.Section
	alive        time.Time // when its life was told last
	checkpoint   uint64
	stated       time.Time // when its state was told last
	looked       time.Time // when the ring was read last
}

// meet makes the attributes of a ring at its first sight; what they say does not change while the ring is open.
func (c *cursor) meet(pod string, s *hook.Snapshot) {
	id := s.Identity
	id.PID = 0 // changes nothing but the number of series
	c.identity = pcommon.NewMap()
	putIdentity(c.identity, pod, id, s.GPUUUID)
	if s.Role != "" {
		c.identity.PutStr(semconv.Role, s.Role)
	}
}

// lifeDue says whether section and ages are news: a step has ended, the section is another one, or the rank stands.
func (c *cursor) lifeDue(s *hook.Snapshot, now time.Time) bool {
	return s.Written > c.pace || s.Section != c.section || s.StepAge() >= standsFor || s.HeartbeatAge() >= standsFor || now.Sub(c.alive) >= sayAtLeast
}

// stateDue says whether checkpoints, memory and the like are to be told: once a second, and a new checkpoint at once.
func (c *cursor) stateDue(s *hook.Snapshot, now time.Time) bool {
	return s.CkptStep != c.checkpoint || now.Sub(c.stated) >= sayAtLeast
}
