package series

import "fmt"

func (e *Engine) Debug(id ID) string {
	s := &e.states[id]
	k := s.slots[s.phase]
	hf, hs := e.limits(s)
	return fmt.Sprintf("ph %d n %d loc %.4f par %.3f sc %.4f fast %.3f slow %.3f hf %.3f hs %.3f what %d | ft q %.4f b %.4f n %d st q %.4f b %.4f near %.3f until %v", s.phase, k.n, k.loc, k.par, k.scale, s.fast, s.slow, hf, hs, s.what, s.fastTail.q, s.fastTail.b, s.fastTail.n, s.slowTail.q, s.slowTail.b, s.near, s.t < s.until)
}
