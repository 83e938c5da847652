package hook

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const testUID = "0b9f5a1e-1111-4222-8333-444455556666"

// openTestDir is an open pod directory and its path.
func openTestDir(t *testing.T) (*Dir, string) {
	t.Helper()
	root := t.TempDir()
	path := PodDir(root, testUID)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := OpenPodDir(root, testUID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, path
}

// goldenRing is the ring that the Python side wrote: local rank 1, eight slots, eleven records.
func goldenRing(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/ring-v1.bin")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeRing(t *testing.T, dir string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, RingName(1)), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestTheRingThatPythonWroteIsReadFieldByField(t *testing.T) {
	d, dir := openTestDir(t)
	writeRing(t, dir, goldenRing(t))
	r, err := OpenRing(d, 1, func() uint64 { return 10_000_000_000 })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	got, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	want := Snapshot{
		Identity: Identity{Rank: 3, LocalRank: 1, WorldSize: 4, Attempt: 2, PID: 4242}, Flags: FlagLauncher | FlagCanSave | FlagResumed | FlagSettles | FlagTokens, ResumedStep: 100,
		GPUUUID: "GPU-6e5a1f2c-0b0d-4d6e-9a55-1d8e4a1b0c3d", Torch: "2.3.1+cu121", JobUID: "5d0c8a4e-7b7e-4b0a-9d0a-3f1f2b9c1a77", Role: "pp1/tp0",
		Workload: "model=gpt-124m;tokens=524288;seq=1024", StartUnix: time.Unix(1700000000, 0), StartMono: 5000000000,
		HeartbeatMono: 9000000002, Written: 11, Step: 111, StepMono: 8200000000, Section: SectionOther, SectionName: "validation",
		SectionMono: 9000000001, Exit: ExitException, CkptStep: 110, CkptMono: 9000000000, CkptDuration: 125 * time.Millisecond, CkptBytes: 1053696,
		Settled: 10, NonFinite: 1, MemoryAllocated: 40 << 30, MemoryReserved: 60 << 30, MemoryPeak: 55 << 30, MemoryRetries: 2, MemoryMono: 9000000000,
		StepFLOPs: 6.5e12, PeakFLOPS: 9.89e14,
		Error: "RuntimeError: gloo connection closed by peer", NowMono: 10_000_000_000, capacity: 8,
	}
	if got != want {
		t.Errorf("snapshot\n got %+v\nwant %+v", got, want)
	}
	if got.HeartbeatAge() != 999999998 || got.StepAge() != 1800*time.Millisecond {
		t.Errorf("ages %v, %v", got.HeartbeatAge(), got.StepAge())
	}

	recs, err := r.Records(&got, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Records []struct {
			Seq      uint64 `json:"seq"`
			End      uint64 `json:"end_ns"`
			Step     uint64 `json:"step"`
			Section  uint32 `json:"section"`
			Flags    uint32 `json:"flags"`
			Duration int64  `json:"duration_ns"`
			Data     int64  `json:"data_ns"`
			Forward  int64  `json:"forward_ns"`
			Backward int64  `json:"backward_ns"`
			Opt      int64  `json:"optimizer_ns"`
			Comm     int64  `json:"comm_ns"`
			Launch   int64  `json:"launch_ns"`
			Loss     any    `json:"loss"`
			Norm     any    `json:"grad_norm"`
			Samples  uint64 `json:"samples"`
		} `json:"records"`
	}
	raw, err := os.ReadFile("testdata/ring-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	if len(recs) != len(golden.Records) || len(recs) != 8 {
		t.Fatalf("%d records, want the 8 that are not overwritten", len(recs))
	}
	for i, g := range golden.Records {
		r := recs[i]
		if r.Seq != g.Seq || r.EndMono != g.End || r.Step != g.Step || uint32(r.Section) != g.Section || r.Flags != g.Flags ||
			int64(r.Duration) != g.Duration || int64(r.DataWait) != g.Data || int64(r.Forward) != g.Forward || int64(r.Backward) != g.Backward ||
			int64(r.Optimizer) != g.Opt || int64(r.Comm) != g.Comm || int64(r.LaunchLatency) != g.Launch || r.Count != g.Samples {
			t.Errorf("record %d: %+v, want %+v", i, r, g)
		}
		loss, isNumber := g.Loss.(float64)
		if isNumber && r.Loss != loss || !isNumber && !math.IsInf(r.Loss, 1) {
			t.Errorf("record %d: loss %v, want %v", i, r.Loss, g.Loss)
		}
	}
	if newest, err := r.Records(&got, 9, 100); err != nil || len(newest) != 2 || newest[0].Seq != 10 {
		t.Errorf("after 9: %v, %v", newest, err)
	}
	if one, err := r.Records(&got, 0, 1); err != nil || len(one) != 1 || one[0].Seq != 11 {
		t.Errorf("the newest one: %v, %v", one, err)
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
	buf, again := make([]byte, 3*ringRecordSize), make([]byte, 3*ringRecordSize)
	for i := range 3 {
		le.PutUint64(buf[i*ringRecordSize:], uint64(7+i))
		le.PutUint64(again[i*ringRecordSize:], uint64(7+i))
	}
	le.PutUint64(again, 0)                       // being written
	le.PutUint64(again[ringRecordSize:], 8+1024) // written by a later lap
	if got := settled(buf, again, 7); len(got) != 1 || got[0].Seq != 9 {
		t.Errorf("records %+v, want only 9", got)
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

func TestOnlyARegularFileIsARing(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "ring")
	if err := os.WriteFile(secret, goldenRing(t), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]func(path string) error{
		"a symlink":                  func(p string) error { return os.Symlink(secret, p) },
		"a FIFO, and nobody waits":   func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a directory":                func(p string) error { return os.Mkdir(p, 0o700) },
		"a symlink out of the world": func(p string) error { return os.Symlink("/dev/zero", p) },
	}
	for name, lay := range cases {
		t.Run(name, func(t *testing.T) {
			d, dir := openTestDir(t)
			if err := lay(filepath.Join(dir, RingName(1))); err != nil {
				t.Fatal(err)
			}
			if r, err := OpenRing(d, 1, nil); err == nil {
				_ = r.Close()
				t.Error("it was opened")
			}
		})
	}
}

func TestNoSymlinkOnTheWayToAPodIsFollowed(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", testUID, "volumes", "kubernetes.io~empty-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, PodDir(root, testUID)); err != nil {
		t.Fatal(err)
	}
	if d, err := OpenPodDir(root, testUID); err == nil {
		_ = d.Close()
		t.Error("the volume is a symlink and was followed")
	}
	for _, uid := range []string{"..", "a/b", "", "A", "x\n"} {
		if d, err := OpenPodDir(root, uid); err == nil {
			_ = d.Close()
			t.Errorf("%q was taken for a pod UID", uid)
		}
	}
}

func FuzzRingHeader(f *testing.F) {
	b := goldenRing(f)
	f.Add(b[:4096], int64(len(b)))
	f.Add(b[:100], int64(len(b)))
	f.Add(b[:4096], int64(4096))
	f.Fuzz(func(t *testing.T, page []byte, size int64) {
		s, err := decodeHeader(page, size, 1<<62)
		if err != nil {
			return
		}
		if s.capacity == 0 || size < 4096+int64(s.capacity)*128 || s.Rank >= s.WorldSize || s.StepAge() < 0 || s.HeartbeatAge() < 0 {
			t.Errorf("accepted nonsense: %+v of %d bytes", s, size)
		}
	})
}

func TestAnOlderHooksValuesAreFinalAtOnceAndNobodySettlesWhatIsNotWritten(t *testing.T) {
	for name, c := range map[string]struct {
		flags, settled, want uint64
	}{"no flag": {0, 3, 11}, "flag": {uint64(FlagSettles), 3, 3}, "none is awaited": {uint64(FlagSettles), math.MaxUint64, 11}} {
		b := goldenRing(t)
		le.PutUint32(b[44:], uint32(c.flags))
		le.PutUint64(b[896:], c.settled)
		if s, err := decodeHeader(b[:4096], int64(len(b)), 0); err != nil || s.Settled != c.want {
			t.Errorf("%s: settled %d, %v, want %d", name, s.Settled, err, c.want)
		}
	}
}

func TestTextOfARingIsPrintableUTF8(t *testing.T) {
	for in, want := range map[string]string{
		"fine\x00rest": "fine", "caf\xe9": "caf\uFFFD", "\xff\xfe": "\uFFFD", "a\nb\x1b[31m": "a b [31m", "\xf0\x9f\x94": "\uFFFD", "": "",
	} {
		if got := text([]byte(in)); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	b := goldenRing(t)
	copy(b[640:], "\xff\xff\x01")
	if s, err := decodeHeader(b[:4096], int64(len(b)), 0); err != nil || !utf8.ValidString(s.Error) {
		t.Errorf("error %q, %v", s.Error, err)
	}
}

func TestTimesThatLieAheadHaveNoAge(t *testing.T) {
	b := goldenRing(t)
	for _, off := range []int{56, 512, 536, 552, 568, 576, 944} {
		le.PutUint64(b[off:], math.MaxUint64)
	}
	s, err := decodeHeader(b[:4096], int64(len(b)), 10)
	if err != nil || s.HeartbeatAge() != 0 || s.StepAge() != 0 || s.Age(s.CkptMono) != 0 || s.CkptDuration != math.MaxInt64 {
		t.Errorf("ages %v, %v, %v, %v; %v", s.HeartbeatAge(), s.StepAge(), s.Age(s.CkptMono), s.CkptDuration, err)
	}
	le.PutUint64(b[952:], math.Float64bits(math.Inf(1)))
	le.PutUint64(b[960:], math.Float64bits(math.NaN()))
	if s, _ := decodeHeader(b[:4096], int64(len(b)), 10); s.StepFLOPs != 0 || s.PeakFLOPS != 0 {
		t.Errorf("FLOPs %v of %v", s.StepFLOPs, s.PeakFLOPS)
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
