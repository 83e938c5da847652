package hook

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeRing(t *testing.T, dir string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, RingName(1)), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestARecordBeingWrittenIsLeftOut(t *testing.T) {
	d, dir := openTestDir(t)
	b := goldenRing(t)
	binary.LittleEndian.PutUint64(b[4096+((11-1)%8)*128:], 0)
	writeRing(t, dir, b)
	r, err := OpenRing(d, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	s, _ := r.Snapshot()
	recs, err := r.Records(&s, 8, 100)
	if err != nil || len(recs) != 2 || recs[1].Seq != 10 {
		t.Errorf("records %v, %v: want 9 and 10", recs, err)
	}
}

func TestARecordOverwrittenWhileItIsReadIsLeftOut(t *testing.T) {
	buf := make([]byte, 3*ringRecordSize)
	for i := range 3 {
		le.PutUint64(buf[i*ringRecordSize:], uint64(7+i))
	}
	for written, want := range map[uint64]int{9: 3, 7 + 1024 - 65: 3, 7 + 1024 - 64: 2, 9 + 1024 - 65: 1, 9 + 1024 - 64: 0} {
		if got := published(buf, 7, 1024, written); len(got) != want || want > 0 && got[len(got)-1].Seq != 9 {
			t.Errorf("%d written: records %+v, want the last %d", written, got, want)
		}
	}
	le.PutUint64(buf[ringRecordSize:], 8+1024) // of a later lap
	if got := published(buf, 7, 1024, 9); len(got) != 2 {
		t.Errorf("records %+v, want 7 and 9", got)
	}
}

func TestARingThatLiesIsAnError(t *testing.T) {
	put := func(off int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[off:], v); return b }
	}
	cases := map[string]func([]byte) []byte{
		"another magic":                     func(b []byte) []byte { b[0] = 'X'; return b },
		"a version of tomorrow":             put(8, 2),
		"a header of another size":          put(12, 64),
		"records of another size":           put(16, 0),
		"no capacity":                       put(20, 0),
		"a capacity that is no power":       put(20, 7),
		"a capacity beyond the file":        put(20, 1<<19),
		"a capacity beyond all files":       put(20, 1<<31),
		"a rank outside its world":          put(24, 4),
		"another local rank than its name":  put(28, 0),
		"a world of nobody":                 put(32, 0),
		"a world of four billion":           put(32, math.MaxUint32),
		"an empty file":                     func([]byte) []byte { return nil },
		"a header and no records":           func(b []byte) []byte { return b[:4096] },
		"half a header":                     func(b []byte) []byte { return b[:600] },
		"one byte less than it should have": func(b []byte) []byte { return b[:len(b)-1] },
	}
	for name, lie := range cases {
		t.Run(name, func(t *testing.T) {
			d, dir := openTestDir(t)
			writeRing(t, dir, lie(goldenRing(t)))
			if r, err := OpenRing(d, 1, nil); err == nil {
				_ = r.Close()
				t.Error("it was opened")
			}
		})
	}
}

func TestARingCutShortWhileOpenIsAnErrorAndReadableAgainWhenWhole(t *testing.T) {
	d, dir := openTestDir(t)
	writeRing(t, dir, goldenRing(t))
	r, err := OpenRing(d, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	s, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, RingName(1))
	for _, size := range []int64{4096 + 128, 4096, 100, 0} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Snapshot(); err == nil {
			t.Errorf("a snapshot of %d bytes", size)
		}
		if _, err := r.Records(&s, 0, 100); !errors.Is(err, ErrRingTruncated) {
			t.Errorf("records of a file of %d bytes: %v", size, err)
		}
	}
	writeRing(t, dir, goldenRing(t)) // the same inode
	if _, err := r.Snapshot(); err != nil {
		t.Errorf("whole again: %v", err)
	}
}

func TestThatRingsAreLeftOutIsSaidOnceAnHourAndOnlyOfNewOnes(t *testing.T) {
	root := t.TempDir()
	dir := PodDir(root, uid(1))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f := NewFleet(FleetOptions{KubeletRoot: root, Limits: Limits{Pods: 1, Ranks: 2, Lives: 2}})
	defer f.Close()
	said := make(chan error, 64)
	f.Subscribe(func(e Event) {
		if e.Kind == Problem {
			said <- e.Err
		}
	})
	r := f.podOf(uid(1)).rank(1)
	marker := errors.New("nothing else")
	looks := func(want int) {
		t.Helper()
		for range 5 {
			r.openRing()
		}
		f.problem("", marker)
		for n := 0; ; n++ {
			err := <-said
			if err == marker {
				if n != want {
					t.Errorf("said %d times, want %d", n, want)
				}
				return
			}
			if !strings.Contains(err.Error(), "more than 2 rings") {
				t.Error(err)
			}
		}
	}
	replace := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "new"), goldenRing(t), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, RingName(1))); err != nil {
			t.Fatal(err)
		}
	}
	replace()
	looks(0)
	replace()
	looks(0) // as many as may be, and no more
	if r.Ring() == nil {
		t.Error("the last one within the limit is not read")
	}
	replace()
	looks(1)
	replace()
	looks(0)
	r.mu.Lock()
	r.crowded = r.crowded.Add(-sayCrowded)
	r.mu.Unlock()
	looks(1)
	if r.Ring() != nil {
		t.Error("one beyond the limit is read, or an older one in its place")
	}
}

func TestARingThatChangesItsOwnerInPlaceIsRefused(t *testing.T) {
	d, dir := openTestDir(t)
	b := goldenRing(t)
	writeRing(t, dir, b)
	r, err := OpenRing(d, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for what, off := range map[string]int{"attempt": 36, "GPU": 70, "job": 200, "role": 257, "torch": 130, "workload": 330} {
		c := append([]byte(nil), b...)
		c[off] ^= 1
		writeRing(t, dir, c)
		if _, err := r.Snapshot(); err == nil {
			t.Errorf("a %s that changes in an open ring makes a new label set of each reading", what)
		}
	}
}

func FuzzRingFile(f *testing.F) {
	f.Add(goldenRing(f), uint64(0), uint64(11))
	f.Add(goldenRing(f)[:4096], uint64(1)<<63, uint64(1))
	file, err := os.Create(filepath.Join(f.TempDir(), "ring"))
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	f.Fuzz(func(t *testing.T, b []byte, since, written uint64) {
		if err := errors.Join(file.Truncate(0), second(file.WriteAt(b, 0))); err != nil {
			t.Fatal(err)
		}
		r := &Ring{file: file, now: func() uint64 { return 1 << 62 }}
		s, err := r.read()
		if err != nil {
			return
		}
		s.Written = written
		records, err := r.Records(&s, since, 64)
		if err != nil {
			return
		}
		if len(records) > 64 {
			t.Errorf("%d records, at most 64 were asked for", len(records))
		}
		for _, x := range records {
			if x.Duration < 0 || x.DataWait < 0 || x.Seq <= since || x.Seq > written {
				t.Errorf("record %+v after %d of %d", x, since, written)
			}
		}
	})
}

func second(_ int, err error) error { return err }

func BenchmarkSnapshot(b *testing.B) {
	root := b.TempDir()
	path := PodDir(root, testUID)
	if err := os.MkdirAll(path, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, RingName(1)), goldenRing(b), 0o644); err != nil {
		b.Fatal(err)
	}
	d, err := OpenPodDir(root, testUID)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	r, err := OpenRing(d, 1, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Snapshot(); err != nil {
			b.Fatal(err)
		}
	}
}
