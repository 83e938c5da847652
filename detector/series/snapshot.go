package series

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"unsafe"

	"github.com/pitcrew/pitcrew/detector/durable"
)

// A snapshot is a header, the states, the contexts, the open findings, and a CRC-32C of all before it. It is read back only by
// the same layout: it exists to survive a restart, not to be exchanged.
const (
	snapshotMagic   = "PCREWSER"
	snapshotVersion = 4
	snapshotBefore  = 3 // knew no direction: its series are bad on both sides, until SetBad
)

type snapshotHeader struct {
	Magic                               [8]byte
	Version, StateSize, ContextSize     uint32
	Order                               uint32 // reads back only on the byte order that wrote it
	States, Contexts, Findings          uint32
	Asked                               float64
	Facility                            uint32
	NotUsed                             uint32
	Samples, Unknown, NotANumber, Late  int64
	Gaps, Resets, Evicted, FindingsSeen int64
}

type snapshotFinding struct {
	Series, Phase, Workload, What, Severity, State uint32
	Joins, Siblings                                uint32
	Onset, Opened, Ended, Age, Samples             int64
	Value, Expected, Lower, Upper, Score, Asked    float64
	Ratio, Lost, Sum                               float64
	Crossed                                        int64
	WorstFast, WorstSlow, Back                     float32
}

const orderMark = 0x01020304

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func native(v uint32) (order binary.ByteOrder) {
	if (*[4]byte)(unsafe.Pointer(&v))[0] == 0x04 {
		return binary.LittleEndian
	}
	return binary.BigEndian
}

func raw[T any](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

// Snapshot gives the whole state.
func (e *Engine) Snapshot() []byte {
	order := native(orderMark)
	h := snapshotHeader{
		Version: snapshotVersion, StateSize: uint32(StateSize), ContextSize: uint32(unsafe.Sizeof(context{})), Order: orderMark,
		States: uint32(len(e.states)), Contexts: uint32(e.contexts), Asked: e.cfg.Asked,
		Samples: e.counts.Samples, Unknown: e.counts.Unknown, NotANumber: e.counts.NotANumber, Late: e.counts.Late,
		Gaps: e.counts.Gaps, Resets: e.counts.Resets, Evicted: e.counts.Evicted, FindingsSeen: e.counts.Findings,
	}
	copy(h.Magic[:], snapshotMagic)
	if e.cfg.Profile == Facility {
		h.Facility = 1
	}
	ids := make([]ID, 0, len(e.open))
	for id := range e.open {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	h.Findings = uint32(len(ids))
	b := bytes.NewBuffer(make([]byte, 0, len(e.states)*StateSize+1024))
	_ = binary.Write(b, order, h)
	b.Write(raw(e.states))
	for i, c := range e.ctx {
		if c != nil {
			_ = binary.Write(b, order, uint32(i))
			b.Write(raw([]context{*c}))
		}
	}
	for _, id := range ids {
		_ = binary.Write(b, order, packFinding(e.open[id]))
	}
	_ = binary.Write(b, order, crc32.Checksum(b.Bytes(), castagnoli))
	return b.Bytes()
}

// Restore takes up a snapshot of an engine with the same configuration. On an error the engine is as it was.
func (e *Engine) Restore(snapshot []byte) error {
	order := native(orderMark)
	var h snapshotHeader
	head := binary.Size(h)
	if len(snapshot) < head+4 {
		return fmt.Errorf("snapshot: %d bytes: too short", len(snapshot))
	}
	body, sum := snapshot[:len(snapshot)-4], order.Uint32(snapshot[len(snapshot)-4:])
	if _, err := binary.Decode(body, order, &h); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	size := uint64(head) + uint64(h.States)*uint64(StateSize) + uint64(h.Contexts)*uint64(4+unsafe.Sizeof(context{})) +
		uint64(h.Findings)*uint64(binary.Size(snapshotFinding{}))
	facility := e.cfg.Profile == Facility
	switch {
	case string(h.Magic[:]) != snapshotMagic:
		return errors.New("snapshot: not one of a series engine")
	case h.Version != snapshotVersion && h.Version != snapshotBefore || int(h.StateSize) != StateSize || h.Contexts > 0 && uintptr(h.ContextSize) != unsafe.Sizeof(context{}) || h.Order != orderMark:
		return fmt.Errorf("snapshot: version %d of another build: it is relearnt", h.Version)
	case h.Asked != e.cfg.Asked || (h.Facility == 1) != facility:
		return fmt.Errorf("snapshot: for %g onsets per series-hour, this engine is for %g: it is relearnt", h.Asked, e.cfg.Asked)
	case size != uint64(len(body)):
		return fmt.Errorf("snapshot: %d bytes, its header says %d", len(body), size)
	case crc32.Checksum(body, castagnoli) != sum:
		return errors.New("snapshot: checksum differs")
	case int(h.States) > e.cfg.MaxSeries || int(h.Contexts) > e.cfg.MaxContext:
		return fmt.Errorf("snapshot: %d series and %d contexts are beyond the bounds", h.States, h.Contexts)
	}
	p := body[head:]
	states := make([]state, h.States)
	p = p[copy(raw(states), p):]
	for i := range states {
		if s := &states[i]; s.phase >= phases || s.kind() > Counter || s.bad() > Low || What(s.what) > Novel {
			return fmt.Errorf("snapshot: series %d is malformed", i)
		}
	}
	ctx := make([]*context, h.States)
	for range h.Contexts {
		id := order.Uint32(p)
		if id >= h.States || ctx[id] != nil {
			return fmt.Errorf("snapshot: context of series %d is malformed", id)
		}
		c := make([]context, 1)
		p = p[4:]
		p = p[copy(raw(c), p):]
		c[0].period.mend()
		ctx[id] = &c[0]
	}
	open := map[ID]*Finding{}
	for range h.Findings {
		var w snapshotFinding
		n, err := binary.Decode(p, order, &w)
		if err != nil || w.Series >= h.States || What(w.What) > Novel || State(w.State) > StateCleared || Severity(w.Severity) > Warning {
			return errors.New("snapshot: a finding is malformed")
		}
		p = p[n:]
		open[ID(w.Series)] = w.finding()
	}
	for i := range states {
		if (states[i].what != 0 || states[i].is(flagAccept)) && open[ID(i)] == nil {
			return fmt.Errorf("snapshot: series %d has lost its finding", i)
		}
	}
	e.states, e.ctx, e.contexts, e.open = states, ctx, int(h.Contexts), open
	e.counts = Counts{h.Samples, h.Unknown, h.NotANumber, h.Late, h.Gaps, h.Resets, h.Evicted, h.FindingsSeen}
	return nil
}

func flagOf(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func packFinding(f *Finding) snapshotFinding {
	return snapshotFinding{
		Series: uint32(f.Series), Phase: uint32(f.Phase), Workload: f.Workload, What: uint32(f.What), Severity: uint32(f.Severity), State: uint32(f.State),
		Joins: flagOf(f.Joins) | flagOf(f.Better)<<1, Siblings: flagOf(f.Baseline == baselineSiblings), Onset: f.Onset, Opened: f.Opened, Ended: f.Ended, Age: int64(f.Age),
		Samples: int64(f.Samples), Value: f.Value, Expected: f.Expected, Lower: f.Lower, Upper: f.Upper, Score: f.Score, Asked: f.Asked,
		Ratio: f.Ratio, Lost: f.Lost, Sum: f.sum, WorstFast: f.worstFast, WorstSlow: f.worstSlow, Crossed: f.crossed, Back: f.back,
	}
}

func (w *snapshotFinding) finding() *Finding {
	f := &Finding{
		Series: ID(w.Series), Phase: uint8(w.Phase), Workload: w.Workload, What: What(w.What), Severity: Severity(w.Severity), State: State(w.State),
		Joins: w.Joins&1 != 0, Better: w.Joins&2 != 0, Baseline: baselineSelf, Onset: w.Onset, Opened: w.Opened, Ended: w.Ended, Age: int(min(w.Age, math.MaxInt32)),
		Samples: int(w.Samples), Value: w.Value, Expected: w.Expected, Lower: w.Lower, Upper: w.Upper, Score: w.Score, Asked: w.Asked,
		Ratio: w.Ratio, Lost: w.Lost, sum: w.Sum, worstFast: w.WorstFast, worstSlow: w.WorstSlow, crossed: w.Crossed, back: w.Back,
	}
	if w.Siblings == 1 {
		f.Baseline = baselineSiblings
	}
	return f
}

// Save writes a snapshot to path and keeps the one before.
func (e *Engine) Save(path string) error { return durable.Write(path, e.Snapshot()) }

// Load restores the newest snapshot of path that is whole: a corrupt one is refused and the older used. Where there is none,
// the error is fs.ErrNotExist.
func (e *Engine) Load(path string) error { return durable.Read(path, e.Restore) }
