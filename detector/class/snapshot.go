package class

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/pitcrew/pitcrew/detector/durable"
)

// A snapshot is magic and version, the records in order of class and name, and a CRC-32C of all before it. Numbers are little-endian
// or varints: gateways of different builds exchange it.
const (
	snapshotMagic   = "PCREWCLS"
	snapshotVersion = 2 // 1 had no number of ranks
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot gives the whole store; the same contents give the same bytes.
func (s *Store) Snapshot() []byte {
	b := append([]byte(snapshotMagic), snapshotVersion)
	b = binary.AppendUvarint(b, uint64(s.n))
	keys := make([]Key, 0, len(s.classes))
	for k := range s.classes {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, Key.compare)
	for _, k := range keys {
		names := make([]name, 0, len(s.classes[k]))
		for n := range s.classes[k] {
			names = append(names, n)
		}
		slices.SortFunc(names, name.compare)
		for _, n := range names {
			for _, f := range []string{k.Model, k.GPU, k.Driver, k.Framework, k.Signal, n.run, n.writer} {
				b = binary.AppendUvarint(b, uint64(len(f)))
				b = append(b, f...)
			}
			for _, v := range []int64{k.TokensPerStep, k.SequenceLength, k.Ranks} {
				b = binary.AppendVarint(b, v)
			}
			b = s.classes[k][n].append(b)
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func (r *record) append(b []byte) []byte {
	b = binary.AppendVarint(b, r.last)
	for _, u := range []uint64{r.count, uint64(r.fold), uint64(r.entry), math.Float64bits(r.sum), uint64(r.n), math.Float64bits(r.y[0]), math.Float64bits(r.y[1]), uint64(math.Float32bits(r.noise)), uint64(len(r.level))} {
		b = binary.AppendUvarint(b, u)
	}
	for _, c := range r.level {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	b = binary.AppendVarint(b, int64(r.sketch.low))
	b = binary.AppendUvarint(b, uint64(len(r.sketch.bins)))
	for _, n := range r.sketch.bins {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// Restore replaces the contents by those of a snapshot, within this store's bounds. On an error the store is as it was.
func (s *Store) Restore(snapshot []byte) error {
	head := len(snapshotMagic) + 1
	if len(snapshot) < head+4 || string(snapshot[:head-1]) != snapshotMagic {
		return errors.New("classes: not a snapshot of classes")
	}
	if v := snapshot[head-1]; v != snapshotVersion {
		return fmt.Errorf("classes: snapshot version %d, this build reads %d: it is relearnt", v, snapshotVersion)
	}
	body, sum := snapshot[:len(snapshot)-4], binary.LittleEndian.Uint32(snapshot[len(snapshot)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return errors.New("classes: snapshot checksum differs")
	}
	in := &reader{b: body[head:]}
	fresh := &Store{cfg: s.cfg, classes: map[Key]map[name]*record{}}
	for range in.uvarint() {
		var k Key
		var n name
		for _, f := range []*string{&k.Model, &k.GPU, &k.Driver, &k.Framework, &k.Signal, &n.run, &n.writer} {
			*f = string(in.bytes(in.atMost(maxName)))
		}
		k.TokensPerStep, k.SequenceLength, k.Ranks = in.varint(), in.varint(), in.varint()
		r := in.record()
		if in.bad {
			return errors.New("classes: snapshot is malformed")
		}
		for len(r.level) > s.cfg.MaxSteps {
			r.coarsen()
		}
		fresh.put(k, n, r)
		fresh.trim(k)
		fresh.bound()
	}
	if in.bad || len(in.b) != 0 {
		return errors.New("classes: snapshot is malformed")
	}
	s.classes, s.n = fresh.classes, fresh.n
	return nil
}

// Save writes a snapshot to path and keeps the one before.
func (s *Store) Save(path string) error { return durable.Write(path, s.Snapshot()) }

// Load restores the newest snapshot of path that is whole. Where there is none, the error is fs.ErrNotExist.
func (s *Store) Load(path string) error { return durable.Read(path, s.Restore) }

// reader takes a snapshot apart; once bad it stays so and gives zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) atMost(most uint64) uint64 {
	v := r.uvarint()
	if v > most {
		r.bad, r.b = true, nil
		return 0
	}
	return v
}

func (r *reader) bytes(n uint64) []byte {
	if uint64(len(r.b)) < n {
		r.bad, r.b = true, nil
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) finite() float64 {
	v := math.Float64frombits(r.uvarint())
	if math.IsNaN(v) || math.IsInf(v, 0) {
		r.bad = true
	}
	return v
}

func (r *reader) record() *record {
	out := &record{last: r.varint(), count: r.uvarint(), fold: uint8(r.atMost(foldMost)), entry: int64(r.atMost(stepsMost)), sum: r.finite(), n: uint32(r.atMost(math.MaxUint32))}
	out.y = [2]float64{r.finite(), r.finite()}
	out.noise = math.Float32frombits(uint32(r.atMost(math.MaxUint32)))
	if n := float64(out.noise); !(n >= 0) || math.IsInf(n, 0) {
		r.bad = true
	}
	level := r.bytes(2 * r.atMost(stepsMost))
	out.level = make([]uint16, len(level)/2)
	for i := range out.level {
		out.level[i] = binary.LittleEndian.Uint16(level[2*i:])
	}
	low := r.varint()
	if low < -indexMost || low > indexMost {
		r.bad = true
		low = 0
	}
	out.sketch.low = int32(low)
	bins := r.atMost(min(maxBins, uint64(len(r.b))))
	out.sketch.bins = make([]uint32, bins)
	for i := range out.sketch.bins {
		out.sketch.bins[i] = uint32(r.atMost(math.MaxUint32))
		out.sketch.total += uint64(out.sketch.bins[i])
	}
	if out.count == 0 || out.sketch.total == 0 || out.n > 1<<30 {
		r.bad = true
	}
	return out
}
