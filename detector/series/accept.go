package series

// Accept takes the present level of an open finding as the new baseline at once, as the engine itself does with one that stays. It
// reports whether there was an open finding.
func (e *Engine) Accept(id ID) bool {
	s := &e.states[id]
	f := e.open[id]
	if s.what == 0 || f == nil {
		return false
	}
	if e.cfg.Profile == Facility {
		f.State, f.Ended, s.what = StateAccepted, s.t, 0
		return true
	}
	k := s.phase
	f.back = s.loc[k]
	if s.n[k] >= ringSize {
		s.restart(k)
	} else { // too few values of the work yet: it is learnt anew
		s.forget()
	}
	e.ends(s, f, StateAccepted)
	return true
}

// Open reports whether the series has an open finding.
func (e *Engine) Open(id ID) bool { return e.states[id].what != 0 }
