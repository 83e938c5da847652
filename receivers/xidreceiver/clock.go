package xidreceiver

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock turns times since boot, as on kernel records, into wall time and back.
type clock struct {
	now  func() time.Time
	boot func() time.Duration // time since boot, by CLOCK_MONOTONIC
	// skew is the log's clock less ours: printk's clock drifts over months, and
	// a log that is not this machine's has a clock of its own.
	skew time.Duration
}

func systemClock() clock {
	return clock{now: time.Now, boot: func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return 0
		}
		return time.Duration(ts.Nano())
	}}
}

// tolerance is how far a live record's time may be from ours before the skew is
// set anew: reading lags by less, drift that matters is more.
const tolerance = 2 * time.Second

// sinceBoot is the present time on the log's clock.
func (c *clock) sinceBoot() time.Duration { return c.boot() + c.skew }

// saw learns from a record that was read as it happened.
func (c *clock) saw(at time.Duration) {
	if d := at - c.sinceBoot(); d > tolerance || d < -tolerance {
		c.skew += d
	}
}

// wall is when a record was written; never later than now.
func (c *clock) wall(at time.Duration) time.Time {
	return c.now().Add(-max(0, c.sinceBoot()-at))
}
