package bus

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// A client looks for a server that is away every pauseLeast. One that is refused costs an API server a review of its token each time that it
// asks again: it waits for twice as long each time, up to pauseMost.
const (
	pauseLeast = 200 * time.Millisecond
	pauseMost  = 2 * time.Second
)

// pause is how long a client waits before it looks for the server again.
func (b *Bus) pause(int) time.Duration {
	d := min(pauseLeast<<min(b.shown.Load(), 8), pauseMost)
	return d + rand.N(d/2)
}

// token is what to show to the server now. A file that cannot be read is told, and the server refuses.
func (b *Bus) token() string {
	b.shown.Add(1)
	token, _, err := readTokenFile(b.opts.TokenFile)
	if err != nil {
		b.log.Error("no token to show", "error", err)
	}
	return token
}

// heard takes what the server says outside of any answer.
func (b *Bus) heard(err error) {
	switch {
	case errors.Is(err, nats.ErrAuthExpired):
		b.log.Info("the token's time is up; connecting with the one that stands in its file now")
	case isRefusal(err):
		if b.told.CompareAndSwap(false, true) {
			b.log.Warn("nats", "error", b.refusal(err))
		}
	case errors.Is(err, nats.ErrPermissionViolation):
		b.log.Error("NATS does not allow this to its role (bus/rights.go lists what each may)", "error", err)
	default:
		b.log.Warn("nats", "error", err)
	}
}

func isRefusal(err error) bool {
	return err != nil && (errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked) || strings.Contains(strings.ToLower(err.Error()), "authentication timeout"))
}

// away says why there is no connection, and what to do.
func (b *Bus) away(err error) error {
	if b.shown.Load() > 0 || isRefusal(b.nc.LastError()) {
		return b.refusal(err)
	}
	return fmt.Errorf("NATS at %s is not reachable (start it, or give its address by --nats): %w", b.opts.URL, err)
}

func (b *Bus) refusal(err error) error {
	if b.opts.TokenFile == "" {
		return fmt.Errorf("NATS at %s refuses this client: give a service account's token by PITCREW_NATS_TOKEN_FILE, or NATS' own credentials by PITCREW_NATS_CREDS: %w", b.opts.URL, err)
	}
	_, who, unreadable := readTokenFile(b.opts.TokenFile)
	if unreadable != nil {
		return unreadable
	}
	return fmt.Errorf("NATS at %s refuses the token in %s, of %s: does a remediator with --nats-keys run, and has that account a role (docs/threat-model.md)? The remediator's log says why: %w",
		b.opts.URL, b.opts.TokenFile, who, err)
}
