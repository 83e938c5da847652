package fabricreceiver

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs/sysfs"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/semconv"
)

const scope = "github.com/pitcrew/pitcrew/receivers/fabricreceiver"

// row is a value of a port.
type row struct {
	metric, unit, about string
	sum                 bool   // a counter of the adapter's, since the driver was loaded
	key, value          string // tells the series of one metric apart
	read                func(*sysfs.InfiniBandPort) *uint64
}

func errorRow(kind string, read func(*sysfs.InfiniBandPort) *uint64) row {
	return row{semconv.FabricErrors, "{error}", "Errors that a port's own counters have, by the counter", true, semconv.ErrorType, kind, read}
}

func congestionRow(kind string, read func(*sysfs.InfiniBandPort) *uint64) row {
	return row{semconv.FabricCongestion, "{signal}", "Signs of congestion that a port's own counters have, by the counter", true, semconv.FabricSignal, kind, read}
}

// rows are the values, in the order in which they are sent. Counters that an adapter does not have give no point.
var rows = []row{
	{semconv.HWNetworkUp, "1", "1 while the port is ACTIVE", false, "", "", func(p *sysfs.InfiniBandPort) *uint64 {
		up := uint64(0)
		if p.State == active {
			up = 1
		}
		return &up
	}},
	{semconv.HWNetworkBandwidthLimit, "By/s", "Rate at which the link was set up", false, "", "", func(p *sysfs.InfiniBandPort) *uint64 { return &p.Rate }},
	{semconv.HWNetworkIO, "By", "Bytes sent and received", true, semconv.NetworkIODirection, "transmit", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortXmitData }},
	{semconv.HWNetworkIO, "By", "Bytes sent and received", true, semconv.NetworkIODirection, "receive", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortRcvData }},
	{semconv.HWNetworkPackets, "{packet}", "Packets sent and received", true, semconv.NetworkIODirection, "transmit", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortXmitPackets }},
	{semconv.HWNetworkPackets, "{packet}", "Packets sent and received", true, semconv.NetworkIODirection, "receive", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortRcvPackets }},
	{semconv.FabricLinkDowns, "{transition}", "How often the link went down since the driver was loaded", true, "", "", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.LinkDowned }},

	errorRow("symbol_error", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.SymbolError }),
	errorRow("link_error_recovery", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.LinkErrorRecovery }),
	errorRow("local_link_integrity", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.LocalLinkIntegrityErrors }),
	errorRow("excessive_buffer_overrun", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.ExcessiveBufferOverrunErrors }),
	errorRow("receive", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortRcvErrors }),
	errorRow("receive_remote_physical", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortRcvRemotePhysicalErrors }),
	errorRow("receive_switch_relay", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortRcvSwitchRelayErrors }),
	errorRow("transmit_discard", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortXmitDiscards }),
	errorRow("vl15_dropped", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.VL15Dropped }),
	errorRow("out_of_sequence", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.OutOfSequence }),
	errorRow("packet_sequence", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.PacketSeqErr }),
	errorRow("local_ack_timeout", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.LocalAckTimeoutErr }),
	errorRow("rnr_nak_retry", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.RnrNakRetryErr }),
	errorRow("request_cqe", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.ReqCqeError }),
	errorRow("response_cqe", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.RespCqeError }),
	errorRow("out_of_buffer", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.OutOfBuffer }),
	errorRow("adaptive_retransmission", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.RoceAdpRetrans }),

	congestionRow("transmit_wait", func(p *sysfs.InfiniBandPort) *uint64 { return p.Counters.PortXmitWait }),
	congestionRow("cnp_sent", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.NpCnpSent }),
	congestionRow("cnp_handled", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.RpCnpHandled }),
	congestionRow("ecn_marked", func(p *sysfs.InfiniBandPort) *uint64 { return p.HwCounters.NpEcnMarkedRocePackets }),
}

// identify puts on a point which port it is about.
func (a *adapter) identify(to pcommon.Map, n string, layer string) {
	to.PutStr(semconv.HWID, a.name+"/"+n)
	to.PutStr(semconv.HWName, a.name)
	to.PutStr(semconv.HWType, "network")
	for _, kv := range [][2]string{{semconv.FabricLayer, layer}, {semconv.HWPCI, a.pci}} {
		if kv[1] != "" {
			to.PutStr(kv[0], kv[1])
		}
	}
}

// metricsOf turns a reading of an adapter into metrics. A counter that falls was reset with its driver; its start is then unknown, and left out.
func (r *fabricReceiver) metricsOf(a *adapter, d *sysfs.InfiniBandDevice, now time.Time) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	r.resource(rm.Resource())
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(scope)
	at := pcommon.NewTimestampFromTime(now)
	made := map[string]pmetric.NumberDataPointSlice{}
	for n, p := range d.Ports {
		for i := range rows {
			row := &rows[i]
			v := row.read(&p)
			if v == nil || *v > 1<<63-1 {
				continue
			}
			points, ok := made[row.metric]
			if !ok {
				points = row.begin(sm)
				made[row.metric] = points
			}
			q := points.AppendEmpty()
			q.SetTimestamp(at)
			q.SetIntValue(int64(*v))
			a.identify(q.Attributes(), fmt.Sprint(n), p.LinkLayer)
			if row.key != "" {
				q.Attributes().PutStr(row.key, row.value)
			}
		}
	}
	return md
}

func (r *row) begin(sm pmetric.ScopeMetrics) pmetric.NumberDataPointSlice {
	m := sm.Metrics().AppendEmpty()
	m.SetName(r.metric)
	m.SetUnit(r.unit)
	m.SetDescription(r.about)
	if !r.sum {
		return m.SetEmptyGauge().DataPoints()
	}
	s := m.SetEmptySum()
	s.SetIsMonotonic(true)
	s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	return s.DataPoints()
}
