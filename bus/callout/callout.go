// Package callout decides who may connect to NATS, and as what: nats-server asks it of each client (its auth callout), it has the
// API server review the service account's token that the client shows, and answers with the rights of that account's role.
//
// It promises that a client's rights are those of bus.RightsOf for the node or pod that its token is bound to, and end with the token
// or after an hour; that without an answer of the API server nobody is let in; and that several may run at once and share the questions.
// It decides when a client connects and never again: one that is connected stays, whatever becomes of its pod, until its rights end.
package callout

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/pitcrew/pitcrew/bus"
)

const (
	question  = "$SYS.REQ.USER.AUTH"  // the subject of nats-server's questions
	curveOf   = "Nats-Server-Xkey"    // header: to which key the answer is encrypted
	sooner    = 40 * time.Millisecond // back than clients: who asks before there is somebody to ask waits for 2 s
	queue     = "pitcrew-callout"     // of all that answer, one is asked
	meantFor  = "nats-authorization-request"
	within    = 1500 * time.Millisecond // nats-server waits for 2 s
	atOnce    = 64                      // reviews under way; more wait, and are dropped when nobody waits for them any more
	stays     = time.Hour               // at most, until a client has to show its token again
	spread    = 0.2                     // of stays: not all clients come back at once
	perMinute = time.Minute             // a refusal is logged once
	maxTold   = 1024
)

// What became of a client's wish to connect, as Count is told.
const (
	Allowed   = "allowed"
	Malformed = "malformed" // question: not from a server of this configuration
	NoToken   = "no-token"
	BadToken  = "token"       // refused by the API server, or not meant for NATS
	NoRole    = "account"     // an account without a role
	Unbound   = "unbound"     // an agent's token without a node, a gateway's without a pod
	Unasked   = "unavailable" // the API server gave no answer
)

// ErrRefused is wrapped by a Reviewer where the API server says that a token is none; any other error of it is no answer.
var ErrRefused = errors.New("the API server refuses the token")

// Reviewer has the API server say whom a token is for. A token of another audience than bus.Audience is refused.
type Reviewer interface {
	ReviewToken(ctx context.Context, token string) (bus.Bearer, error)
}

// Options of Serve. Reviewer and Keys are required.
type Options struct {
	URL       string // of NATS
	Cluster   string // name of the Kubernetes cluster, as in subjects
	Namespace string // of Pitcrew's accounts
	Keys      Keys
	Account   string // NATS account that clients are put into; default $G
	Reviewer  Reviewer
	Now       func() time.Time
	Logger    *slog.Logger
	Count     func(outcome string) // may be called by several goroutines at once
}

// roles are those of the service accounts in Pitcrew's namespace, and what a token of theirs must be bound to.
var roles = map[string]struct {
	role bus.Role
	name func(bus.Bearer) string // under which it speaks; nil: it needs none
	lack string
}{
	"pitcrew-agent":      {bus.RoleAgent, func(b bus.Bearer) string { return b.Node }, "node"},
	"pitcrew-gateway":    {bus.RoleGateway, func(b bus.Bearer) string { return b.Pod }, "pod"},
	"pitcrew-remediator": {role: bus.RoleRemediator},
	"pitcrew-operator":   {role: bus.RoleOperator},
	"pitcrew-reader":     {role: bus.RoleReader},
}

// refusal is why a client is not let in.
type refusal struct {
	outcome string
	err     error
}

func (r *refusal) Error() string { return r.err.Error() }

func refuse(outcome, format string, a ...any) error {
	return &refusal{outcome, fmt.Errorf(format, a...)}
}

// Callout answers a NATS server's questions.
type Callout struct {
	o       Options
	nc      *nats.Conn
	places  chan struct{}
	ctx     context.Context
	stop    context.CancelFunc
	answers sync.WaitGroup

	mu   sync.Mutex
	told map[string]time.Time
}

// Start connects, in the background if NATS is not there yet, and answers until Close.
func Start(o Options) (*Callout, error) {
	if o.Account == "" {
		o.Account = "$G"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Count == nil {
		o.Count = func(string) {}
	}
	user, err := o.Keys.user.PublicKey()
	if err != nil {
		return nil, err
	}
	c := &Callout{o: o, places: make(chan struct{}, atOnce), told: map[string]time.Time{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.nc, err = nats.Connect(o.URL, nats.Name("pitcrew-callout"), nats.Nkey(user, o.Keys.user.Sign), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), nats.ReconnectWait(sooner), nats.ReconnectJitter(0, 0), nats.PingInterval(5*time.Second), nats.MaxPingsOutstanding(2),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			o.Logger.Warn("NATS callout; is deploy/nats-auth.conf in force, with these keys' public halves?", "error", err)
		}))
	if err != nil {
		return nil, fmt.Errorf("NATS callout: %w", err)
	}
	_, err = c.nc.QueueSubscribe(question, queue, func(m *nats.Msg) {
		c.answers.Go(func() {
			select {
			case c.places <- struct{}{}:
				defer func() { <-c.places }()
				c.answer(m)
			case <-c.ctx.Done():
			}
		})
	})
	if err == nil && c.nc.IsConnected() {
		err = c.nc.FlushTimeout(within)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("NATS callout: %w", err)
	}
	return c, nil
}

// Close ends what is under way. Clients that wait for an answer are refused by the server, and ask again.
func (c *Callout) Close() {
	c.stop()
	c.nc.Close()
	c.answers.Wait()
}

func (c *Callout) answer(m *nats.Msg) {
	server := m.Header.Get(curveOf)
	q, err := c.read(m.Data, server)
	if err != nil {
		c.tell(Malformed, "", err)
		return // the server counts no answer as a refusal
	}
	if c.o.Now().After(time.Unix(q.Expires, 0)) {
		return // nobody waits for it
	}
	a := jwt.NewAuthorizationResponseClaims(q.UserNkey)
	a.Audience = q.Server.ID
	if a.Jwt, err = c.decide(q); err != nil {
		a.Error = err.Error()
	}
	raw, err := a.Encode(c.o.Keys.issuer)
	if err == nil {
		var sealed []byte
		if sealed, err = c.o.Keys.curve.Seal([]byte(raw), server); err == nil {
			err = m.Respond(sealed)
		}
	}
	if err != nil {
		c.o.Logger.Warn("NATS callout: answer", "error", err)
	}
}

// read opens a question. One that was not encrypted to our key did not come by the configuration that we know.
func (c *Callout) read(sealed []byte, server string) (*jwt.AuthorizationRequestClaims, error) {
	if !nkeys.IsValidPublicCurveKey(server) {
		return nil, errors.New("the question is not encrypted: set auth_callout.xkey as deploy/nats-auth.conf does")
	}
	raw, err := c.o.Keys.curve.Open(sealed, server)
	if err != nil {
		return nil, fmt.Errorf("the question is encrypted to another key: %w", err)
	}
	q, err := jwt.DecodeAuthorizationRequestClaims(string(raw))
	if err != nil {
		return nil, err
	}
	if q.Audience != meantFor || q.Issuer != q.Server.ID || !nkeys.IsValidPublicUserKey(q.UserNkey) {
		return nil, errors.New("the question is no server's")
	}
	return q, nil
}

// decide gives the client's rights as a signed user, or says why it has none.
func (c *Callout) decide(q *jwt.AuthorizationRequestClaims) (string, error) {
	ctx, cancel := context.WithTimeout(c.ctx, within)
	defer cancel()
	who, err := c.bearer(ctx, q.ConnectOptions.Token)
	var u *jwt.UserClaims
	if err == nil {
		u, err = c.user(q, who)
	}
	if err != nil {
		outcome := Unasked
		if r := (*refusal)(nil); errors.As(err, &r) {
			outcome = r.outcome
		}
		c.tell(outcome, q.ClientInformation.Host+" "+q.ClientInformation.Name, err)
		return "", err
	}
	c.o.Count(Allowed)
	c.o.Logger.Debug("let into NATS", "as", u.Name, "from", q.ClientInformation.Host, "client", q.ClientInformation.Name)
	return u.Encode(c.o.Keys.issuer)
}

func (c *Callout) bearer(ctx context.Context, token string) (bus.Bearer, error) {
	if token == "" {
		return bus.Bearer{}, refuse(NoToken, "it shows no token (PITCREW_NATS_TOKEN_FILE)")
	}
	if _, err := bus.ReadBearer(token); err != nil { // the API server is not asked about what cannot be one
		return bus.Bearer{}, refuse(BadToken, "its token: %w", err)
	}
	who, err := c.o.Reviewer.ReviewToken(ctx, token)
	if errors.Is(err, ErrRefused) {
		return who, &refusal{BadToken, err}
	}
	return who, err
}

// user is what a bearer may be: its role's rights, until its token ends.
func (c *Callout) user(q *jwt.AuthorizationRequestClaims, who bus.Bearer) (*jwt.UserClaims, error) {
	r, known := roles[who.Account]
	if !known || who.Namespace != c.o.Namespace {
		return nil, refuse(NoRole, "%s has no role on the bus", who)
	}
	name := ""
	if r.name != nil {
		if name = r.name(who); name == "" {
			return nil, refuse(Unbound, "the token of %s is bound to no %s: it must be projected into the pod that uses it", who, r.lack)
		}
	}
	now := c.o.Now()
	h := fnv.New64a()
	h.Write([]byte(q.UserNkey))
	until := now.Add(stays - time.Duration(spread*float64(stays)*float64(h.Sum64()%1000)/1000))
	if who.Expires.Before(until) {
		until = who.Expires
	}
	if !until.After(now) {
		return nil, refuse(BadToken, "the token of %s has expired", who)
	}
	rights := bus.RightsOf(r.role, c.o.Cluster, name, who.Inbox())
	u := jwt.NewUserClaims(q.UserNkey)
	u.Name, u.Audience, u.Expires = strings.TrimSpace(string(r.role)+" "+name), c.o.Account, until.Unix()
	u.Pub.Allow, u.Pub.Deny, u.Sub.Allow = rights.Publish, rights.Deny, rights.Subscribe
	u.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeStandard}
	if rights.Answer {
		u.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: stays}
	}
	return u, nil
}

// tell counts a refusal, and logs it once a minute for each client.
func (c *Callout) tell(outcome, client string, err error) {
	c.o.Count(outcome)
	c.mu.Lock()
	defer c.mu.Unlock()
	now, key := c.o.Now(), outcome+" "+client
	if now.Sub(c.told[key]) < perMinute {
		return
	}
	if len(c.told) >= maxTold {
		clear(c.told)
	}
	c.told[key] = now
	c.o.Logger.Warn("refused at NATS", "why", outcome, "client", client, "error", err)
}
