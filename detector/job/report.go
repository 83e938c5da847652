package job

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// renewEvery is how often what stands is told again: with what it cost by then, and as a sign of life. The remediator acts on nothing that was
// not told again within its guard.FreshFor.
const renewEvery = 5 * time.Second

// standing is something that was found and has not ended.
type standing interface {
	// evidence is what is known of it now.
	evidence(now time.Time, state event.State) event.Evidence
	// accept takes its present level for the baseline and forgets it. It reports false, and does nothing, where there is no level.
	accept(now time.Time) bool
}

// report is what was said of something that stands, and what people said of that.
type report struct {
	of        standing
	key       string
	event     event.Event // as it was when it was found
	published bool
	mutes     []string  // that hold now, as they are told
	acks      []string  // the same, and for as long as it stands
	refused   time.Time // of the newest acceptance that cannot be
	renewed   time.Time
	changed   bool // since then
}

// open takes up what was found: it is said, unless people muted it.
func (e *Engine) open(now time.Time, of standing, key string, ev event.Event) *report {
	r := &report{of: of, key: key, event: ev}
	e.reports[r] = true
	e.hear(now, r, true)
	e.speak(now, r)
	return r
}

// speak says a report that may be said and was not, and renews what others list.
func (e *Engine) speak(now time.Time, r *report) {
	switch {
	case !r.published && len(r.mutes) == 0:
		r.published = true
		e.emit(r, r.now(now, event.StateOpen), true, false)
	case r.changed, now.Sub(r.renewed) >= renewEvery, now.Before(r.renewed):
		e.emit(r, r.now(now, event.StateOpen), true, true)
	default:
		return
	}
	r.renewed, r.changed = now, false
}

// now is the event as things stand.
func (r *report) now(now time.Time, state event.State) event.Event {
	ev := r.event
	if !now.Equal(ev.Time) { // else it is new, and whoever found it does not hold the report yet
		ev.Time, ev.Data.Evidence = now, r.of.evidence(now, state)
	}
	ev.Data.Evidence.Told = slices.Concat(ev.Data.Evidence.Told, r.acks, r.mutes)
	return ev
}

// close says that what stood is over, to those who heard of it.
func (e *Engine) close(now time.Time, r *report, ev event.Evidence) {
	delete(e.reports, r)
	over := r.event
	over.Time, over.Data.Evidence = now, ev
	if r.published {
		over.Type, over.ID = event.Recovery, event.NewID(over.ID, "recovery")
	}
	e.emit(r, over, false, !r.published)
}

func (e *Engine) emit(r *report, ev event.Event, active, listOnly bool) {
	e.out = append(e.out, finding.Finding{Event: ev, Key: r.key, Active: active, ConditionOnly: listOnly})
}

// Say replaces what people said. It takes effect with the next Tick.
func (e *Engine) Say(all []statement.Statement) {
	e.statements, e.recheck, e.heardPeople = statement.Newest(all), true, true
	e.counts.Spoken++
}

// listen brings what stands to what people said, and says what no mute holds back any more.
func (e *Engine) listen(now time.Time) {
	if !e.nextEnd.IsZero() && !now.Before(e.nextEnd) {
		e.recheck = true
	}
	if e.recheck {
		e.recheck, e.nextEnd = false, time.Time{}
		for i := range e.statements {
			if s := &e.statements[i]; s.Verb == statement.Mute && s.Until.After(now) && (e.nextEnd.IsZero() || s.Until.Before(e.nextEnd)) {
				e.nextEnd = s.Until
			}
		}
		for _, r := range e.standing() {
			e.hear(now, r, false)
		}
	}
	for _, r := range e.standing() {
		e.speak(now, r)
	}
}

// standing are the reports in the order of their keys.
func (e *Engine) standing() []*report {
	if len(e.reports) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Keys(e.reports), func(a, b *report) int {
		return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(a.event.ID, b.event.ID))
	})
}

// hear brings one report to what people said. Acknowledgement and acceptance are of what had been found when they were made, so there
// is none of what is new.
func (e *Engine) hear(now time.Time, r *report, isNew bool) {
	acks, mutes := slices.Clone(r.acks), []string(nil)
	var accepted *statement.Statement
	for i := range e.statements {
		s := &e.statements[i]
		if !s.About(r.key, r.event.Data.Target.Node) {
			continue
		}
		switch {
		case s.Verb == statement.Mute:
			if now.Before(s.Until) {
				mutes = newest(mutes, s.Words())
			}
		case isNew, r.event.Time.After(s.At):
		case s.Verb == statement.Acknowledge:
			acks = newest(acks, s.Words())
		case s.Verb == statement.Accept:
			accepted = s
		}
	}
	if len(mutes) > 0 && len(r.mutes) == 0 {
		e.counts.Muted++
	}
	r.changed = r.changed || !slices.Equal(acks, r.acks) || !slices.Equal(mutes, r.mutes)
	r.acks, r.mutes = acks, mutes
	if accepted != nil && accepted.At.After(r.refused) {
		e.accept(now, r, accepted)
	}
}

// maxTold bounds what of one kind is told of one finding.
const maxTold = 8

// newest adds what is told to what was; the same is told once, the oldest least.
func newest(all []string, w string) []string {
	if slices.Contains(all, w) {
		return all
	}
	all = append(all, w)
	return all[max(0, len(all)-maxTold):]
}

// accept ends a report without a recovery: its level is the baseline from now on.
func (e *Engine) accept(now time.Time, r *report, s *statement.Statement) {
	ev := r.now(now, event.StateAccepted)
	if !r.of.accept(now) {
		r.refused = s.At
		e.counts.Unacceptable++
		return
	}
	e.counts.Accepted++
	ev.Data.Evidence.Samples, ev.Data.Evidence.PromQL = nil, ""
	ev.Data.Evidence.Told = append(ev.Data.Evidence.Told, s.Words())
	delete(e.reports, r)
	e.emit(r, ev, false, true)
}

// subject is what a finding of an attempt is about, as the second half of its key.
func (a *attempt) subject(parts ...string) string {
	job := "job/" + plain(a.key.job)
	if pod, alone := strings.CutPrefix(a.key.job, "pod/"); alone {
		job = "pod/" + plain(pod)
	}
	return strings.Join(append(append([]string{job}, parts...), fmt.Sprint("attempt/", a.key.attempt)), "/")
}

const maxPlain = 64

// plain makes a name that a pod chose a part of a key: without spaces, stars and slashes, and bounded.
func plain(name string) string {
	p := url.PathEscape(name)
	if len(p) <= maxPlain {
		return p
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("%s~%016x", p[:maxPlain-17], h.Sum64())
}
