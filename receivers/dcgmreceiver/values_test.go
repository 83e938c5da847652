//go:build cgo && linux

package dcgmreceiver

import (
	"reflect"
	"testing"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// goDCGM reads as go-dcgm does, with its buffers.
func goDCGM(t *testing.T, entities []dcgm.GroupEntityPair, fields []dcgm.Short, flags uint) (out []Value) {
	t.Helper()
	values, err := dcgm.EntitiesGetLatestValues(entities, fields, flags)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		out = append(out, convert(v.EntityGroupId, v.EntityID, uint16(v.FieldID), v.FieldType, v.Status, v.TS, [8]byte(v.Value[:8])))
	}
	return out
}

func TestValuesAreWhatGoDCGMReads(t *testing.T) {
	cfg, _ := stubNode(t)
	cfg.Mode = ModeEmbedded
	e, _ := stubEngine(t, cfg)
	round := rounds(t, cfg, e)
	round(0, false) // watches
	compared, steady := 0, 0
	for level, entities := range e.watches.of {
		var fields []dcgm.Short
		for _, f := range append(Fields, Field{ID: fieldUUID, Level: GPULevel}, Field{ID: fieldDriver, Level: GPULevel}) { // text has no number
			if f.Level == level {
				fields = append(fields, dcgm.Short(f.ID))
			}
		}
		if len(fields) == 0 {
			continue
		}
		for _, flags := range []uint{0, dcgm.DCGM_FV_FLAG_LIVE_DATA} {
			for range 2 { // what a call left in the buffer is not read by the next
				before := goDCGM(t, entities, fields, flags)
				got, err := e.samples.latest(nil, entities, fields, flags)
				if err != nil {
					t.Fatal(err)
				}
				after := goDCGM(t, entities, fields, flags)
				if len(got) != len(after) {
					t.Fatalf("level %v, flags %d: %d values, go-dcgm has %d", level, flags, len(got), len(after))
				}
				for i := range got {
					if before[i].Time != after[i].Time { // read now and not sampled: a counter goes on
						got[i].Time, got[i].I, got[i].F = after[i].Time, after[i].I, after[i].F
					} else {
						steady++
					}
					if !reflect.DeepEqual(got[i], after[i]) {
						t.Fatalf("level %v, flags %d: %+v, go-dcgm has %+v", level, flags, got[i], after[i])
					}
				}
				compared += len(got)
			}
		}
	}
	if compared < 1000 || steady < 100 {
		t.Errorf("only %d values were compared, %d of them with their numbers", compared, steady)
	}
}

func TestAReadThatFailsSaysWhatGoDCGMSays(t *testing.T) {
	cfg, _ := stubNode(t)
	cfg.Mode = ModeEmbedded
	e, _ := stubEngine(t, cfg)
	nobody := []dcgm.GroupEntityPair{{EntityGroupId: dcgm.FE_GPU, EntityId: 4711}}
	_, want := dcgm.EntitiesGetLatestValues(nobody, []dcgm.Short{150}, 0)
	_, got := e.samples.latest(nil, nobody, []dcgm.Short{150}, 0)
	if (want == nil) != (got == nil) || want != nil && got.Error() != classify(want).Error() {
		t.Errorf("said %v, go-dcgm %v", got, want)
	}
}

func TestReadingTakesNoBufferAValue(t *testing.T) {
	cfg, _ := stubNode(t)
	cfg.Mode = ModeEmbedded
	e, _ := stubEngine(t, cfg)
	round := rounds(t, cfg, e)
	round(0, false)
	var fields []dcgm.Short
	for _, f := range Fields {
		if f.Level == GPULevel {
			fields = append(fields, dcgm.Short(f.ID))
		}
	}
	values := make([]Value, 0, 4096)
	entities := e.watches.of[GPULevel][:1]
	if n := testing.AllocsPerRun(100, func() {
		var err error
		if _, err = e.samples.latest(values, entities, fields, 0); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%.0f allocations for %d values", n, len(fields))
	}
}
