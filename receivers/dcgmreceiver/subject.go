package dcgmreceiver

import (
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/pitcrew/pitcrew/rules"
	"github.com/pitcrew/pitcrew/semconv"
)

// entity is a number of the engine: GPUs, instances and switches are numbered each for themselves.
type entity struct {
	of Level
	id uint
}

// subject is the entity that a value is about; a link's is what it is a link of.
func (v *Value) subject() entity {
	switch v.Of {
	case LinkLevel, NodeLevel:
		return entity{GPULevel, v.ID}
	case SwitchLinkLevel:
		return entity{SwitchLevel, v.ID}
	}
	return entity{v.Of, v.ID}
}

// subject is how an entity is identified, in both spellings.
type subject struct {
	id      string // hw.id
	parent  string // the GPU's, of an instance
	divided bool   // a GPU that has instances
	profile string
	gi      string
	labels  [][2]string // dcgm-exporter's
}

// id is the instance's hw.id.
func (in Instance) id(of Device) string { return of.id() + "/" + strconv.FormatUint(uint64(in.GI), 10) }

// perInstance says whether the field is an instance's own.
func (f Field) perInstance() bool { return slices.Contains(instanceFields, f.ID) }

// know makes the subjects of what is there, where that has changed.
func (b *builder) know(inv Inventory) {
	sameInstance := func(x, y Instance) bool {
		return x.ID == y.ID && x.GPU == y.GPU && x.GI == y.GI && x.Profile == y.Profile
	}
	if b.subjects != nil && slices.Equal(inv.Devices, b.inv.Devices) && slices.Equal(inv.Switches, b.inv.Switches) &&
		slices.EqualFunc(inv.Instances, b.inv.Instances, sameInstance) {
		return
	}
	b.inv, b.subjects = inv, map[entity]*subject{}
	for _, d := range inv.Devices {
		n := strconv.FormatUint(uint64(d.ID), 10)
		b.subjects[entity{GPULevel, d.ID}] = &subject{id: d.id(), labels: [][2]string{
			{"gpu", n}, {"UUID", d.id()}, {"device", "nvidia" + n}, {"modelName", d.Model}, {"Hostname", b.host}, {"pci_bus_id", d.PCI},
		}}
	}
	for _, in := range inv.Instances {
		of := slices.IndexFunc(inv.Devices, func(d Device) bool { return d.ID == in.GPU })
		if of < 0 {
			continue
		}
		d, gi := inv.Devices[of], strconv.FormatUint(uint64(in.GI), 10)
		whole := b.subjects[entity{GPULevel, d.ID}]
		whole.divided = true
		b.subjects[entity{InstanceLevel, in.ID}] = &subject{
			id: in.id(d), parent: d.id(), profile: in.Profile, gi: gi,
			labels: append(slices.Clone(whole.labels), [2]string{"GPU_I_PROFILE", in.Profile}, [2]string{"GPU_I_ID", gi}),
		}
	}
	for _, s := range inv.Switches {
		b.subjects[entity{SwitchLevel, s.ID}] = &subject{id: s.id(), labels: [][2]string{
			{"nvswitch", "nvswitch" + strconv.FormatUint(uint64(s.ID), 10)}, {"Hostname", b.host},
		}}
	}
}

// identify puts on a point what it is about.
func (s *subject) identify(a pcommon.Map, r *row, v *Value) {
	a.PutStr(semconv.HWID, s.id)
	if s.parent != "" {
		a.PutStr(semconv.HWParent, s.parent)
		a.PutStr(semconv.MIG, s.gi)
		a.PutStr(semconv.MIGProfile, s.profile)
	}
	if strings.HasPrefix(r.Name, "hw.") {
		a.PutStr(semconv.HWType, "gpu")
	}
	if v.Link >= 0 {
		a.PutInt(semconv.NVLinkLink, int64(v.Link))
	}
}

// dcgm appends the value as dcgm-exporter would: its name, its unit, its labels. A GPU in MIG mode has what is divided among its
// instances as theirs alone, or a sum would count it twice.
func (b *builder) dcgm(t *batch, r *row, s *subject, v *Value, at pcommon.Timestamp) {
	if r.ID == fieldXID {
		if was, told := b.xids[s.id]; told && was != v.I {
			ended := metric(t.dcgm, r.PrometheusName(), "", r.Desc, Gauge).AppendEmpty() // one of its own: an exporter may leave off what follows it
			ended.SetTimestamp(at)
			ended.SetFlags(ended.Flags().WithNoRecordedValue(true))
			s.label(ended.Attributes(), v, was)
		}
		b.xids[s.id] = v.I
	}
	p := t.name(r, at)
	if v.Float {
		p.SetDoubleValue(v.F)
	} else {
		p.SetIntValue(v.I)
	}
	if r.ID == fieldXID {
		s.label(p.Attributes(), v, v.I)
	} else {
		s.label(p.Attributes(), v, -1)
	}
}

const fieldXID = 230

// label puts dcgm-exporter's labels on a point, those of an Xid where code is not negative.
func (s *subject) label(a pcommon.Map, v *Value, code int64) {
	a.EnsureCapacity(len(s.labels) + 2)
	for _, l := range s.labels {
		a.PutStr(l[0], l[1])
	}
	if v.Link >= 0 {
		a.PutStr("nvlink", strconv.Itoa(v.Link))
	}
	if code >= 0 {
		a.PutStr("err_code", strconv.FormatInt(code, 10))
		a.PutStr("err_msg", xidText(code))
	}
}

// xidText is the catalogue's name of an Xid; the catalogue is read when there is one.
func xidText(code int64) string {
	if code == 0 {
		return "No Error"
	}
	t, err := rules.Builtin()
	if err != nil {
		return "Unknown Error"
	}
	if x := t.XID(int(code)); x.Known && x.Name != "" {
		return strings.ReplaceAll(x.Name, "_", " ")
	}
	return "Unknown Error"
}
