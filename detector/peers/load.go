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
	x      []fixed // distance of each member's load from the middle of them; missing: unknown
	scale  float64
	rounds int // behind the scale
	xx, xy float64
	pairs  int
	given  bool // since the attempt began
}

// take reads the loads of a round. It is false where a role that has loads lacks them.
func (l *load) take(y []fixed, given []float64, scratch []fixed) bool {
	if given == nil {
		return !l.given
	}
	l.given = true
	logarithms(l.x, given)
	s := scratch[:0]
	for i, x := range l.x {
		if y[i] == missing {
			l.x[i] = missing
		} else if x != missing {
			s = append(s, x)
		}
	}
	if len(s) < least {
		return false
	}
	mid, sum := middleOf(s, s[0]).mid, fixed(0)
	far := fix(loadClip)
	if l.rounds > 0 {
		far = fix(loadFar * l.scale)
	}
	for i, x := range l.x {
		if x != missing {
			l.x[i] = (x - mid).clip(fix(loadClip))
			sum += (x - mid).clip(far).magnitude()
		}
	}
	l.rounds++
	l.scale += rate(l.rounds) * (1.2533*sum.float()/float64(len(s)) - l.scale)
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

// learnLoads learns of all that the noise is learnt of.
func (g *Group) learnLoads() {
	for i := range g.m {
		m := &g.m[i]
		if m.marks&(none|blind|suspect) == 0 && (!g.apart || m.marks&fresh != 0) {
			g.load.learn(g.load.x[i].float(), (m.d + g.of[i].explained).float())
		}
	}
}
