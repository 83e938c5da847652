package bus

import (
	"context"
	"fmt"
	"time"
)

// KillSwitch stops every action of the remediator while it is on; incidents under way wait where they stand. The key is KillKey.
type KillSwitch struct {
	On     bool      `json:"on"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// String says how the switch stands, for a person.
func (k KillSwitch) String() string {
	if !k.On {
		return "acting: resumed by " + k.By
	}
	why := ""
	if k.Reason != "" {
		why = " (" + k.Reason + ")"
	}
	return fmt.Sprintf("paused by %s since %s UTC%s: it changes nothing until `pitcrew resume`", k.By, k.Since.UTC().Format(time.DateTime), why)
}

// KillKey is the kill switch's key in the control bucket.
const KillKey = "kill-switch"

// Control is the bucket of what people say to the remediator.
func (b *Bus) Control() Bucket[KillSwitch] { return NewBucket[KillSwitch](b, ControlBucket) }

// WatchKillSwitch follows the kill switch, as Bucket.Watch does. What lies under its key and is none stops everything until somebody says
// what he wants: nobody's word is undone by what is not one.
func (b *Bus) WatchKillSwitch(ctx context.Context, current func(), handle func(KillSwitch)) error {
	spoilt := func(key string, _ error) {
		if key == path(KillKey) {
			handle(KillSwitch{On: true, By: "nobody", Reason: "the kill switch's record is not one: say `pitcrew pause` or `pitcrew resume`"})
		}
	}
	return b.Control().refusing(spoilt).Watch(ctx, current, func(c Change[KillSwitch]) {
		switch {
		case c.Key != KillKey:
		case !c.Deleted && c.Value.By == "":
			spoilt(path(KillKey), nil)
		default:
			handle(c.Value) // off when deleted
		}
	})
}
