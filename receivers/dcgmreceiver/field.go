package dcgmreceiver

import "time"

// Kind is what a value is over time.
type Kind int

const (
	Gauge   Kind = iota // a value of now
	Counter             // only rises; a fall is a reset
	UpDown              // a sum that rises and falls (memory in use)
	Flags               // a bit mask, decoded into one series per bit with value 0 or 1
)

func (k Kind) String() string { return [...]string{"gauge", "counter", "updown", "flags"}[k] }

// Level is the entity a field is read from.
type Level int

const (
	GPULevel Level = iota
	NodeLevel
	LinkLevel       // one NVLink of a GPU
	InstanceLevel   // a MIG GPU instance; its fields are the GPU's
	SwitchLevel     // an NVSwitch
	SwitchLinkLevel // one NVLink of an NVSwitch
)

// Cost is what reading a field takes of the driver.
type Cost string

const (
	Cheap     Cost = "cheap"
	Event     Cost = "event"     // kept by the engine when it happens: reading costs nothing
	Link      Cost = "link"      // one reading for each NVLink
	Profiling Cost = "profiling" // GPM on Hopper and later; the profiling module, with its exclusivity, before
)

// Fast is the interval of the fields that tell of faults: they are read at the receiver's interval.
const Fast time.Duration = 0

// Field is one row of the table: a DCGM field and what it is called here.
type Field struct {
	ID       uint16        // DCGM's field id, the key: names changed in DCGM 4.6
	Name     string        // OpenTelemetry metric
	Attr     Attr          // tells the rows of one metric apart
	DCGM     string        // DCGM's name since 4.6
	Exporter string        // the name dcgm-exporter's users know, where it differs
	Unit     string        // UCUM, of the value after scaling
	Kind     Kind          //
	Scale    float64       // factor from DCGM's unit to Unit; 1 keeps integers integers
	Interval time.Duration // how often DCGM is to sample it; Fast for the receiver's interval
	Cost     Cost          //
	Level    Level         //
	Optional bool          // read only when extra_fields names it
	Desc     string        //
}

// Attr is a metric attribute with a fixed value.
type Attr struct{ Key, Value string }

// PrometheusName is the DCGM_FI_* name that dashboards made for dcgm-exporter use for this field.
func (f Field) PrometheusName() string {
	if f.Exporter != "" {
		return f.Exporter
	}
	return f.DCGM
}

// PrometheusName returns the DCGM_FI_* name of an OpenTelemetry metric of this receiver. Where several fields share a metric, the
// value of the attribute that tells them apart is needed, as in PrometheusName("hw.errors", "corrected").
func PrometheusName(metric string, attr ...string) (string, bool) {
	for _, f := range Fields {
		if f.Name != metric || f.Kind != Flags && f.Attr.Value != "" && (len(attr) != 1 || attr[0] != f.Attr.Value) {
			continue
		}
		return f.PrometheusName(), true
	}
	return "", false
}

// FieldByID returns the table's row of a field.
func FieldByID(id uint16) (Field, bool) {
	f, ok := byID[id]
	return f, ok
}

var byID = func() map[uint16]Field {
	m := make(map[uint16]Field, len(Fields))
	for _, f := range Fields {
		m[f.ID] = f
	}
	return m
}()

// every is how often the field is read when the receiver's intervals go from base to most.
func (f Field) every(base, most time.Duration) time.Duration {
	return max(base, min(f.Interval, most))
}

// clockReason is one bit of DCGM's clocks event reasons (DCGM_CLOCKS_EVENT_REASON_* in dcgm_fields.h).
type clockReason struct {
	bit  int64
	name string
}

var clockReasons = []clockReason{
	{0x1, "gpu_idle"},
	{0x2, "clocks_setting"},
	{0x4, "sw_power_cap"},
	{0x8, "hw_slowdown"},
	{0x10, "sync_boost"},
	{0x20, "sw_thermal"},
	{0x40, "hw_thermal"},
	{0x80, "hw_power_brake"},
	{0x100, "display_clocks"},
}
