//go:build cgo && linux

package dcgmreceiver

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>

// As dcgm_structs.h of DCGM 4 has them; the same since DCGM 1.5.
typedef struct { unsigned int group, id; } pair;
typedef struct {
	unsigned int version, group, id;
	unsigned short field, type;
	int status;
	unsigned int unused;
	int64_t ts;
	union { int64_t i64; double dbl; char blob[4096]; } value;
} sample;

typedef int (*read_samples)(uintptr_t handle, pair *entities, unsigned int n, unsigned short *fields, unsigned int m, unsigned int flags, sample *out);

static int read_latest(void *f, uintptr_t handle, pair *entities, unsigned int n, unsigned short *fields, unsigned int m, unsigned int flags, sample *out)
{
	return ((read_samples)f)(handle, entities, n, fields, m, flags, out);
}
*/
import "C"

import (
	"time"
	"unsafe"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// connection is go-dcgm's handle of its one connection, which it does not export. go-dcgm gives each value a buffer of 4 KiB on the Go heap,
// twice; at 600 values a second collecting them was more than half of what the DCGM process took. If go-dcgm renames the variable, the program
// does not link.
//
//go:linkname connection github.com/NVIDIA/go-dcgm/pkg/dcgm.handle
var connection uintptr

// samples is the memory that the library writes values to, reused by each call. It belongs to the worker's goroutine.
type samples struct {
	read   unsafe.Pointer // dcgmEntitiesGetLatestValues
	out    []C.sample
	pairs  []C.pair
	fields []C.ushort
}

// latest appends the newest values of the fields of the entities, as dcgm.EntitiesGetLatestValues returns them.
func (s *samples) latest(to []Value, entities []dcgm.GroupEntityPair, fields []dcgm.Short, flags uint) ([]Value, error) {
	if s.read == nil {
		s.read = symbol("dcgmEntitiesGetLatestValues")
	}
	n := len(entities) * len(fields)
	if n == 0 {
		return to, nil
	}
	if cap(s.out) < n {
		s.out = make([]C.sample, n)
	}
	out := s.out[:n]
	s.pairs, s.fields = s.pairs[:0], s.fields[:0]
	for _, e := range entities {
		s.pairs = append(s.pairs, C.pair{C.uint(e.EntityGroupId), C.uint(e.EntityId)})
	}
	for _, f := range fields {
		s.fields = append(s.fields, C.ushort(f))
	}
	if s.read == nil || C.read_latest(s.read, C.uintptr_t(connection), &s.pairs[0], C.uint(len(s.pairs)), &s.fields[0], C.uint(len(s.fields)), C.uint(flags), &out[0]) != 0 {
		values, err := dcgm.EntitiesGetLatestValues(entities, fields, flags) // it says why
		if err != nil {
			return to, classify(err)
		}
		for i := range values {
			v := &values[i]
			to = append(to, convert(v.EntityGroupId, v.EntityID, uint16(v.FieldID), v.FieldType, v.Status, v.TS, *(*[8]byte)(v.Value[:8])))
		}
		return to, nil
	}
	for i := range out {
		v := &out[i]
		to = append(to, convert(dcgm.Field_Entity_Group(v.group), uint(v.id), uint16(v.field), uint(v._type), int(v.status), int64(v.ts), *(*[8]byte)(v.value[:8])))
	}
	return to, nil
}

// convert turns what the library says into a value. number is its first eight bytes.
func convert(group dcgm.Field_Entity_Group, id uint, field uint16, kind uint, status int, ts int64, number [8]byte) Value {
	out := Value{ID: id, Link: -1, Field: field, Blank: status != dcgm.DCGM_ST_OK}
	switch group {
	case dcgm.FE_LINK:
		out.Of, out.ID, out.Link = LinkLevel, id>>24&0xff, int(id>>8&0xffff)
		if dcgm.Field_Entity_Group(id&0xff) == dcgm.FE_SWITCH {
			out.Of = SwitchLinkLevel
		}
	case dcgm.FE_GPU_I:
		out.Of = InstanceLevel
	case dcgm.FE_SWITCH:
		out.Of = SwitchLevel
	}
	if ts > 0 {
		out.Time = time.UnixMicro(ts)
	}
	switch kind {
	case dcgm.DCGM_FT_DOUBLE:
		out.Float, out.F = true, *(*float64)(unsafe.Pointer(&number))
		out.Blank = out.Blank || out.F >= blankFP64
	case dcgm.DCGM_FT_INT64, dcgm.DCGM_FT_TIMESTAMP:
		out.I = *(*int64)(unsafe.Pointer(&number))
		out.Blank = out.Blank || out.I >= blankInt64
	default:
		out.Blank = true
	}
	if out.Blank {
		out.F, out.I = 0, 0
	}
	return out
}
