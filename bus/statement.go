package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Statement is what a person says of statistical findings, on one node or on all. Agents follow the bucket and honour a change at
// once; a statement outlives restarts of both.
type Statement struct {
	Verb   string    `json:"verb"`           // ack, mute or accept
	Node   string    `json:"node,omitempty"` // empty: every node
	Key    string    `json:"key"`            // a condition's key, such as "anomaly/sm-clock gpu/GPU-1"; either half may be or end in "*"
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"`
	Until  time.Time `json:"until,omitzero"` // of mute
}

// The verbs of statements.
const (
	StateAck    = "ack"
	StateMute   = "mute"
	StateAccept = "accept"
)

// MaxMute bounds how long a mute lasts, and statementsFor how long the bucket keeps any statement.
const (
	MaxMute       = 30 * 24 * time.Hour
	statementsFor = 31 * 24 * time.Hour
	maxStatement  = 256 // bytes of a key, a node or a name: the first two are in a NATS subject, escaped
	maxReason     = 1024
)

// ID is the key under which a statement lies in its bucket: a new one of the same verb, node and findings replaces it. Each of the three
// is a token of the subject, so that the right to state can be given by them: $KV.PITCREW_STATEMENTS.ack.> is to acknowledge anything.
func (s Statement) ID() string { return s.Verb + "\n" + s.Node + "\n" + s.Key }

// Validate reports every fault of a statement.
func (s Statement) Validate() error {
	var errs []error
	if s.Verb != StateAck && s.Verb != StateMute && s.Verb != StateAccept {
		errs = append(errs, fmt.Errorf("verb %q: ack, mute or accept", s.Verb))
	}
	if s.Key == "" {
		errs = append(errs, errors.New("key is empty: name a finding as `pitcrew anomaly list` does"))
	}
	if s.At.IsZero() {
		errs = append(errs, errors.New("at is missing"))
	}
	if s.Verb == StateMute && !s.Until.After(s.At) {
		errs = append(errs, errors.New("a mute needs an end after its beginning"))
	}
	if s.Verb == StateMute && s.Until.Sub(s.At) > MaxMute {
		errs = append(errs, fmt.Errorf("a mute lasts at most %d days", int(MaxMute.Hours()/24)))
	}
	for _, x := range []struct {
		name, v string
		most    int
	}{{"key", s.Key, maxStatement}, {"node", s.Node, maxStatement}, {"by", s.By, maxStatement}, {"reason", s.Reason, maxReason}} {
		if len(x.v) > x.most {
			errs = append(errs, fmt.Errorf("%s has more than %d bytes", x.name, x.most))
		}
	}
	return errors.Join(errs...)
}

// Of reports whether the statement is about a node.
func (s Statement) Of(node string) bool {
	if p, star := strings.CutSuffix(s.Node, "*"); star {
		return strings.HasPrefix(node, p)
	}
	return s.Node == "" || s.Node == node
}

// WatchStatements gives what people say, as Bucket.Watch does. What is malformed, or lies under another key than its own (who wrote it
// may have had the right to that key alone), is handed to refused and nowhere else.
func (b *Bus) WatchStatements(ctx context.Context, current func(), handle func(Change[Statement]), refused func(key string, err error)) error {
	return b.Statements().refusing(refused).Watch(ctx, current, func(c Change[Statement]) {
		if !c.Deleted {
			err := c.Value.Validate()
			if id := c.Value.ID(); err == nil && id != c.Key {
				err = fmt.Errorf("it is the statement %q, and lies under another's key", id)
			}
			if err != nil {
				refused(c.Key, err)
				c.Value, c.Deleted = Statement{}, true // and what lay there before is no more
			}
		}
		handle(c)
	})
}

// Statements is the bucket of what people say of statistical findings. The key is the statement's ID.
func (b *Bus) Statements() Bucket[Statement] { return NewBucket[Statement](b, StatementBucket) }
