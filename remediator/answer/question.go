package answer

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/pitcrew/pitcrew/remediator/incident"
)

// ErrStale is the error if the incident asks something else by now than what the person saw.
var ErrStale = errors.New("the incident has changed since you saw it, so nothing was done; look again")

// Question identifies what a person is asked. An answer counts only for the question that the person saw.
func Question(i *incident.Incident) string {
	h := sha256.New()
	add := func(parts ...any) {
		for _, p := range parts {
			s := fmt.Sprint(p)
			fmt.Fprintf(h, "%d:%s", len(s), s)
		}
	}
	add(i.ID, i.State, i.Round, i.Approval != "", i.FaultyNodes())
	if i.Wait != nil {
		add(i.Wait.Reason)
	}
	if p := i.Plan; p != nil {
		add(p.Policy, p.Rule, p.Mode, p.Verbs())
	}
	for _, m := range i.Moves {
		add(m.Index, m.From, m.To)
	}
	if g := i.Group; g != nil {
		add(g.Held, g.Asking, len(g.Children))
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// Still is a check that an incident asks what the person saw.
func Still(question string) func(*incident.Incident) error {
	return func(i *incident.Incident) error {
		if Question(i) != question {
			return ErrStale
		}
		return nil
	}
}
