package series

import "math"

// Prior is what siblings of a series showed, for one that has no history of its own. Scales are relative.
type Prior struct {
	Level     float64 // expected, in the signal's unit; not used where Reference is set
	Noise     float64 // scale of a value around its level
	Between   float64 // scale of the levels of siblings
	Reference bool    // the samples carry siblings' levels in Ref
}

// leastBetween is the scale between runs of one class that is assumed however few there were.
const leastBetween = 0.01

// Prime starts a series from a prior: it is judged from its first sample on, and what it shows at its start is compared with
// siblings instead of being taken for normal. It is for series of ratios in the training profile that have no sample yet; others
// stay as they are, and false is given.
func (e *Engine) Prime(id ID, p Prior) bool {
	s := &e.states[id]
	k := s.kind()
	level := math.Log(p.Level)
	if p.Reference {
		level = 0
	}
	if e.cfg.Profile == Facility || s.is(flagSeen) || k != Ratio && k != Auto || math.IsNaN(level) || math.IsInf(level, 0) || !(p.Noise > 0) || p.Noise > 1 || !(p.Between >= 0) || p.Between > 1 {
		return false
	}
	s.loc[0], s.scale[0], s.n[0] = float32(level), float32(max(scaleFloor, p.Noise)), warmSamples
	// Thresholds are those of a series whose evidence often is as large as siblings differ, until it shows its own.
	q := float32(max(leastBetween, p.Noise/2, p.Between))
	s.blocks = tailBlocks + 1
	for _, t := range []*tail{&s.fastTail, &s.slowTail} {
		t.q, t.b = q, tailPriorShare*q
	}
	s.set(flagRatio, true)
	s.set(flagSibling, p.Reference)
	e.relimit(s)
	return true
}
