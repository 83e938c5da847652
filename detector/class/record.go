package class

import (
	"bytes"
	"cmp"
	"math"
	"slices"
)

const (
	stepsMost = 1 << 16
	foldMost  = 46 // doublings of a profile's resolution; steps beyond are the last entry's

	// A level is kept as 1 + (ln v + levelLow)/levelStep: within 0.025 %, 0 is unknown.
	levelStep = 0.0005
	levelLow  = 16.0

	noiseRate  = 1.0 / 64
	noiseClip  = 4
	noiseStart = 16 // differences, whose mean starts it
)

// record is what one writer saw of one run.
type record struct {
	last   int64 // ns, of the latest value
	count  uint64
	sketch sketch
	level  []uint16 // by step >> fold
	fold   uint8
	// The entry that is being filled.
	entry int64
	sum   float64
	n     uint32
	// Scale of the values around their level, from the differences of every second one: half of real runs alternate.
	y     [2]float64
	noise float32
}

func encodeLevel(y float64) uint16 {
	return uint16(max(1, min(math.MaxUint16, 1+math.Round((y+levelLow)/levelStep))))
}

func decodeLevel(c uint16) float64 { return float64(c-1)*levelStep - levelLow }

func (r *record) observe(step, at int64, v float64, maxSteps int) {
	y := math.Log(v)
	r.last = max(r.last, at)
	if r.count >= 2 {
		d := 1.2533 / math.Sqrt2 * math.Abs(y-r.y[0])
		a := max(noiseRate, 1/float64(r.count-1))
		if r.count > noiseStart {
			d = min(d, noiseClip*float64(r.noise))
		}
		r.noise += float32(a * (d - float64(r.noise)))
	}
	r.y[0], r.y[1] = r.y[1], y
	r.count++
	r.sketch.add(v)
	for step>>r.fold >= int64(maxSteps) && r.fold < foldMost {
		r.coarsen()
	}
	e := min(step>>r.fold, int64(maxSteps)-1)
	switch {
	case e < r.entry:
		return // its entry is full
	case e > r.entry:
		r.entry, r.sum, r.n = e, 0, 0
	}
	r.sum += y
	r.n++
	for int64(len(r.level)) <= e {
		r.level = append(r.level, 0)
	}
	r.level[e] = encodeLevel(r.sum / float64(r.n))
}

// coarsen halves the resolution: an entry is the mean of two.
func (r *record) coarsen() {
	r.level = halve(r.level)
	r.fold++
	r.entry /= 2
	if int(r.entry) < len(r.level) && r.level[r.entry] != 0 {
		r.n = 1 << min(r.fold-1, 16)
		r.sum = decodeLevel(r.level[r.entry]) * float64(r.n)
	} else {
		r.sum, r.n = 0, 0
	}
}

func halve(level []uint16) []uint16 {
	out := level[:0]
	for i := 0; i < len(level); i += 2 {
		c := level[i]
		if i+1 < len(level) {
			c = both(c, level[i+1])
		}
		out = append(out, c)
	}
	return out
}

// both is the mean of two entries, or the one that is known.
func both(a, b uint16) uint16 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return uint16((uint32(a) + uint32(b)) / 2)
}

// at gives the levels as values at a resolution that is no finer, NaN where there is none.
func (r *record) at(fold uint8) []float64 {
	level := slices.Clone(r.level)
	for f := r.fold; f < fold; f++ {
		level = halve(level)
	}
	out := make([]float64, len(level))
	for i, c := range level {
		out[i] = math.NaN()
		if c != 0 {
			out[i] = math.Exp(decodeLevel(c))
		}
	}
	return out
}

func (r *record) clone() *record {
	c := *r
	c.level, c.sketch.bins = slices.Clone(r.level), slices.Clone(r.sketch.bins)
	return &c
}

// join makes one run of what two writers saw of it: a job that moves from gateway to gateway is seen by one at a time.
func join(a, b *record) *record {
	out := a.clone()
	out.last = max(a.last, b.last)
	out.noise = (a.noise*float32(a.count) + b.noise*float32(b.count)) / float32(max(1, a.count+b.count))
	out.count += b.count
	out.sketch.merge(&b.sketch)
	other := b.clone()
	for out.fold < other.fold {
		out.coarsen()
	}
	for other.fold < out.fold {
		other.coarsen()
	}
	for len(out.level) < len(other.level) {
		out.level = append(out.level, 0)
	}
	for i, c := range other.level {
		out.level[i] = both(out.level[i], c)
	}
	return out
}

// compare orders the versions of one record: a writer only adds, so the later is the larger. Two that diverged, as after a
// restart from an older snapshot, are ordered by their bytes.
func (r *record) compare(o *record) int {
	if c := cmp.Or(cmp.Compare(r.last, o.last), cmp.Compare(r.count, o.count)); c != 0 {
		return c
	}
	return bytes.Compare(r.append(nil), o.append(nil))
}
