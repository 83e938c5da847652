// Package answer records what a person answers to an incident. The command line and the incident page use the same function.
//
// It promises that an answer is written only to an incident that can take it at that moment, by compare-and-swap, with the name of the
// person who gave it. It changes nothing else: the leader reads the answer and decides what follows from it.
package answer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// Store holds the incidents. bus.Bucket is one.
type Store interface {
	Get(ctx context.Context, id string) (incident.Incident, uint64, error)
	Put(ctx context.Context, id string, i incident.Incident, rev uint64) (uint64, error)
}

// Refused is the error if the incident does not take the answer. Nothing was written.
type Refused string

func (r Refused) Error() string { return string(r) }

// Answer is what a person says.
type Answer struct {
	Word   string // incident.Approves, Rejects, Holding or Releases
	By     string
	Reason string
	At     time.Time
	// Check, if not nil, sees the record before the answer is written to it. Its error refuses the answer.
	Check func(*incident.Incident) error
}

// maxText bounds who and why: they are kept in the record.
const maxText = 256

// text is the answer as the record keeps it, on one line.
func (a Answer) text() string {
	out := fmt.Sprintf("%s by %s at %s", a.Word, line(a.By), a.At.UTC().Format(time.DateTime))
	if why := line(a.Reason); why != "" {
		out += ": " + why
	}
	return out
}

func line(s string) string {
	r := []rune(strings.Join(strings.Fields(strings.ToValidUTF8(s, "�")), " "))
	return string(r[:min(len(r), maxText)])
}

// Give writes the answer and returns its text. An error that wraps bus.ErrNotFound means that there is no such incident.
func Give(ctx context.Context, s Store, id string, a Answer) (string, error) {
	for {
		i, rev, err := s.Get(ctx, id)
		if err != nil {
			return "", err
		}
		if err := Takes(&i, a.Word); err != nil {
			return "", err
		}
		if a.Check != nil {
			if err := a.Check(&i); err != nil {
				return "", err
			}
		}
		i.Approval = a.text()
		if _, err = s.Put(ctx, id, i, rev); errors.Is(err, bus.ErrConflict) {
			continue
		}
		return i.Approval, err
	}
}

// Takes reports why the incident does not take an answer with this word now; nil if it does.
func Takes(i *incident.Incident, word string) error {
	parents := word == incident.Holding || word == incident.Releases
	switch {
	case parents && i.Group == nil:
		return refused("incident %s is not the parent of others; to hold it alone, annotate its node or job with %s", i.ID, guard.HoldAnnotation)
	case i.Group != nil && !i.Open():
		return refused("incident %s has ended: %s", i.ID, i.Headline())
	case i.Group != nil && i.Approval != "":
		return refused("incident %s has not taken the last answer in yet (%s); try again in a moment", i.ID, i.Approval)
	case word == incident.Releases && i.Group.Held == "":
		return refused("incident %s is not held", i.ID)
	case !parents && !(i.Group != nil && word == incident.Rejects) && !i.Asks():
		return refused("incident %s does not wait for an answer: it is %s", i.ID, i.Headline())
	}
	return nil
}

func refused(format string, a ...any) error { return Refused(fmt.Sprintf(format, a...)) }
