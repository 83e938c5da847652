// Package notify tells people what the remediator did: Alertmanager's v2 API, Slack and webhooks.
//
// It promises that telling never delays an action: Tell hands over and returns, each receiver has a bounded queue and a goroutine
// of its own, and where one is slow or gone the least important notices of its queue are dropped and counted. A notice has a key that names
// the incident and its stage, and is sent to a receiver once while this process lives; a new leader may send it again, with the
// same key, which receivers take for the same. A Slack thread is claimed in a store before it is opened, so that an incident has one
// thread whoever leads. Text of training processes and kernels is cleaned before any receiver sees it. The package knows incidents
// only as notices: who tells what is decided elsewhere.
package notify

import (
	"context"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/safetext"
)

// Stage says where an incident stands, or that there is none.
type Stage string

// The stages of a notice.
const (
	Opened   Stage = "opened"
	Progress Stage = "progress" // another step is done; only for receivers that follow
	Waiting  Stage = "waiting"  // nothing goes on without a person
	Updated  Stage = "updated"  // a parent has more children
	Closed   Stage = "closed"
	Finding  Stage = "finding" // an event on which no rule acts
	Canary   Stage = "canary"  // of no incident: it proves that notices arrive
)

// Notice is one thing to tell. Its JSON form is the data of a webhook's CloudEvent.
type Notice struct {
	Key      string `json:"key"` // of the occurrence; the CloudEvent's id
	Stage    Stage  `json:"stage"`
	Incident string `json:"incident,omitempty"`
	// Thread is the incident in whose thread the notice goes on: that of the first child, for a parent. Empty: its own.
	Thread      string `json:"thread,omitempty"`
	Nodes       int    `json:"nodes,omitempty"` // of a parent
	Cluster     string `json:"cluster"`
	Node        string `json:"node,omitempty"`
	GPU         string `json:"gpu_uuid,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Job         string `json:"job,omitempty"`
	Signal      string `json:"signal"`
	Severity    string `json:"severity"`
	Policy      string `json:"policy,omitempty"`
	Rule        string `json:"rule,omitempty"`
	State       string `json:"state,omitempty"`
	Outcome     string `json:"outcome,omitempty"`
	NeedsPerson bool   `json:"needs_person"`
	// Summary is the first line in every channel. Without one it is made of Broken, Doing and Person.
	Summary   string    `json:"summary"`
	Broken    string    `json:"broken,omitempty"` // what is broken
	Doing     string    `json:"doing,omitempty"`  // what is being done
	Person    string    `json:"person,omitempty"` // what a person is needed for; empty: no person is needed
	Detail    string    `json:"detail,omitempty"`
	LostSteps *int64    `json:"lost_steps,omitempty"`
	Began     time.Time `json:"began"`          // when the fault happened
	At        time.Time `json:"at"`             // of the stage
	Ended     time.Time `json:"ended,omitzero"` // when the incident closed
}

// Receiver sends notices to one place. Send is called by one goroutine at a time and must return when ctx ends. An error that
// wraps ErrRefused is not tried again. The proof is what shows that the notice arrived: what the receiver answered, or what was
// read back. It is empty if the receiver took the notice and nothing shows more than that.
type Receiver interface {
	Name() string // of the place, without credentials
	Send(ctx context.Context, n Notice) (proof string, err error)
}

// Follower is a Receiver that also gets the notices of stage Progress.
type Follower interface{ Follows() bool }

// Prober is a Receiver that takes canaries. Probe proves that a notice would arrive, without a person seeing it.
type Prober interface {
	Probe(ctx context.Context, canary Notice) error
}

// Bounds of what is told, in bytes. A whole evidence may be a quarter of a megabyte.
const (
	maxPart   = 240
	maxDetail = 2048
)

// NoPerson ends the first line of a notice that needs nobody.
const NoPerson = "No person is needed"

// tidy is the notice as receivers see it: no text of it controls a screen or is longer than a message takes, and its first line is made.
func (n Notice) tidy() Notice {
	if n.LostSteps != nil {
		lost := *n.LostSteps
		n.LostSteps = &lost
	}
	safetext.CleanAll(&n, maxDetail)
	for _, part := range []*string{&n.Broken, &n.Doing, &n.Person} {
		*part = safetext.Clean(*part, maxPart)
	}
	if n.Summary == "" {
		n.Summary = FirstLine(n.Broken, n.Doing, n.Person)
	}
	return n
}

// FirstLine states what is broken, what is being done, and what a person is needed for.
func FirstLine(broken, doing, person string) string {
	if person == "" {
		person = NoPerson
	} else {
		person = "A person is needed: " + person
	}
	var said []string
	for _, part := range []string{broken, doing, person} {
		if part = strings.TrimRight(strings.TrimSpace(part), "."); part != "" {
			said = append(said, part)
		}
	}
	return strings.Join(said, ". ") + "."
}

// thread is the incident in whose thread the notice goes on; empty for a notice of no incident.
func (n Notice) thread() string {
	if n.Thread != "" {
		return n.Thread
	}
	return n.Incident
}
