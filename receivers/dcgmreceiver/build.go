package dcgmreceiver

import (
	"fmt"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// Metrics that are not fields of DCGM.
const (
	metricStatus   = "pitcrew.gpu.status"
	metricCount    = "pitcrew.gpu.count"
	metricExpected = "pitcrew.gpu.expected"
	metricInfo     = "pitcrew.gpu.info"
	metricHealth   = "pitcrew.gpu.health"
	metricStale    = "pitcrew.dcgm.stale"
)

// own describes them, as Fields does the others.
var own = []Field{
	{Name: metricStatus, Unit: "1", Desc: "1 when the GPU answers, 0 when it is lost"},
	{Name: metricCount, Unit: "{gpu}", Desc: "GPUs that answer", Level: NodeLevel},
	{Name: metricExpected, Unit: "{gpu}", Desc: "GPUs the node should have", Level: NodeLevel},
	{Name: metricInfo, Unit: "1", Desc: "Always 1; its attributes say which card this is"},
	{Name: metricHealth, Unit: "1", Desc: "DCGM's health watches: 0 healthy, 1 warning, 2 failure"},
	{Name: metricStale, Unit: "s", Desc: "Time since the engine last gave a good answer", Level: NodeLevel},
}

// Attributes of points and records.
const (
	attrID     = "hw.id"
	attrType   = "hw.type"
	attrPCI    = "hw.pci"
	attrModel  = "hw.model"
	attrSerial = "hw.serial_number"
	attrDriver = "hw.driver_version"
	attrIndex  = "pitcrew.gpu.index"
	attrSystem = "pitcrew.gpu.health.system"
)

// counterKey tells one counter's series from another.
type counterKey struct {
	id    string
	field uint16
	link  int
}

type counterState struct {
	last  float64
	start time.Time
}

// builder turns rounds into metrics. It remembers where counters started, and nothing else of the past.
type builder struct {
	fields    map[uint16]Field
	dcgmNames bool
	namesGap  time.Duration
	named     map[uint16]time.Time // when a field last came under its DCGM_FI_* name
	host      string
	resource  func(pcommon.Resource)
	counters  map[counterKey]counterState
	ailing    map[[2]string]bool // GPU and health system that had an incident, to be said to be well again
}

func newBuilder(cfg *Config, host string, resource func(pcommon.Resource)) *builder {
	b := &builder{
		fields: map[uint16]Field{}, dcgmNames: cfg.DCGMNames, namesGap: cfg.DCGMNamesInterval, named: map[uint16]time.Time{}, host: host, resource: resource,
		counters: map[counterKey]counterState{}, ailing: map[[2]string]bool{},
	}
	for _, f := range cfg.fields() {
		b.fields[f.ID] = f
	}
	return b
}

// batch is the metrics of one round under construction.
type batch struct {
	at    pcommon.Timestamp
	main  pmetric.MetricSlice
	dcgm  pmetric.MetricSlice
	index map[string]pmetric.Metric // by name, of both scopes: no name is in both
}

func (b *builder) begin(at time.Time) (pmetric.Metrics, *batch) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	b.resource(rm.Resource())
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(ScopeName)
	t := &batch{at: pcommon.NewTimestampFromTime(at), main: sm.Metrics(), index: map[string]pmetric.Metric{}}
	if b.dcgmNames {
		dm := rm.ScopeMetrics().AppendEmpty()
		dm.Scope().SetName(DCGMNamesScope)
		t.dcgm = dm.Metrics()
	}
	return md, t
}

// point appends an empty point to the metric of this row, which is made when it is the first.
func (t *batch) point(f Field, in pmetric.MetricSlice, name string, at pcommon.Timestamp) pmetric.NumberDataPoint {
	m, ok := t.index[name]
	if !ok {
		m = in.AppendEmpty()
		m.SetName(name)
		m.SetUnit(f.Unit)
		m.SetDescription(f.Desc)
		switch f.Kind {
		case Counter, UpDown:
			sum := m.SetEmptySum()
			sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			sum.SetIsMonotonic(f.Kind == Counter)
		default:
			m.SetEmptyGauge()
		}
		t.index[name] = m
	}
	var p pmetric.NumberDataPoint
	if m.Type() == pmetric.MetricTypeSum {
		p = m.Sum().DataPoints().AppendEmpty()
	} else {
		p = m.Gauge().DataPoints().AppendEmpty()
	}
	p.SetTimestamp(at)
	return p
}

var ownByName = func() map[string]Field {
	m := map[string]Field{}
	for _, f := range own {
		m[f.Name] = f
	}
	return m
}()

// own appends a point of a metric that is no field, at the round's time.
func (t *batch) own(name string) pmetric.NumberDataPoint {
	return t.point(ownByName[name], t.main, name, t.at)
}

// fleet says how many GPUs there are and how each is. All points have one time: they are one observation.
func (b *builder) fleet(t *batch, all []presence, answering, expected int) {
	for _, g := range all {
		p := t.own(metricStatus)
		p.Attributes().PutStr(attrID, g.id())
		if pci := g.pci(); pci != "" {
			p.Attributes().PutStr(attrPCI, pci)
		}
		if g.ok {
			p.SetIntValue(1)
		} else {
			p.SetIntValue(0)
		}
	}
	t.own(metricCount).SetIntValue(int64(answering))
	t.own(metricExpected).SetIntValue(int64(expected))
}

func (b *builder) info(t *batch, all []presence) {
	for _, g := range all {
		p := t.own(metricInfo)
		p.SetIntValue(1)
		a := p.Attributes()
		a.PutStr(attrID, g.id())
		a.PutInt(attrIndex, int64(g.ID))
		for _, kv := range [][2]string{{attrPCI, g.pci()}, {attrModel, g.Model}, {attrSerial, g.Serial}, {attrDriver, g.Driver}} {
			if kv[1] != "" {
				a.PutStr(kv[0], kv[1])
			}
		}
	}
}

func (b *builder) stale(t *batch, age time.Duration) {
	t.own(metricStale).SetDoubleValue(max(0, age.Seconds()))
}

// values appends what was read. A blank gives no point.
func (b *builder) values(t *batch, devices []Device, values []Value) {
	byID := make(map[uint]Device, len(devices))
	for _, d := range devices {
		byID[d.ID] = d
	}
	for _, v := range values {
		f, ok := b.fields[v.Field]
		d, there := byID[v.GPU]
		if v.Blank || !ok || !there || v.Float && (math.IsNaN(v.F) || math.IsInf(v.F, 0)) {
			continue
		}
		at := t.at
		if f.Cost != Event && !v.Time.IsZero() { // an event's value is still the last one now
			at = pcommon.NewTimestampFromTime(v.Time)
		}
		if f.Kind == Flags {
			b.flags(t, f, d, v, at)
		} else {
			b.value(t, f, d, v, at)
		}
		if b.dcgmNames && f.Level != NodeLevel && b.nameDue(f.ID, t.at.AsTime()) {
			b.dcgm(t, f, d, v, at)
		}
	}
}

// nameDue says whether the field is due under its DCGM_FI_* name in the round of this time. All cards' values of a round go together.
func (b *builder) nameDue(id uint16, round time.Time) bool {
	last, ok := b.named[id]
	if ok && !last.Equal(round) && round.Sub(last) < b.namesGap*9/10 { // rounds come when they come
		return false
	}
	b.named[id] = round
	return true
}

func (b *builder) value(t *batch, f Field, d Device, v Value, at pcommon.Timestamp) {
	p := t.point(f, t.main, f.Name, at)
	if f.Level != NodeLevel {
		identify(p.Attributes(), f, d, v)
	}
	if f.Attr.Key != "" {
		p.Attributes().PutStr(f.Attr.Key, f.Attr.Value)
	}
	number := v.F
	if !v.Float {
		number = float64(v.I)
	}
	switch {
	case v.Float || f.Scale != math.Trunc(f.Scale):
		p.SetDoubleValue(number * f.Scale)
	default:
		p.SetIntValue(v.I * int64(f.Scale))
	}
	if f.Kind == Counter {
		k := counterKey{d.id(), f.ID, v.Link}
		c, known := b.counters[k]
		if !known || number < c.last { // the driver was loaded anew, or the card was reset
			c.start = at.AsTime()
		}
		c.last = number
		b.counters[k] = c
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(c.start))
	}
}

func (b *builder) flags(t *batch, f Field, d Device, v Value, at pcommon.Timestamp) {
	for _, r := range clockReasons {
		p := t.point(f, t.main, f.Name, at)
		identify(p.Attributes(), f, d, v)
		p.Attributes().PutStr(f.Attr.Key, r.name)
		if v.I&r.bit != 0 {
			p.SetIntValue(1)
		} else {
			p.SetIntValue(0)
		}
	}
}

func identify(a pcommon.Map, f Field, d Device, v Value) {
	a.PutStr(attrID, d.id())
	if len(f.Name) > 3 && f.Name[:3] == "hw." {
		a.PutStr(attrType, "gpu")
	}
	if f.Level == LinkLevel {
		a.PutInt(attrLink, int64(v.Link))
	}
}

// dcgm appends the value as dcgm-exporter would: its name, its unit, its labels. Gauges all, without a unit, since an exporter to
// Prometheus puts _total and units behind other names, and these have to stay as they are.
func (b *builder) dcgm(t *batch, f Field, d Device, v Value, at pcommon.Timestamp) {
	p := t.point(Field{Desc: f.Desc}, t.dcgm, f.PrometheusName(), at)
	if v.Float {
		p.SetDoubleValue(v.F)
	} else {
		p.SetIntValue(v.I)
	}
	a := p.Attributes()
	a.PutStr("gpu", fmt.Sprint(d.ID))
	a.PutStr("UUID", d.id())
	a.PutStr("device", fmt.Sprintf("nvidia%d", d.ID))
	a.PutStr("modelName", d.Model)
	a.PutStr("Hostname", b.host)
	a.PutStr("pci_bus_id", d.PCI)
	if f.Level == LinkLevel {
		a.PutStr("nvlink", fmt.Sprint(v.Link))
	}
}

// health says how each GPU is: the worst of its systems as system "all", each system with an incident, and once more each
// that had one and is well again.
func (b *builder) health(t *batch, devices []Device, incidents []Incident) {
	for _, d := range devices {
		if !d.Answer {
			continue
		}
		worst, systems := int64(0), map[string]int64{}
		for _, in := range incidents {
			if in.GPU != d.ID {
				continue
			}
			level := int64(1)
			if in.Fail {
				level = 2
			}
			worst = max(worst, level)
			systems[in.System] = max(systems[in.System], level)
			b.ailing[[2]string{d.id(), in.System}] = true
		}
		for k := range b.ailing {
			if k[0] != d.id() {
				continue
			}
			if _, still := systems[k[1]]; !still {
				systems[k[1]] = 0
				delete(b.ailing, k)
			}
		}
		systems["all"] = worst
		for system, level := range systems {
			p := t.own(metricHealth)
			p.Attributes().PutStr(attrID, d.id())
			p.Attributes().PutStr(attrSystem, system)
			p.SetIntValue(level)
		}
	}
}

// forget drops what is remembered of cards that are not in the fleet any more.
func (b *builder) forget(all []presence) {
	here := map[string]bool{}
	for _, g := range all {
		here[g.id()] = true
	}
	for k := range b.counters {
		if !here[k.id] {
			delete(b.counters, k)
		}
	}
	for k := range b.ailing {
		if !here[k[0]] {
			delete(b.ailing, k)
		}
	}
}
