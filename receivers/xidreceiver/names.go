package xidreceiver

import "github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"

// eventPrefix and an event's kind make its EventName, such as pitcrew.kernel.xid.
const (
	eventPrefix    = "pitcrew.kernel."
	eventLinesLost = eventPrefix + "lines_lost"
	eventLog       = eventPrefix + "log"
)

// Attributes of the log records; metadata.yaml describes them.
const (
	attrCode        = "pitcrew.xid.code"
	attrName        = "pitcrew.xid.name"
	attrKnown       = "pitcrew.xid.known"
	attrAction      = "pitcrew.xid.action"
	attrClears      = "pitcrew.xid.clears"
	attrCausedBy    = "pitcrew.xid.caused_by"
	attrPCI         = "hw.pci"
	attrHardwareID  = "hw.id"
	attrMIG         = "pitcrew.mig"
	attrPID         = "process.pid"
	attrProcess     = "process.executable.name"
	attrPodUID      = "k8s.pod.uid"
	attrContainerID = "container.id"
	attrFatal       = "pitcrew.fatal"
	attrSeverity    = "pitcrew.severity"
	attrAdvice      = "pitcrew.advice"
	attrUnit        = "pitcrew.nvlink.unit"
	attrLink        = "pitcrew.nvlink.link"
	attrInvestigate = "pitcrew.nvlink.investigate"
	attrDetail      = "pitcrew.kernel.detail"
	attrEcho        = "pitcrew.burst.echo"
	attrCause       = "pitcrew.burst.cause"
	attrCount       = "pitcrew.count"
	attrBootID      = "pitcrew.boot_id"
	attrSeq         = "pitcrew.kmsg.seq"
	attrHistory     = "pitcrew.history"
	attrReason      = "pitcrew.lost.reason"
	attrReadable    = "pitcrew.kernel.log.readable"
)

// Resource attributes.
const (
	resCluster = "k8s.cluster.name"
	resNode    = "k8s.node.name"
	resBootID  = "host.boot.id"
)

// The receiver's own metrics.
const (
	metricLines     = "pitcrew.kernel.lines"
	metricLost      = "pitcrew.kernel.lines.lost"
	metricMalformed = "pitcrew.kernel.lines.malformed"
	metricClipped   = "pitcrew.kernel.lines.clipped"
	metricForged    = "pitcrew.kernel.lines.forged"
	metricEvents    = "pitcrew.kernel.events"
	metricReopened  = "pitcrew.kernel.log.reopened"
	metricRefused   = "pitcrew.kernel.records.refused"
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
