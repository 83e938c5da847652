package incident

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/ledger"
)

// Result is what a step came to. Only the driver applies one. The zero value means nothing and is never returned.
type Result struct {
	kind    kind
	to      State           // goOn
	text    string          // a note: what was done, what is waited for, why it is planned again, why it is closed
	edit    func(*Incident) // applied with the result; nil: nothing besides
	by      Reason          // of a wait
	wait    time.Duration   // before the step is begun again, at the latest
	began   int             // planAgain: restarts that count as begun
	outcome Outcome
	until   time.Time             // of a wait: when time alone will end it; zero: not known
	besides string                // of a wait: added to its note
	then    func(context.Context) // words for people, once the result is recorded; nothing waits for them
	err     error                 // stop, and the error behind a wait
}

type kind int

const (
	goOn      kind = iota + 1 // the step is done
	again                     // the record changes; the same step begins again at once
	waitFor                   // the step cannot be done now
	planAgain                 // the plan is made anew from live state
	closes                    // the incident ends
	stop                      // this process does nothing more for it: it is not the leader any more, or ends
)

// GoOn records that the step is done and what it changed in the record.
func GoOn(to State, text string, edit ...func(*Incident)) Result {
	return Result{kind: goOn, to: to, text: text, edit: all(edit)}
}

// Again records a change and begins the same step again at once.
func Again(text string, edit ...func(*Incident)) Result {
	return Result{kind: again, text: text, edit: all(edit)}
}

// WaitFor begins the step again after a while, or as soon as something about the incident changes. Its reason says how long that can go on.
func WaitFor(by Reason, detail string, every time.Duration) Result {
	return Result{kind: waitFor, by: by, text: detail, wait: every}
}

// PlanAgain makes the plan anew, from live state. began counts restarts that came to nothing.
func PlanAgain(why string, began int) Result { return Result{kind: planAgain, text: why, began: began} }

// Close ends the incident.
func Close(o Outcome, reason string) Result { return Result{kind: closes, outcome: o, text: reason} }

// failed is what a step comes to that could not be done, by why. While that can change the step is tried again.
func failed(err error) Result {
	switch {
	case errors.Is(err, errLost), errors.Is(err, errNewer), errors.Is(err, ledger.ErrDeposed), errors.Is(err, cluster.ErrDeposed), errors.Is(err, context.Canceled):
		return Result{kind: stop, err: err}
	case errors.Is(err, errClosed):
		return Result{kind: again, err: err}
	}
	r := WaitFor(ReasonRetry, err.Error(), retryWait)
	r.err = err
	for _, c := range causes {
		if errors.Is(err, c.err) {
			r.by = c.reason
			break
		}
	}
	if !cluster.Retriable(err) || r.by == ReasonForbidden {
		r.wait = 4 * retryWait
	}
	return r
}

// causes are errors that have a reason of their own.
var causes = []struct {
	err    error
	reason Reason
}{
	{errStore, ReasonStore},
	{cluster.ErrForbidden, ReasonForbidden},
	{ledger.ErrReserved, ReasonReserved},
}

// with adds a change of the record to a result.
func (r Result) with(edit func(*Incident)) Result {
	was := r.edit
	r.edit = all([]func(*Incident){was, edit})
	return r
}

// tells adds what is told to people once the result is recorded.
func (r Result) tells(then func(context.Context)) Result {
	r.then = then
	return r
}

// all is what several edits do; nil if there are none.
func all(edits []func(*Incident)) func(*Incident) {
	edits = slices.DeleteFunc(edits, func(e func(*Incident)) bool { return e == nil })
	if len(edits) == 0 {
		return nil
	}
	return func(i *Incident) {
		for _, e := range edits {
			e(i)
		}
	}
}
