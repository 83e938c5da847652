package hook

import (
	"encoding/json"
	"math"
	"os"
	"testing"
	"time"
	"unicode/utf8"
)

// goldenRing is the ring that the Python side wrote: local rank 1, eight slots, eleven records.
func goldenRing(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/ring-v1.bin")
	if err != nil {
		t.Fatal(err)
	}
	return b
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
		SectionMono: 9000000001, Exit: ExitException, CkptStep: 110, CkptMono: 9000000000, CkptDuration: 125 * time.Millisecond, CkptBytes: 1053696, Claim: ClaimReading{12, 2, 109, 77, 9000000000},
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
	whole := golden.Records[ringMargin(8):] // the oldest may be being overwritten
	if len(recs) != len(whole) || len(golden.Records) != 8 {
		t.Fatalf("%d records, want the newest %d of 8", len(recs), len(whole))
	}
	for i, g := range whole {
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
