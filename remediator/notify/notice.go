// Package notify tells people what the remediator did: to Alertmanager's v2 API and to webhooks.
//
// It promises that telling never delays an action: Tell hands over and returns, each receiver has a bounded queue and a goroutine
// of its own, and where one is slow or gone the oldest notices of its queue are dropped and counted. A notice has a key that names
// the incident and its stage, and is sent to a receiver once while this process lives; a new leader may send it again, with the
// same key, which receivers take for the same. It knows incidents only as notices: who tells what is decided elsewhere.
package notify

import (
	"context"
	"time"
)

// Stage says where an incident stands, or that there is none.
type Stage string

// The stages of a notice.
const (
	Opened  Stage = "opened"
	Waiting Stage = "waiting" // nothing goes on without a person
	Updated Stage = "updated" // a parent has more children
	Closed  Stage = "closed"
	Finding Stage = "finding" // an event on which no rule acts
)

// Notice is one thing to tell. Its JSON form is the data of a webhook's CloudEvent.
type Notice struct {
	Key      string `json:"key"` // of the occurrence; the CloudEvent's id
	Stage    Stage  `json:"stage"`
	Incident string `json:"incident,omitempty"`
	// Thread is the incident in whose thread the notice goes on: that of the first child, for a parent. Empty: its own.
	Thread      string    `json:"thread,omitempty"`
	Nodes       int       `json:"nodes,omitempty"` // of a parent
	Cluster     string    `json:"cluster"`
	Node        string    `json:"node,omitempty"`
	GPU         string    `json:"gpu_uuid,omitempty"`
	Namespace   string    `json:"namespace,omitempty"`
	Job         string    `json:"job,omitempty"`
	Signal      string    `json:"signal"`
	Severity    string    `json:"severity"`
	Policy      string    `json:"policy,omitempty"`
	Rule        string    `json:"rule,omitempty"`
	State       string    `json:"state,omitempty"`
	Outcome     string    `json:"outcome,omitempty"`
	NeedsPerson bool      `json:"needs_person"`
	Summary     string    `json:"summary"`
	Detail      string    `json:"detail,omitempty"`
	LostSteps   *int64    `json:"lost_steps,omitempty"`
	Began       time.Time `json:"began"`          // when the fault happened
	At          time.Time `json:"at"`             // of the stage
	Ended       time.Time `json:"ended,omitzero"` // when the incident closed
}

// Receiver sends notices to one place. Send is called by one goroutine at a time and must return when ctx ends. An error that
// wraps ErrRefused is not tried again.
type Receiver interface {
	Name() string // of the place, without credentials
	Send(ctx context.Context, n Notice) error
}
