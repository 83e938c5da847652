package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
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

// Why there is no connection. The errors of Wait and Explain wrap one of them.
var (
	ErrUnreachable  = errors.New("NATS is not reachable")
	ErrUnauthorized = errors.New("NATS refuses this client")
)

// lost is an error of a server that was waited for. Its text replaces a bare "context deadline exceeded", which it wraps beside the kind.
type lost struct {
	says string
	of   error
	kind error // nil: the server was reached and did not answer
}

func (l *lost) Error() string { return l.says }

func (l *lost) Unwrap() []error {
	if l.kind == nil {
		return []error{l.of}
	}
	return []error{l.kind, l.of}
}

// away says for how long a connection has been looked for, why there is none, and what to do. err is why it is looked for no longer.
func (b *Bus) away(err error) error {
	last := b.nc.LastError() // of a connection that was opened; none is known of the first, which the library forgets
	refused := isRefusal(last) || b.dialled() == nil && (b.shown.Load() > 0 || last == nil && b.nc.AuthRequired())
	last = cmp.Or(last, b.dialled())
	switch {
	case last == nil && refused:
		last = errors.New("it does not let this client in")
	case last == nil:
		last = errors.New("what listens there does not greet as NATS does")
	}
	tried := fmt.Errorf("tried for %s: %w", time.Since(time.Unix(0, b.since.Load())).Round(100*time.Millisecond), last)
	if refused {
		return &lost{b.refusal(tried).Error(), err, ErrUnauthorized}
	}
	return &lost{fmt.Sprintf("NATS at %s is not reachable, %v; start it, or give its address by --nats or PITCREW_NATS", b.at, tried), err, ErrUnreachable}
}

// Explain is err, with the server's name and what to do where it is one of an answer that did not come in time.
func (b *Bus) Explain(err error) error {
	var told *lost
	switch {
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout), errors.As(err, &told):
		return err
	case !b.nc.IsConnected():
		return b.away(err)
	}
	return &lost{fmt.Sprintf("NATS at %s is reached, and does not answer in time: %s; see whether its JetStream runs, and whether this client's role may ask this (docs/threat-model.md)",
		b.at, strings.TrimSuffix(err.Error(), ": "+context.DeadlineExceeded.Error())), err, nil}
}

func (b *Bus) refusal(cause error) error {
	if b.opts.TokenFile == "" {
		return fmt.Errorf("NATS at %s refuses this client, %w; give a service account's token by PITCREW_NATS_TOKEN_FILE, or NATS' own credentials by PITCREW_NATS_CREDS", b.at, cause)
	}
	_, who, unreadable := readTokenFile(b.opts.TokenFile)
	if unreadable != nil {
		return fmt.Errorf("NATS at %s refuses this client: %w", b.at, unreadable)
	}
	return fmt.Errorf("NATS at %s refuses the token in %s, of %s, %w; does a remediator with --nats-keys run, and has that account a role (docs/threat-model.md)? The remediator's log says why",
		b.at, b.opts.TokenFile, who, cause)
}

// dialer keeps the last failure to open a connection, which the library tells to nobody while it tries again.
type dialer struct {
	net.Dialer
	failed *atomic.Pointer[error]
}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	c, err := d.Dialer.Dial(network, address)
	if err != nil {
		d.failed.Store(&err)
	} else {
		d.failed.Store(nil)
	}
	return c, err
}

// dialled is why the last connection could not be opened; nil if it could.
func (b *Bus) dialled() error {
	if err := b.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Redacted is the address of servers as it may be printed: scheme and host, with no password and no token in it.
func Redacted(servers string) string {
	all := strings.Split(servers, ",")
	for i, s := range all {
		all[i] = redactedOne(strings.TrimSpace(s))
	}
	return strings.Join(all, ",")
}

func redactedOne(server string) string {
	plain := !strings.Contains(server, "://") // as the library takes it: nats://
	if plain {
		server = "nats://" + server
	}
	u, err := url.Parse(server)
	if err != nil {
		return "(an address that cannot be read)" // nor can what is a password in it
	}
	at := u.Host
	if u.User != nil {
		if _, two := u.User.Password(); two {
			at = u.User.Username() + ":xxxxx@" + at
		} else { // a token
			at = "xxxxx@" + at
		}
	}
	if plain {
		return at
	}
	return u.Scheme + "://" + at
}

// unnamed is an error of the library without the address that it repeats, secrets included.
func unnamed(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}
