package hook

import (
	"context"
	"errors"
	"sync"
	"time"
)

// life is one process behind a socket, over all the connections to it.
type life struct {
	pid     int      // by the kernel's word; 0: not visible
	proc    *process // nil: not visible
	hello   Hello
	greeted bool
	bye     *Bye
	failure string // first line of its uncaught exception
}

// peerEvents is what a peer tells its owner, always from the peer's own goroutine.
type peerEvents interface {
	// same says whether two Hellos can be one process's.
	same(a, b Hello) bool
	// greeted is a new life's Hello, or (again) an old one's on a new connection. An error refuses the connection.
	greeted(l *life, s *Session, again bool) error
	message(l *life, m Message)
	// ended is called once for each life, when its process has ended or, where that cannot be seen, nobody listens.
	ended(l *life)
	// idle is called while nobody listens and no life is known. It says after how long to look again; 0 waits for a change.
	idle(tries int) time.Duration
	problem(err error)
}

// peer keeps one connection to one socket for as long as there is somebody to talk to.
//
// A lost connection is not a lost process: the peer dials again at once, and calls a life ended when its process is (seen
// through a pidfd), when it said bye, when another process listens in its place, or, only where processes of the pod
// cannot be seen, when nobody listens any more.
type peer struct {
	dir     *Dir
	name    string
	events  peerEvents
	account *account      // of the pod
	reaper  *reaper       // of the fleet
	kick    chan struct{} // the file may have changed

	mu      sync.Mutex
	session *Session // greeted, else nil
	alive   bool     // a life is known
	closing bool     // the pod is gone: end when nobody is left
	changed chan struct{}
}

func newPeer(dir *Dir, name string, a *account, r *reaper, events peerEvents) *peer {
	return &peer{dir: dir, name: name, events: events, account: a, reaper: r, kick: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Bounds of redialling.
const (
	steadySession = time.Second // a session that lasted so long earns an immediate redial
	firstRedial   = 10 * time.Millisecond
	lastRedial    = 2 * time.Second
)

// settle is how long to wait before looking again at a socket that appeared and on which nobody listens: between bind and
// listen a process may lose its turn. After about a second it is 0: only a change is news.
func settle(tries int) time.Duration {
	if tries > 6 {
		return 0
	}
	return firstRedial << tries
}

// touch makes the peer look at its socket again.
func (p *peer) touch() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// leave lets the peer end once nobody is connected.
func (p *peer) leave() {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.touch()
}

func (p *peer) set(s *Session, alive bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == s && p.alive == alive {
		return
	}
	p.session, p.alive = s, alive
	close(p.changed)
	p.changed = make(chan struct{})
}

// current is the session now, whether a life is known, and a channel closed when either changes.
func (p *peer) current() (s *Session, alive bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session, p.alive, p.changed
}

func (p *peer) run(ctx context.Context) {
	var l *life
	defer func() {
		if l != nil {
			l.proc.close()
		}
		p.set(nil, false)
	}()
	redial, tries := time.Duration(0), 0
	for ctx.Err() == nil {
		if l = p.afford(ctx, l); ctx.Err() != nil {
			return
		}
		began := time.Now()
		s, err := dial(ctx, p.dir, p.name, p.account)
		if err == nil {
			p.account.charge(Connections, 1)
			l, err = p.converse(ctx, s, l)
			s.Close()
		}
		p.set(nil, l != nil)
		if ctx.Err() != nil {
			return
		}
		if l != nil && l.over() {
			l = p.end(l)
		}
		switch {
		case errors.Is(err, ErrNobodyListens) && l != nil && l.proc == nil:
			l = p.end(l)
			tries = 0
		case errors.Is(err, ErrNobodyListens) && l != nil:
			// Alive without a socket: its end or a new socket is the next news.
			d := settle(tries)
			tries++
			if p.pause(ctx, l, d) {
				tries = 0
			}
		case errors.Is(err, ErrNobodyListens):
			if p.isClosing() {
				return
			}
			d := p.events.idle(tries)
			tries++
			if p.pause(ctx, nil, d) {
				tries = 0
			}
		default:
			if err != nil {
				p.events.problem(err)
			}
			tries = 0
			if time.Since(began) > steadySession {
				redial = 0
				continue
			}
			if redial > 0 || err != nil {
				p.pause(ctx, l, max(redial, firstRedial))
			}
			redial = min(max(2*redial, firstRedial), lastRedial)
		}
	}
}

// afford waits until the pod's budget has room for a connection. A life that ends meanwhile is reported at once.
func (p *peer) afford(ctx context.Context, l *life) *life {
	for reported := false; ctx.Err() == nil; reported = true {
		d := p.account.after(Connections, 1)
		if d == 0 {
			break
		}
		if !reported {
			p.account.exceed(Connections, 1)
		}
		p.pause(ctx, l, d)
		if l != nil && l.over() {
			l = p.end(l)
		}
	}
	return l
}

func (p *peer) isClosing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing
}

// pause waits for d (0: without end), for a change of the file, or for the end of a life. kicked is true for a change.
func (p *peer) pause(ctx context.Context, l *life, d time.Duration) (kicked bool) {
	var timer <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	var gone <-chan struct{}
	if l != nil {
		gone = l.proc.ended()
	}
	select {
	case <-ctx.Done():
	case <-gone:
	case <-timer:
	case <-p.kick:
		return true
	}
	return false
}

func (p *peer) end(l *life) *life {
	p.set(nil, false)
	p.events.ended(l)
	l.proc.close()
	return nil
}

// over says that nothing more can come of a life.
func (l *life) over() bool {
	if l.bye != nil {
		return true
	}
	select {
	case <-l.proc.ended():
		return true
	default:
		return false
	}
}

// converse reads a session to its end and returns the life that it belonged to. l is the life known before, or nil.
func (p *peer) converse(ctx context.Context, s *Session, l *life) (*life, error) {
	pid := s.PeerPID()
	if l == nil || l.pid != pid {
		proc, err := p.watch(pid)
		if err != nil {
			return l, err
		}
		if l != nil { // another process listens in its place
			p.end(l)
		}
		l = &life{pid: pid, proc: proc}
	}
	p.set(nil, true)
	greeted := s.Greeted()
	for {
		select {
		case <-ctx.Done():
			return l, nil
		case <-l.proc.ended():
			p.drain(s, l)
			return l, nil
		case <-p.kick:
			if s.replaced(p.dir, p.name) {
				p.drain(s, l) // a bye may be on its way
				return l, nil
			}
		case <-greeted:
			greeted = nil
			var err error
			if l, err = p.greet(s, l); err != nil {
				return l, err
			}
		case m, ok := <-s.Messages():
			if !ok {
				if err := s.Err(); errors.Is(err, ErrProtocol) {
					return l, err
				}
				return l, nil
			}
			p.take(l, m)
		}
	}
}

// greet takes a session's Hello and returns whose it is. It is not part of converse: copies of a Hello would make the stack of each
// session's goroutine twice as large for as long as the session lasts.
func (p *peer) greet(s *Session, l *life) (*life, error) {
	h, _ := s.Hello()
	again := l.greeted
	if again && !p.events.same(l.hello, h) {
		// The same number, or one that cannot be seen, but another process or attempt.
		pid := s.PeerPID()
		proc, _ := p.watch(pid)
		p.end(l)
		l, again = &life{pid: pid, proc: proc}, false
	}
	l.hello, l.greeted = h, true
	if err := p.events.greeted(l, s, again); err != nil {
		return l, err
	}
	p.set(s, true)
	return l, nil
}

// watch starts to wait for the end of the process that listens. One that has ended while a child of it holds the socket open
// is as good as nobody.
func (p *peer) watch(pid int) (*process, error) {
	if pid == 0 {
		return nil, nil
	}
	proc, err := p.reaper.watch(pid)
	if errors.Is(err, errNoProcess) {
		return nil, errors.Join(ErrNobodyListens, err)
	}
	if err != nil { // no pidfd on this kernel: as good as not visible
		return nil, nil //nolint:nilerr
	}
	return proc, nil
}

func (p *peer) take(l *life, m Message) {
	switch m := m.(type) {
	case Bye:
		l.bye = &m
	case Failure:
		l.failure = m.Error
	}
	p.events.message(l, m)
}

// drain takes what a process sent before its end. The connection may stay open in a child of it, so it waits for the
// reader to have nothing more at hand, not for the end of the connection.
func (p *peer) drain(s *Session, l *life) {
	for {
		t := time.NewTimer(drainFor)
		select {
		case m, ok := <-s.Messages():
			t.Stop()
			if !ok {
				return
			}
			p.take(l, m)
		case <-t.C:
			return
		}
	}
}

// drainFor is how long the last words of an ended process may take from the kernel's buffer to here.
const drainFor = 20 * time.Millisecond
