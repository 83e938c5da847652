package series

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"os"
	"testing"
)

func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 0x40
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// FuzzObserve feeds samples of any float, order and time; the score stays in its range.
func FuzzObserve(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef0123"), false)
	f.Fuzz(func(t *testing.T, b []byte, facility bool) {
		cfg := Config{}
		if facility {
			cfg.Profile = Facility
		}
		e, _ := New(cfg)
		id, _ := e.Add(Kind(len(b) % 4))
		for rep := range 3 {
			for i := 0; i+20 <= len(b); i += 20 {
				x := Sample{
					T: int64(binary.LittleEndian.Uint64(b[i:])) >> (rep * 8), V: math.Float64frombits(binary.LittleEndian.Uint64(b[i+8:])),
					Phase: b[i+16], Told: b[i+17]&1 == 1, Workload: uint32(b[i+18] & 3),
				}
				if b[i+17]&2 == 2 {
					x.Ref = math.Float32frombits(binary.LittleEndian.Uint32(b[i+16:]))
				}
				v := e.Observe(id, x)
				if !(v.Score >= 0 && v.Score <= 1) {
					t.Fatalf("score %g of %+v", v.Score, x)
				}
			}
		}
		next, _ := New(cfg)
		if err := next.Restore(e.Snapshot()); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRestore takes snapshots of any bytes, also such whose checksum was made to fit: never a panic, and an engine that refused one,
// or took what it cannot tell from a real one, works.
func FuzzRestore(f *testing.F) {
	_, e := run(f, Config{}, job{ms: 100, noise: 0.02, factor: 2, from: 100, to: 200, steps: 150, seed: 1}.samples())
	f.Add(e.Snapshot())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, _ := New(Config{MaxSeries: 64})
		_, _ = e.Add(Ratio)
		_ = e.Restore(b)
		if len(b) > 4 {
			_ = e.Restore(binary.LittleEndian.AppendUint32(bytes.Clone(b[:len(b)-4]), crc32.Checksum(b[:len(b)-4], castagnoli)))
		}
		if e.Len() > 64 || len(e.ctx) > e.Len() {
			t.Fatalf("%d series of %d bytes", e.Len(), len(b))
		}
		for i := range e.Len() {
			for k := range int64(40) {
				e.Observe(ID(i), Sample{T: 1e18 + k*1e9, V: float64(100 + k%7*50), Told: k%2 == 0, Workload: uint32(k / 20), Phase: uint8(k / 30)})
			}
			e.Accept(ID(i))
			e.Absent(ID(i), 2e18)
		}
	})
}
