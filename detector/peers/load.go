package peers

import "math"

const (
	loadRate  = 1.0 / 64
	loadClip  = 1.5 // of a logarithm
	loadFar   = 3   // scales of the loads: one that lies beyond is itself at fault and teaches nothing
	loadPairs = 32  // of members and rounds before a load explains anything
)

// load is how the members' times follow what they were given to do: one slope for the role, by least squares with a half-life.
type load struct {
	x      []float64 // distance of each member's load from the middle of them; NaN: unknown
	scale  float64
	rounds int // behind the scale
	xx, xy float64
	pairs  int
	given  bool // since the attempt began
}

// take reads the loads of a round. It is false where a role that has loads lacks them.
func (l *load) take(m []member, given []float64, scratch *[]float64) bool {
	if given == nil {
		return !l.given
	}
	l.given = true
	s := (*scratch)[:0]
	for i, v := range given {
		l.x[i] = math.NaN()
		if v > 0 && !math.IsInf(v, 0) && !math.IsNaN(m[i].y) {
			l.x[i] = math.Log(v)
			s = append(s, l.x[i])
		}
	}
	*scratch = s
	if len(s) < least {
		return false
	}
	mid, sum := middleOf(s).mid, 0.0
	far := loadClip
	if l.rounds > 0 {
		far = loadFar * l.scale
	}
	for i, x := range l.x {
		if !math.IsNaN(x) {
			l.x[i] = clip(x-mid, loadClip)
			sum += math.Abs(clip(x-mid, far))
		}
	}
	l.rounds++
	l.scale += rate(l.rounds) * (1.2533*sum/float64(len(s)) - l.scale)
	// A round weighs less by the next.
	l.xx *= 1 - loadRate
	l.xy *= 1 - loadRate
	return true
}

// slope is between none and twice in proportion.
func (l *load) slope() float64 {
	if l.pairs < loadPairs || l.xx <= 0 {
		return 0
	}
	return max(0, min(2, l.xy/l.xx))
}

// learn takes in how far a member of that load was from the middle.
func (l *load) learn(x, d float64) {
	if math.Abs(x) > loadFar*l.scale {
		return
	}
	l.xx += x * x
	l.xy += x * clip(d, loadClip)
	l.pairs = min(l.pairs+1, loadPairs)
}
