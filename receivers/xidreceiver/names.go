package xidreceiver

import "github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"

// eventPrefix and an event's kind make its EventName, such as pitcrew.kernel.xid.
const (
	eventPrefix    = "pitcrew.kernel."
	eventLinesLost = eventPrefix + "lines_lost"
	eventLog       = eventPrefix + "log"
)

// Reasons for which lines are lost.
const (
	lostGap         = "gap"
	lostOverrun     = "overrun"
	lostBeforeStart = "before_start"
)

// eventNames are all event names that the receiver emits.
func eventNames() []string {
	names := []string{eventLinesLost, eventLog}
	for _, k := range kernel.Kinds {
		names = append(names, eventPrefix+string(k))
	}
	return names
}
