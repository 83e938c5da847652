package anomaly

import (
	"slices"

	"github.com/pitcrew/pitcrew/detector/statement"
)

// Say replaces what people said. It takes effect with the next End.
func (e *Engine) Say(all []statement.Statement) {
	e.statements, e.recheck, e.heardPeople = statement.Newest(all), true, true
	e.changed = true
}

// listen brings the reports to what people said.
func (e *Engine) listen() {
	muting := slices.ContainsFunc(e.statements, func(s statement.Statement) bool { return s.Verb == statement.Mute })
	if !e.recheck && !muting {
		return
	}
	e.recheck = false
	for _, r := range slices.Clone(e.reports) {
		held := false
		for i := range e.statements {
			s := &e.statements[i]
			if !statement.Match(s.Key, r.key) {
				continue
			}
			switch {
			case s.Verb == statement.Mute:
				held = held || e.wall.Before(s.Until)
			case e.at(r.onset).After(s.At):
			case s.Verb == statement.Acknowledge:
				if word := s.Words(); r.ack != word {
					r.ack, r.changed = word, true
				}
			case s.Verb == statement.Accept && r.accepted == "":
				r.accepted, r.changed = s.Words(), true
			}
		}
		if held && !r.held {
			e.counts.Muted++
		}
		if r.held && !held {
			r.changed = true
		}
		r.held = held // the end of what was said before is said all the same
		if r.accepted != "" {
			e.accept(r)
		}
	}
}

// accept makes the present level of what a report is about the baseline of its series, and ends the report.
func (e *Engine) accept(r *report) {
	ms := []*member{r.member}
	if c := r.compound; c != nil {
		ms = c.witnesses
		r.about.stories = slices.DeleteFunc(r.about.stories, func(x *compound) bool { return x == c })
	}
	for _, m := range ms {
		if m == nil || m.gone {
			continue
		}
		if m.tr.profile != unchosen && !m.certain && !m.absent {
			e.engines[m.tr.profile].Accept(m.tr.sid)
		}
		if m.certain {
			continue // a limit is no level: it stands while it is passed
		}
		if m.report != nil {
			m.report.accepted = r.accepted
		}
		e.over(m, e.now, closedAccepted)
	}
	if slices.Contains(e.reports, r) {
		e.close(r, closedAccepted)
	}
}
