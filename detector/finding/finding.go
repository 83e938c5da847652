// Package finding is what the detector's engines return. It promises to import no engine, so that every engine and everything that
// passes findings on can use it.
package finding

import (
	"encoding/json"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// Finding is an event and what it does to the node's conditions.
type Finding struct {
	Event         event.Event
	Key           string // of the condition: the signal and what it is about
	BootID        string // a condition of another boot is history
	Active        bool   // the condition is open; false: it ended
	ConditionOnly bool   // nothing new happened: set the condition, publish no event
}

// Open is a finding that has not ended, as an engine keeps it. A snapshot of an engine holds its open findings, so that they outlive the
// process.
type Open struct {
	Key    string          `json:"key"`
	BootID string          `json:"boot_id"`
	Seen   time.Time       `json:"seen"`
	Maker  string          `json:"maker,omitempty"` // of a lost GPU; empty: NVIDIA
	Raw    json.RawMessage `json:"event"`
	Event  event.Event     `json:"-"` // Raw, decoded
}
