package peers

import "math"

// Accept takes a member's present place among its peers for its own: apart is the logarithm of its ratio to their middle, NaN where
// that is not known. What was open about it is over without a finding that says so. It is judged again once the place is learnt.
func (g *Group) Accept(i int, apart float64) {
	if i < 0 || i >= len(g.m) {
		return
	}
	m := &g.m[i]
	if m.open {
		g.open--
	}
	if m.static {
		g.open--
	}
	if math.IsNaN(apart) {
		apart = m.offset
	}
	m.open, m.static, m.judged, m.suspect, m.good = false, false, true, false, 0
	m.offset, m.rounds, m.window, m.peak = apart, 0, window{}, [windows]float64{}
}

// AcceptLevel takes the role's present level for its own, without a finding that says so.
func (g *Group) AcceptLevel() { g.level = level{scale: g.level.scale} }
