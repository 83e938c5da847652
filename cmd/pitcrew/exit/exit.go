// Package exit holds the exit codes of `pitcrew`, by which a script decides what to do next.
package exit

import (
	"context"
	"errors"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// The codes. Their meaning does not change between versions.
const (
	Done        = 0
	Failed      = 1 // anything that has no code of its own
	Usage       = 2 // wrong arguments or flags
	NotFound    = 3 // the object that was named does not exist
	Refused     = 4 // Pitcrew, NATS or the API server refuses: a state that does not allow it, or missing rights
	Unreachable = 5 // no connection to NATS or to the API server
	TimedOut    = 6 // connected, but no answer or no result in time
	Unhealthy   = 7 // the command worked, and reports a problem: status and doctor
)

// coded is an error with its code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// With gives an error a code; nil stays nil.
func With(code int, err error) error {
	if err == nil {
		return nil
	}
	return coded{err, code}
}

// kinds are the errors of other packages that have a code of their own. The first that matches counts.
var kinds = []struct {
	is   error
	code int
}{
	{bus.ErrUnauthorized, Refused},
	{bus.ErrUnreachable, Unreachable},
	{bus.ErrNotFound, NotFound},
	{cluster.ErrNotFound, NotFound},
	{cluster.ErrForbidden, Refused},
	{cluster.ErrHeld, Refused},
	{cluster.ErrNotHeld, Refused},
	{cluster.ErrNotQuarantined, Refused},
	{bus.ErrNoAgent, TimedOut},
	{context.DeadlineExceeded, TimedOut},
}

// Code is the exit code for an error.
func Code(err error) int {
	if err == nil {
		return Done
	}
	var c coded
	if errors.As(err, &c) {
		return c.code
	}
	for _, k := range kinds {
		if errors.Is(err, k.is) {
			return k.code
		}
	}
	return Failed
}
