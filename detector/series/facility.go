package series

// context is the costlier memory of a series of the facility profile.
type context struct{}

func (e *Engine) facility(id ID, s *state, x Sample, v, dt float64) Verdict {
	return e.training(id, s, x, v, dt)
}
