package steer

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"sync"
	"time"
)

const (
	certLasts = 24 * time.Hour
	renewAt   = certLasts / 2
	// rereadEvery is how often the authority's files are read again: the kubelet renews a mounted Secret within a minute or so.
	rereadEvery  = 30 * time.Second
	warnBefore   = 90 * 24 * time.Hour // of the authority's end
	warnOnceEach = 24 * time.Hour
)

// certificates are the serving certificates: issued in memory by the mounted authority, renewed at half of their life and when the authority
// changes. While none can be issued, the last one is served as long as it is valid.
type certificates struct {
	dir   string
	names []string
	now   func() time.Time
	log   *slog.Logger

	mu      sync.Mutex
	by      []byte // the authority's certificate that signed current
	current *tls.Certificate
	renew   time.Time // when current is to be replaced
	read    time.Time // when the authority was last read
	warned  time.Time
}

// get is a tls.Config's GetCertificate.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.current != nil && now.Sub(c.read) < rereadEvery && now.Before(c.renew) {
		return c.current, nil
	}
	err := c.refresh(now)
	if err == nil {
		return c.current, nil
	}
	if now.Sub(c.warned) >= rereadEvery {
		c.warned = now
		c.log.Warn("webhook certificate", "error", err)
	}
	if c.current != nil && now.Before(c.current.Leaf.NotAfter) {
		return c.current, nil
	}
	return nil, err
}

func (c *certificates) refresh(now time.Time) error {
	a, err := ReadAuthority(c.dir)
	if err != nil {
		return err
	}
	if left := a.cert.NotAfter.Sub(now); left < warnBefore && now.Sub(c.warned) >= warnOnceEach {
		c.warned = now
		c.log.Warn("the webhook's authority ends soon; make a new one (docs/install.md)", "on", a.cert.NotAfter.Format(time.DateOnly))
	}
	if c.current == nil || !bytes.Equal(a.certPEM, c.by) || !now.Before(c.renew) {
		made, err := a.issue(now, certLasts, c.names)
		if err != nil {
			return err
		}
		c.current, c.by, c.renew = made, a.certPEM, now.Add(renewAt)
	}
	c.read = now
	return nil
}
