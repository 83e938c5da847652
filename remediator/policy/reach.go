package policy

import "github.com/pitcrew/pitcrew/event"

// Reach is the most that an event can come to, whatever its node, its job and its incident are.
type Reach struct {
	Acts     bool // a rule with a step that changes something may match
	Notifies bool // a rule that only notifies may match
	Default  bool // no rule may match, and a policy notifies by default
}

// Reach bounds what Decide comes to by the event's type, signal and severity alone. It builds no facts and runs no expression, so it costs
// little enough to be asked of every event of a stream.
func (b *Book) Reach(e event.Event) (r Reach) {
	acts := neverActs(e) == ""
	signal := e.Data.Cause.Signal()
	for i := range b.pages {
		p := &b.pages[i]
		if p.Spec.Mode == Off {
			continue
		}
		r.Default = r.Default || p.Spec.Default != DefaultIgnore
		if !acts {
			continue
		}
		exact := p.exact[signal]
		for k := range p.Spec.Rules {
			if !p.globs[k] && (exact == nil || !exact[k]) {
				continue
			}
			w := &p.Spec.Rules[k].When
			if _, ok := w.Signal.Match(signal); !ok || w.Severity != "" && !e.Data.Severity.AtLeast(w.Severity) {
				continue
			}
			r.Acts, r.Notifies = r.Acts || !p.notifies[k], r.Notifies || p.notifies[k]
		}
	}
	return r
}

// onlyNotifies reports whether a rule has no step that changes something.
func onlyNotifies(r Rule) bool {
	for _, s := range r.Steps {
		if s.Do != Notify {
			return false
		}
	}
	return true
}
