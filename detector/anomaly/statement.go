package anomaly

import (
	"slices"
	"strings"
	"time"
)

// Verb is what a person says of findings.
type Verb string

// Verbs.
const (
	// Acknowledge: someone knows. The finding stands; it is not said again when it becomes worse.
	Acknowledge Verb = "ack"
	// Mute: what matches is not said until Until. What is still open then is said.
	Mute Verb = "mute"
	// Accept: the present level is the new baseline, and the finding is over without having recovered.
	Accept Verb = "accept"
)

// Statement is what a person said. Key is a finding's condition key, "anomaly/sm-clock gpu/GPU-1"; either half may be "*", or end
// with one. Acknowledge and Accept are of what is open at At, and of nothing later.
type Statement struct {
	Verb   Verb
	Key    string
	By     string
	Reason string
	At     time.Time
	Until  time.Time // of Mute
}

// maxStatements bounds how many are kept; the newest count.
const maxStatements = 4096

// Say replaces what people said. It takes effect with the next End.
func (e *Engine) Say(all []Statement) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Statement) int { return a.At.Compare(b.At) })
	if over := len(all) - maxStatements; over > 0 {
		all = all[over:]
	}
	e.statements, e.recheck, e.heardPeople = all, true, true
	e.changed = true
}

// Match reports whether a key is one that a statement names.
func Match(pattern, key string) bool {
	if pattern == "*" || pattern == key {
		return true
	}
	ps, pt, ok := strings.Cut(pattern, " ")
	ks, kt, _ := strings.Cut(key, " ")
	if !ok {
		pt = "*"
	}
	return glob(ps, ks) && glob(pt, kt)
}

func glob(pattern, s string) bool {
	if p, star := strings.CutSuffix(pattern, "*"); star {
		return strings.HasPrefix(s, p)
	}
	return pattern == s
}

// listen brings the reports to what people said.
func (e *Engine) listen() {
	muting := slices.ContainsFunc(e.statements, func(s Statement) bool { return s.Verb == Mute })
	if !e.recheck && !muting {
		return
	}
	e.recheck = false
	for _, r := range slices.Clone(e.reports) {
		held := false
		for i := range e.statements {
			s := &e.statements[i]
			if !Match(s.Key, r.key) {
				continue
			}
			switch {
			case s.Verb == Mute:
				held = held || e.wall.Before(s.Until)
			case e.at(r.onset).After(s.At):
			case s.Verb == Acknowledge:
				if word := "acknowledged by " + s.said(); r.ack != word {
					r.ack, r.changed = word, true
				}
			case s.Verb == Accept && r.accepted == "":
				r.accepted, r.changed = "accepted by "+s.said(), true
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

func (s *Statement) said() string {
	if s.Reason == "" {
		return s.By
	}
	return s.By + ": " + s.Reason
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
