package page

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"
)

// Role is what a person may do on the page.
type Role string

// The roles. An operator may also act.
const (
	Reader   Role = "reader"
	Operator Role = "operator"
)

// Access says who may use the page. It is read from a file, which may change while the page is served.
type Access struct {
	Tokens []Token `yaml:"tokens"`
	Proxy  *Proxy  `yaml:"proxy"`
}

// Token lets in whoever presents it, under a name.
type Token struct {
	Name  string `yaml:"name"`
	Role  Role   `yaml:"role"`
	Token string `yaml:"token"`
}

// Proxy is a reverse proxy that has authenticated the person. Headers count only from its addresses.
type Proxy struct {
	From         []string `yaml:"from"`         // networks, such as 10.0.0.0/8
	UserHeader   string   `yaml:"userHeader"`   // default X-Forwarded-User
	GroupsHeader string   `yaml:"groupsHeader"` // default X-Forwarded-Groups, separated by commas
	Operators    []string `yaml:"operators"`    // users or groups; all others read

	networks []netip.Prefix
}

// minToken is the least length of a token. One of 24 random characters cannot be guessed.
const minToken = 24

// ParseAccess reads the file's text. The error names each fault, never a token.
func ParseAccess(raw []byte) (*Access, error) {
	var a Access
	if err := yaml.NewDecoder(bytes.NewReader(raw), yaml.Strict()).Decode(&a); err != nil {
		text, _, _ := strings.Cut(yaml.FormatError(err, false, false), "\n")
		return nil, errors.New(text)
	}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	names := map[string]bool{}
	for k, t := range a.Tokens {
		switch {
		case t.Name == "" || strings.ContainsFunc(t.Name, hidden) || strings.Contains(t.Name, "|"):
			fault("tokens[%d]: name is empty or holds a character that is not allowed", k)
		case names[t.Name]:
			fault("tokens[%d]: name %q is there twice", k, t.Name)
		case t.Role != Reader && t.Role != Operator:
			fault("tokens[%d]: role must be reader or operator, got %q", k, t.Role)
		case len(t.Token) < minToken:
			fault("tokens[%d]: token must have at least %d characters", k, minToken)
		}
		names[t.Name] = true
	}
	if p := a.Proxy; p != nil {
		if len(p.From) == 0 {
			fault("proxy: from is empty; name the proxy's networks, since anyone else could set its headers")
		}
		for _, from := range p.From {
			n, err := netip.ParsePrefix(from)
			if err != nil {
				fault("proxy: from: %q is not a network such as 10.0.0.0/8", from)
			}
			p.networks = append(p.networks, n)
		}
		if p.UserHeader == "" {
			p.UserHeader = "X-Forwarded-User"
		}
		if p.GroupsHeader == "" {
			p.GroupsHeader = "X-Forwarded-Groups"
		}
	}
	if len(a.Tokens) == 0 && a.Proxy == nil {
		fault("neither tokens nor proxy: nobody could use the page")
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &a, nil
}

// Person is who sent a request.
type Person struct {
	Name  string
	Role  Role
	Until time.Time // when the session ends; zero: with the request
}

// gate knows who may use the page.
type gate struct {
	file string
	now  func() time.Time

	mu     sync.Mutex
	read   time.Time // modification time of what was read
	access *Access
}

// lasts is how long a session lasts.
const sessionLasts = 12 * time.Hour

// sessionCookie holds a session: name, end, and a code that only the token's holder file can give. No replica keeps a session.
const sessionCookie = "pitcrew_session"

// current is the file as it is now. A file that became unreadable or wrong lets nobody in.
func (g *gate) current() (*Access, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	info, err := os.Stat(g.file)
	if err != nil {
		return nil, fmt.Errorf("access file: %w", err)
	}
	if g.access != nil && info.ModTime().Equal(g.read) {
		return g.access, nil
	}
	raw, err := os.ReadFile(g.file)
	if err != nil {
		return nil, fmt.Errorf("access file: %w", err)
	}
	a, err := ParseAccess(raw)
	if err != nil {
		g.access = nil
		return nil, fmt.Errorf("access file %s: %w", g.file, err)
	}
	g.access, g.read = a, info.ModTime()
	return a, nil
}

// person is who sent the request; nil if nobody that may.
func (g *gate) person(r *http.Request) (*Person, error) {
	a, err := g.current()
	if err != nil {
		return nil, err
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return a.holder(token), nil
	}
	if p := a.Proxy.person(r); p != nil {
		return p, nil
	}
	if c, err := r.Cookie(sessionCookie); err == nil {
		return a.session(c.Value, g.now()), nil
	}
	return nil, nil
}

// holder is whose token this is. Every token is compared, each in constant time.
func (a *Access) holder(token string) (found *Person) {
	given := sha256.Sum256([]byte(token))
	for _, t := range a.Tokens {
		have := sha256.Sum256([]byte(t.Token))
		if subtle.ConstantTimeCompare(given[:], have[:]) == 1 {
			found = &Person{Name: t.Name, Role: t.Role}
		}
	}
	return found
}

// person reads the headers of a proxy.
func (p *Proxy) person(r *http.Request) *Person {
	if p == nil || !p.sent(r) {
		return nil
	}
	name := clean(r.Header.Get(p.UserHeader), 128)
	if name == "" {
		return nil
	}
	who := &Person{Name: name, Role: Reader}
	groups := strings.Split(strings.Join(r.Header.Values(p.GroupsHeader), ","), ",")
	for _, g := range append(groups, name) {
		if g = strings.TrimSpace(g); g != "" && slices.Contains(p.Operators, g) {
			who.Role = Operator
		}
	}
	return who
}

// sent reports whether the request came from the proxy.
func (p *Proxy) sent(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	at, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(p.networks, func(n netip.Prefix) bool { return n.Contains(at.Unmap()) })
}

// code signs a session with the token itself: it ends when the token is changed or taken away, on every replica.
func (t Token) code(end string) []byte {
	m := hmac.New(sha256.New, []byte("pitcrew page session\n"+t.Token))
	m.Write([]byte(t.Name + "\n" + end))
	return m.Sum(nil)
}

// issue makes the session of a person who presented a token.
func (a *Access) issue(name string, until time.Time) string {
	end := strconv.FormatInt(until.Unix(), 10)
	k := slices.IndexFunc(a.Tokens, func(t Token) bool { return t.Name == name })
	return base64.RawURLEncoding.EncodeToString([]byte(name)) + "." + end + "." + base64.RawURLEncoding.EncodeToString(a.Tokens[k].code(end))
}

// session is whose session this is; nil if it is forged or over.
func (a *Access) session(value string, now time.Time) *Person {
	parts := strings.Split(value, ".")
	if len(parts) != 3 {
		return nil
	}
	name, err := base64.RawURLEncoding.DecodeString(parts[0])
	code, err2 := base64.RawURLEncoding.DecodeString(parts[2])
	end, err3 := strconv.ParseInt(parts[1], 10, 64)
	k := slices.IndexFunc(a.Tokens, func(t Token) bool { return t.Name == string(name) })
	if errors.Join(err, err2, err3) != nil || k < 0 || !hmac.Equal(code, a.Tokens[k].code(parts[1])) {
		return nil
	}
	until := time.Unix(end, 0)
	if !until.After(now) {
		return nil
	}
	return &Person{Name: string(name), Role: a.Tokens[k].Role, Until: until}
}
