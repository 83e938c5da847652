package hook

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"
)

// The ring's layout, version 1 (docs/hook-protocol.md, section 2). Sizes in bytes.
const (
	ringMagic      = "PCRING01"
	ringVersion    = 1
	ringHeaderSize = 4096
	ringRecordSize = 128
	// ringWrittenOffset is where the header counts the records written so far.
	ringWrittenOffset = 520
	// maxRingCapacity bounds what a ring may claim: 1 Mi records are 128 MiB, and days of steps.
	maxRingCapacity = 1 << 20
	// maxRanks bounds rank and world size; the largest published jobs are a tenth of it.
	maxRanks = 1 << 20
)

// Section is the part of the training loop that a rank is in.
type Section uint32

// The sections of the protocol.
const (
	SectionSetup Section = iota
	SectionStep
	SectionCheckpoint
	SectionEval
	SectionHeld
	SectionOut
	SectionOther
)

var sectionNames = [...]string{"setup", "step", "checkpoint", "eval", "held", "out", "other"}

func (s Section) String() string {
	if int(s) < len(sectionNames) {
		return sectionNames[s]
	}
	return fmt.Sprintf("section(%d)", uint32(s))
}

// Exit is how a rank ended, by its own account.
type Exit uint32

// The ways to end.
const (
	ExitRunning Exit = iota
	ExitClean
	ExitException
)

// Flags of a ring.
const (
	FlagLauncher uint32 = 1 << iota
	FlagCanSave
	FlagCollectiveFree
	FlagResumed
	// FlagSettles says that the ring tells up to which record its values are final.
	FlagSettles
	// FlagTokens says that a record's count is of tokens; without it, of samples.
	FlagTokens
	// FlagCopied says that the ring is a copy, because its file is not in memory: see Rank.Snapshot.
	FlagCopied
)

// Flags of a record.
const (
	RecordLoss uint32 = 1 << iota
	RecordGradNorm
	RecordLossNotFinite
	// RecordDevice says that the phases were measured on the accelerator's own clock.
	RecordDevice
)

// Identity is who a ring says it belongs to. It does not change while a ring is open.
type Identity struct {
	Rank, LocalRank, WorldSize, Attempt int
	// PID is the process as it sees itself, in its own PID namespace.
	PID int
}

// Snapshot is one reading of a ring's header. All Mono times are CLOCK_MONOTONIC nanoseconds of this node.
type Snapshot struct {
	Identity
	Flags         uint32
	GPUUUID       string
	Torch         string
	JobUID        string // by the pod's own word: a claim
	Role          string // in parallel training, such as "pp0/tp1"; empty: all ranks do the same
	Workload      string // "model=…;tokens=…;seq=…", by the user's word; empty: unknown
	StartUnix     time.Time
	StartMono     uint64
	HeartbeatMono uint64
	Written       uint64 // records written so far
	Step          uint64 // last completed step
	StepMono      uint64
	Section       Section
	SectionName   string
	SectionMono   uint64
	Exit          Exit
	CkptStep      uint64 // 0: none yet
	CkptMono      uint64
	CkptDuration  time.Duration
	CkptBytes     uint64 // of this rank's files
	Claim         ClaimReading
	// ResumedStep is the step that the rank went on from, 0 when it found no checkpoint; valid with FlagResumed.
	ResumedStep uint64
	Error       string
	// Settled is the newest record whose values are final; durations and counts of steps are final at once.
	Settled uint64
	// NonFinite counts losses and gradient norms that were not finite.
	NonFinite uint64
	// Accelerator memory in bytes, and how often an allocation failed at first; valid when MemoryMono is not 0.
	MemoryAllocated, MemoryReserved, MemoryPeak, MemoryRetries, MemoryMono uint64
	// FLOPs of one step of this rank, and what its accelerator can do in a second; 0 when unknown.
	StepFLOPs, PeakFLOPS float64
	// CopiedMono is when the rank copied the header to the file; valid with FlagCopied.
	CopiedMono uint64
	// NowMono is when the reading was taken.
	NowMono uint64

	capacity uint64
}

// ClaimReading is what a rank read of rank 0's heartbeat beside the checkpoints. ReadMono is when its look began; 0: it reads none.
type ClaimReading struct {
	Epoch, Attempt, Step, Count, ReadMono uint64
}

// Resumed is the step that the rank went on from; ok is false until it has looked for a checkpoint.
func (s *Snapshot) Resumed() (step uint64, ok bool) { return s.ResumedStep, s.Flags&FlagResumed != 0 }

// CanSave says whether the rank was given a way to save.
func (s *Snapshot) CanSave() bool { return s.Flags&FlagCanSave != 0 }

// Age is the time between a reading's Mono field and the reading; a time that lies ahead has age 0.
func (s *Snapshot) Age(mono uint64) time.Duration {
	if mono >= s.NowMono {
		return 0
	}
	return clampDuration(s.NowMono - mono)
}

// HeartbeatAge is how long the rank's heartbeat has stood still.
func (s *Snapshot) HeartbeatAge() time.Duration { return s.Age(s.HeartbeatMono) }

// StepAge is how long ago the last step was completed (or the process was started, when none was).
func (s *Snapshot) StepAge() time.Duration { return s.Age(s.StepMono) }

// Record is one step in a ring. Durations that the rank does not know are 0.
type Record struct {
	Seq, EndMono, Step                                                    uint64
	Section                                                               Section
	Flags                                                                 uint32
	Duration, DataWait, Forward, Backward, Optimizer, Comm, LaunchLatency time.Duration
	Loss, GradNorm                                                        float64
	Count                                                                 uint64 // tokens or samples, by the ring's FlagTokens
}

var le = binary.LittleEndian

// decodeHeader reads a ring's header page. size is the file's size, now the time of the reading. It refuses whatever
// cannot be read safely; what is merely implausible (a time ahead, an unknown section) is kept.
func decodeHeader(page []byte, size int64, now uint64) (Snapshot, error) {
	if len(page) < ringHeaderSize {
		return Snapshot{}, fmt.Errorf("ring header: %d bytes, want %d", len(page), ringHeaderSize)
	}
	if string(page[:8]) != ringMagic {
		return Snapshot{}, fmt.Errorf("ring header: magic %q, want %q", page[:8], ringMagic)
	}
	u32 := func(off int) uint32 { return le.Uint32(page[off:]) }
	u64 := func(off int) uint64 { return le.Uint64(page[off:]) }
	for _, c := range []struct {
		name string
		off  int
		want uint32
	}{{"version", 8, ringVersion}, {"header size", 12, ringHeaderSize}, {"record size", 16, ringRecordSize}} {
		if got := u32(c.off); got != c.want {
			return Snapshot{}, fmt.Errorf("ring header: %s %d, want %d", c.name, got, c.want)
		}
	}
	capacity := u32(20)
	if capacity == 0 || capacity > maxRingCapacity || capacity&(capacity-1) != 0 {
		return Snapshot{}, fmt.Errorf("ring header: capacity %d is not a power of two up to %d", capacity, maxRingCapacity)
	}
	if need := ringHeaderSize + int64(capacity)*ringRecordSize; size < need {
		return Snapshot{}, fmt.Errorf("ring header: file of %d bytes is too short for %d records (%d bytes)", size, capacity, need)
	}
	rank, local, world := u32(24), u32(28), u32(32)
	if world == 0 || world > maxRanks || rank >= world || local >= world || u32(36) > math.MaxInt32 || u32(40) > math.MaxInt32 {
		return Snapshot{}, fmt.Errorf("ring header: rank %d (local %d) of %d, attempt %d, pid %d make no sense", rank, local, world, u32(36), u32(40))
	}
	s := Snapshot{
		Identity:      Identity{Rank: int(rank), LocalRank: int(local), WorldSize: int(world), Attempt: int(u32(36)), PID: int(u32(40))},
		Flags:         u32(44),
		StartMono:     u64(56),
		GPUUUID:       text(page[64:128]),
		Torch:         text(page[128:192]),
		JobUID:        text(page[192:256]),
		Role:          text(page[256:320]),
		Workload:      text(page[320:448]),
		HeartbeatMono: u64(512),
		Written:       u64(520),
		Step:          u64(528),
		StepMono:      u64(536),
		Section:       Section(u32(544)),
		Exit:          Exit(u32(548)),
		SectionMono:   u64(552),
		CkptStep:      u64(560),
		CkptMono:      u64(568),
		CkptDuration:  clampDuration(u64(576)),
		ResumedStep:   u64(584),
		SectionName:   text(page[592:624]),
		Error:         text(page[640:896]),
		Settled:       u64(896),
		NonFinite:     u64(904),
		StepFLOPs:     positive(u64(952)),
		PeakFLOPS:     positive(u64(960)),
		CkptBytes:     u64(968),
		CopiedMono:    u64(976),
		Claim:         ClaimReading{Epoch: u64(984), Attempt: u64(992), Step: u64(1000), Count: u64(1008), ReadMono: u64(1016)},
		NowMono:       now,
		capacity:      uint64(capacity),
	}
	if s.Flags&FlagSettles == 0 || s.Settled > s.Written {
		s.Settled = s.Written
	}
	s.MemoryAllocated, s.MemoryReserved, s.MemoryPeak, s.MemoryRetries, s.MemoryMono = u64(912), u64(920), u64(928), u64(936), u64(944)
	if ns := u64(48); ns <= math.MaxInt64 {
		s.StartUnix = time.Unix(0, int64(ns))
	}
	return s, nil
}

// decodeRecord reads one record; ok is false unless it is the one with number seq.
func decodeRecord(b []byte, seq uint64) (r Record, ok bool) {
	if len(b) < ringRecordSize || le.Uint64(b) != seq {
		return Record{}, false
	}
	d := func(off int) time.Duration { return clampDuration(le.Uint64(b[off:])) }
	return Record{
		Seq: seq, EndMono: le.Uint64(b[8:]), Step: le.Uint64(b[16:]),
		Section: Section(le.Uint32(b[24:])), Flags: le.Uint32(b[28:]),
		Duration: d(32), DataWait: d(40), Forward: d(48), Backward: d(56), Optimizer: d(64), Comm: d(72), LaunchLatency: d(80),
		Loss: math.Float64frombits(le.Uint64(b[88:])), GradNorm: math.Float64frombits(le.Uint64(b[96:])),
		Count: le.Uint64(b[104:]),
	}, true
}

// positive is a number that can be divided by, else 0.
func positive(bits uint64) float64 {
	if f := math.Float64frombits(bits); f > 0 && f <= math.MaxFloat64 {
		return f
	}
	return 0
}

func clampDuration(ns uint64) time.Duration {
	if ns > math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(ns)
}

// text is a NUL-padded field as valid, printable, single-line UTF-8: it ends up in logs and labels.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "\uFFFD"))
}
