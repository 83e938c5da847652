package anomaly

import (
	"math"

	"github.com/pitcrew/pitcrew/detector/series"
)

// Sections of the hook, by its number; docs/hook-protocol.md.
const (
	sectionSetup = iota
	sectionStep
	sectionCheckpoint
	sectionEval
	sectionHeld
	sectionOut
	sectionOther
)

const (
	warmSteps   = 12   // of a process: compilation, allocator and kernels warm up
	workAgree   = 0.02 // counts of steps that agree so far are of one workload …
	workDiffers = 0.04 // … and that differ more are of another
	workSteps   = 3    // so many in a row
	busyLeast   = 0.1  // utilisation from which a GPU without a rank is busy
	stillLeast  = 2.0  // s without a step, and stillPaces of them: the rank does not step
	stillPaces  = 5.0
)

// tell takes in what a value says of the training loop.
func (en *entity) tell(r role, v float64) {
	switch r {
	case roleBusy:
		en.busy = v
	case roleStepAge:
		en.stepAge = v
	case roleStep:
		if v < en.step { // it began anew
			en.warm = 0
		}
		en.step = v
	case roleCheckpoint:
		if en.ckpt >= 0 && v != en.ckpt {
			en.leave(phaseCheckpoint)
			en.fresh = true
		}
		en.ckpt = v
	case roleSection:
		s := sectionOther
		if v >= 0 && v <= sectionOther {
			s = int(v)
		}
		if s != en.section && s != sectionStep {
			en.leave(sectionPhase[s])
		}
		if s == sectionSetup {
			en.warm = 0
		}
		en.section = s
	}
}

func (en *entity) leave(phase uint8) {
	if phase == series.Warmup { // not judged itself; the steps after it come back as after any other
		phase = phaseOther
	}
	en.elsewhere = phase
	en.mark++
}

// worked follows what a step processes: so many tokens or samples are a workload, and another number of them another.
func (en *entity) worked(v float64) {
	apart := func(a, b float64) float64 { return math.Abs(a-b) / max(math.Abs(b), 1) }
	switch {
	case !(v > 0) || math.IsInf(v, 0):
	case en.workAt > 0 && apart(v, en.workAt) <= workDiffers:
		en.workRow = 0
	case en.workRow > 0 && apart(v, en.workNext) <= workAgree:
		if en.workRow++; en.workRow >= workSteps {
			en.work++
			en.workAt, en.workRow = v, 0
		}
	default:
		en.workNext, en.workRow = v, 1
	}
}

// workload counts the changes of what the rank processes.
func (en *entity) workload() uint32 {
	if en.rank != nil {
		return en.rank.work
	}
	return en.work
}

// stepped takes in the end of a step.
func (en *entity) stepped(t int64, duration float64) {
	en.warm++
	en.stepAt = t
	if en.pace == 0 {
		en.pace = duration
	}
	en.pace += (duration - en.pace) / 16
}

var sectionPhase = [...]uint8{
	sectionSetup: series.Warmup, sectionStep: phaseStep, sectionCheckpoint: phaseCheckpoint, sectionEval: phaseEval, sectionHeld: series.Warmup,
	sectionOut: series.Warmup, sectionOther: phaseOther,
}

// steps reports whether the rank's loop goes on as it did.
func (en *entity) steps(now int64) bool {
	age := en.stepAge
	if math.IsNaN(age) {
		age = float64(now-en.stepAt) * 1e-9
	}
	return age <= max(stillLeast, stillPaces*en.pace)
}

// phaseOf is the series phase of a value of the signal that is taken now; Warmup: it is not judged. told says that whoever runs
// the loop told the phase and the workload.
func (en *entity) phaseOf(s *Signal, now int64) (phase uint8, told bool) {
	switch s.gate {
	case always, perEvent:
		return phaseStep, false
	case perStep:
		if en.section == sectionSetup || en.section == sectionOut || en.warm < warmSteps {
			return series.Warmup, true
		}
		return phaseStep, en.section >= 0 && en.workAt > 0
	}
	r := en.rank
	if en.key.about == Rank {
		r = en
	}
	if r == nil || now-r.seen > int64(linkKept) || r.section < 0 {
		if en.key.about == GPU && !(en.busy >= busyLeast) {
			return series.Warmup, false
		}
		return phaseStep, false
	}
	phase = sectionPhase[r.section]
	if phase == phaseStep && (r.warm < warmSteps || !r.steps(now)) || !s.phases.has(phase) {
		phase = series.Warmup
	}
	return phase, r.workAt > 0
}

// shared is what phaseOf and workload are of a rank, for what all ranks of the node share: it is judged while any of them steps, and told where all
// that step tell; without ranks, while any GPU is busy.
func (e *Engine) shared() (phase uint8, told bool, work uint32) {
	ranks, busy := false, false
	phase, told = series.Warmup, true
	for en := range e.ents.all {
		switch en.key.about {
		case GPU:
			busy = busy || en.busy >= busyLeast
		case Rank:
			if e.now-en.seen > int64(linkKept) || en.section < 0 {
				continue
			}
			if ranks = true; sectionPhase[en.section] == phaseStep && en.warm >= warmSteps && en.steps(e.now) {
				phase, told, work = phaseStep, told && en.workAt > 0, max(work, en.work)
			}
		}
	}
	if busy && !ranks {
		return phaseStep, false, 0
	}
	return phase, told, work
}
