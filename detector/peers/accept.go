package peers

import "math"

const apartMost = 1000 // of a logarithm: more than two numbers can be apart

// Accept takes a member's present place among its peers for its own: apart is the logarithm of its ratio to their middle, NaN where
// that is not known. What was open about it is over without a finding that says so. It is judged again once the place is learnt.
func (g *Group) Accept(i int, apart float64) {
	if i < 0 || i >= len(g.m) {
		return
	}
	m, of := &g.m[i], &g.of[i]
	if of.open {
		g.open--
	}
	if of.static {
		g.open--
	}
	offset := m.offset
	if !math.IsNaN(apart) {
		offset = fix(max(-apartMost, min(apart, apartMost))) << finer
	}
	g.begin(i)
	m.offset = offset
	of.open, of.static, of.judged, of.good, of.peak = false, false, true, 0, [windows]float64{}
}

// AcceptLevel takes the role's present level for its own, without a finding that says so.
func (g *Group) AcceptLevel() { g.level = level{scale: g.level.scale} }
