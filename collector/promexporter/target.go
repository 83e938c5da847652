package promexporter

import (
	"hash/maphash"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// targetInfo describes the resource that a job and an instance are.
const (
	targetInfo     = "target_info"
	targetInfoHelp = "Target metadata"
)

type target struct {
	*series
	resource uint64
}

// target serves target_info of a resource that has a job and an instance.
func (s *store) target(res pcommon.Resource, hash uint64, now int64) {
	job, ok := jobOf(res.Attributes())
	if !ok || s.cfg.Families == DCGMFamilies {
		return
	}
	instance, ok := res.Attributes().Get(serviceInstance)
	if !ok {
		return
	}
	key := job + "\xff" + instance.AsString()
	if t := s.targets[key]; t != nil && !t.gone {
		if t.resource == hash {
			t.seen = now
			return
		}
		s.end(t.series) // one for each target
	}
	labels, ok := s.labeler.target(res.Attributes())
	if !ok {
		return
	}
	name := targetInfo
	if s.cfg.Namespace != "" {
		name = s.cfg.Namespace + "_" + name
	}
	f := s.families[name]
	if f == nil {
		f = s.newFamily(name, targetInfoHelp, gauge)
	}
	if f.kind != gauge {
		return
	}
	x := s.add(f, written(labels))
	x.seen = now
	s.set(x, 1, 0)
	s.targets[key] = &target{x, hash}
}

var seed = maphash.MakeSeed()

// hashMap is the same for the same attributes in another order.
func hashMap(a pcommon.Map) (sum uint64) {
	for k, v := range a.All() {
		var h uint64
		switch v.Type() {
		case pcommon.ValueTypeStr:
			h = maphash.String(seed, v.Str())
		case pcommon.ValueTypeInt:
			h = uint64(v.Int())*0x9e3779b97f4a7c15 ^ 0x85ebca6b
		default:
			h = maphash.String(seed, v.AsString())
		}
		sum += maphash.String(seed, k) * (h | 1)
	}
	return sum
}

func hashScope(sm pmetric.ScopeMetrics) uint64 {
	s := sm.Scope()
	return maphash.String(seed, s.Name()) + 31*maphash.String(seed, s.Version()) + 37*maphash.String(seed, sm.SchemaUrl()) + 41*hashMap(s.Attributes())
}
