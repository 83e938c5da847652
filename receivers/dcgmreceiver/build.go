package dcgmreceiver

import (
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/semconv"
)

// own describes them, as Fields does the others.
var own = []Field{
	{Name: semconv.GPUStatus, Unit: "1", Desc: "1 when the GPU answers, 0 when it is lost"},
	{Name: semconv.GPUCount, Unit: "{gpu}", Desc: "GPUs that answer", Level: NodeLevel},
	{Name: semconv.GPUExpected, Unit: "{gpu}", Desc: "GPUs the node should have", Level: NodeLevel},
	{Name: semconv.GPUInfo, Unit: "1", Desc: "Always 1; its attributes say which card this is"},
	{Name: semconv.GPUMIGInfo, Unit: "1", Desc: "Always 1, for each MIG compute instance; its attributes say which it is"},
	{Name: semconv.GPUTopology, Unit: "1", Desc: "Always 1, for each pair of GPUs; its attributes say how they reach each other"},
	{Name: semconv.GPUHealth, Unit: "1", Desc: "DCGM's health watches: 0 healthy, 1 warning, 2 failure"},
	{Name: semconv.DCGMStale, Unit: "s", Desc: "Time since the engine last gave a good answer", Level: NodeLevel},
	{Name: semconv.NVSwitchStatus, Unit: "1", Desc: "1 while the engine lists the NVSwitch, 0 when it did and does no longer"},
	{Name: semconv.NVLinkLinks, Unit: "{link}", Desc: "NVLinks of the GPU or NVSwitch in the state"},
	{Name: semconv.NVLinkTransitions, Unit: "{transition}", Desc: "Changes of state of the NVLinks of the GPU or NVSwitch that were seen", Kind: Counter},
}

// counterKey tells one counter's series from another.
type counterKey struct {
	id    string
	field uint16
	link  int
}

type counterState struct {
	last  float64
	start pcommon.Timestamp
}

// row is a row of the table with the places of its two metrics in a batch.
type row struct {
	Field
	main, named int
}

// builder turns rounds into metrics. It remembers where counters started and links stood, and nothing else of the past.
type builder struct {
	rows      map[uint16]*row
	places    int
	ownPlace  map[string]int
	dcgmNames bool
	namesGap  time.Duration
	named     map[uint16]time.Time // when a field last came under its DCGM_FI_* name
	host      string
	resource  func(pcommon.Resource)
	counters  map[counterKey]counterState
	ailing    map[[2]string]bool // GPU or switch and health system that had an incident, to be said to be well again
	inv       Inventory
	subjects  map[entity]*subject // of inv
	switches  map[string]Switch   // seen, by hw.id
	linkWas   map[linkKey]string
	changes   map[string]int64 // of links' states, by hw.id
	began     pcommon.Timestamp
	xids      map[string]int64 // the code last told under its DCGM_FI_* name
}

func newBuilder(cfg *Config, host string, resource func(pcommon.Resource)) *builder {
	b := &builder{
		rows: map[uint16]*row{}, ownPlace: map[string]int{}, dcgmNames: cfg.DCGMNames, namesGap: cfg.DCGMNamesInterval, named: map[uint16]time.Time{},
		host: host, resource: resource, counters: map[counterKey]counterState{}, ailing: map[[2]string]bool{}, switches: map[string]Switch{},
		linkWas: map[linkKey]string{}, changes: map[string]int64{}, xids: map[string]int64{},
	}
	places := map[string]int{}
	place := func(name string) int {
		if _, known := places[name]; !known {
			places[name] = len(places)
		}
		return places[name]
	}
	for _, f := range own {
		b.ownPlace[f.Name] = place(f.Name)
	}
	for _, f := range cfg.fields() {
		b.rows[f.ID] = &row{f, place(f.Name), place(f.PrometheusName())}
	}
	b.places = len(places)
	return b
}

// batch is the metrics of one round under construction.
type batch struct {
	at     pcommon.Timestamp
	main   pmetric.MetricSlice
	dcgm   pmetric.MetricSlice
	points []pmetric.NumberDataPointSlice // by place
	place  map[string]int                 // of own metrics
	expect int                            // points of a metric
}

func (b *builder) begin(at time.Time) (pmetric.Metrics, *batch) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	b.resource(rm.Resource())
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(ScopeName)
	t := &batch{
		at: pcommon.NewTimestampFromTime(at), main: sm.Metrics(), points: make([]pmetric.NumberDataPointSlice, b.places), place: b.ownPlace,
		expect: max(1, len(b.inv.Devices)),
	}
	t.main.EnsureCapacity(b.places / 2)
	if b.began == 0 {
		b.began = t.at
	}
	if b.dcgmNames {
		dm := rm.ScopeMetrics().AppendEmpty()
		dm.Scope().SetName(DCGMNamesScope)
		t.dcgm = dm.Metrics()
	}
	return md, t
}

// metric makes an empty metric of a kind and returns where its points go.
func metric(in pmetric.MetricSlice, name, unit, desc string, kind Kind) pmetric.NumberDataPointSlice {
	m := in.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	m.SetDescription(desc)
	if kind != Counter && kind != UpDown {
		return m.SetEmptyGauge().DataPoints()
	}
	sum := m.SetEmptySum()
	sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	sum.SetIsMonotonic(kind == Counter)
	return sum.DataPoints()
}

// value appends an empty point to the row's metric, which is made when it is the first.
func (t *batch) value(r *row, at pcommon.Timestamp) pmetric.NumberDataPoint {
	ps := &t.points[r.main]
	if *ps == (pmetric.NumberDataPointSlice{}) {
		*ps = metric(t.main, r.Name, r.Unit, r.Desc, r.Kind)
		ps.EnsureCapacity(t.expect)
	}
	p := ps.AppendEmpty()
	p.SetTimestamp(at)
	return p
}

// name does the same under the row's DCGM_FI_* name: gauges all, without a unit, since an exporter to Prometheus puts _total and units
// behind other names, and these have to stay as they are.
func (t *batch) name(r *row, at pcommon.Timestamp) pmetric.NumberDataPoint {
	ps := &t.points[r.named]
	if *ps == (pmetric.NumberDataPointSlice{}) {
		*ps = metric(t.dcgm, r.PrometheusName(), "", r.Desc, Gauge)
		ps.EnsureCapacity(t.expect)
	}
	p := ps.AppendEmpty()
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
	ps := &t.points[t.place[name]]
	if *ps == (pmetric.NumberDataPointSlice{}) {
		f := ownByName[name]
		*ps = metric(t.main, name, f.Unit, f.Desc, f.Kind)
	}
	p := ps.AppendEmpty()
	p.SetTimestamp(t.at)
	return p
}

// values appends what was read. A blank gives no point.
func (b *builder) values(t *batch, inv Inventory, values []Value) {
	b.know(inv)
	for i := range values {
		v := &values[i]
		r, s := b.rows[v.Field], b.subjects[v.subject()]
		if v.Blank || r == nil || s == nil || v.Float && (math.IsNaN(v.F) || math.IsInf(v.F, 0)) {
			continue
		}
		at := t.at
		if r.Cost != Event && !v.Time.IsZero() { // an event's value is still the last one now
			at = pcommon.NewTimestampFromTime(v.Time)
		}
		if r.Kind == Flags {
			b.flags(t, r, s, v, at)
		} else {
			b.value(t, r, s, v, at)
		}
		if b.dcgmNames && r.Level != NodeLevel && !(s.divided && v.Of == GPULevel && r.perInstance()) && b.nameDue(r.ID, t.at.AsTime()) {
			b.dcgm(t, r, s, v, at)
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

func (b *builder) value(t *batch, r *row, s *subject, v *Value, at pcommon.Timestamp) {
	p := t.value(r, at)
	a := p.Attributes()
	if r.Level != NodeLevel {
		a.EnsureCapacity(4)
		s.identify(a, r, v)
	}
	if r.Attr.Key != "" {
		a.PutStr(r.Attr.Key, r.Attr.Value)
	}
	number := v.F
	if !v.Float {
		number = float64(v.I)
	}
	switch {
	case v.Float || r.Scale != math.Trunc(r.Scale):
		p.SetDoubleValue(number * r.Scale)
	default:
		p.SetIntValue(v.I * int64(r.Scale))
	}
	if r.Kind == Counter {
		k := counterKey{s.id, r.ID, v.Link}
		c, known := b.counters[k]
		if !known || number < c.last { // the driver was loaded anew, or the card was reset
			c.start = at
		}
		c.last = number
		b.counters[k] = c
		p.SetStartTimestamp(c.start)
	}
}

func (b *builder) flags(t *batch, r *row, s *subject, v *Value, at pcommon.Timestamp) {
	for _, reason := range clockReasons {
		p := t.value(r, at)
		a := p.Attributes()
		a.EnsureCapacity(2)
		s.identify(a, r, v)
		a.PutStr(r.Attr.Key, reason.name)
		if v.I&reason.bit != 0 {
			p.SetIntValue(1)
		} else {
			p.SetIntValue(0)
		}
	}
}

// forget drops what is remembered of cards that are not in the fleet any more, and of instances that are not cut any more.
func (b *builder) forget(all []presence, inv Inventory) {
	here := map[string]bool{}
	for _, g := range all {
		here[g.id()] = true
	}
	for _, in := range inv.Instances {
		for _, g := range all {
			if g.ID == in.GPU {
				here[in.id(g.Device)] = true
			}
		}
	}
	for id := range b.switches {
		here[id] = true
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
	for k := range b.linkWas {
		if !here[k.id] {
			delete(b.linkWas, k)
		}
	}
	for id := range b.changes {
		if !here[id] {
			delete(b.changes, id)
		}
	}
	for id := range b.xids {
		if !here[id] {
			delete(b.xids, id)
		}
	}
}
