package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of sessions.
var (
	// ErrNobodyListens is the error of a connection to a socket that is not there, or that no process listens on.
	ErrNobodyListens = errors.New("nobody listens")
	// ErrSessionClosed is the error of a request whose connection closed before its answer.
	ErrSessionClosed = errors.New("connection closed")
	// ErrProtocol is wrapped when the other side breaks the protocol; such a session is closed.
	ErrProtocol = errors.New("protocol broken")
)

// writeTimeout bounds a write to a peer that does not read. The kernel's buffer takes many messages first.
const writeTimeout = 2 * time.Second

// Session is the agent's side of one connection to a rank or a launcher. It is safe for concurrent use. Its goroutine ends
// when the peer closes or Close is called; whoever made the Session must drain Messages until it is closed, or call Close.
type Session struct {
	conn    *net.UnixConn
	name    string
	peerPID int
	inode   [2]uint64 // of the socket file: device and number

	push  chan Message
	hello chan struct{} // closed when helloMsg is set
	done  chan struct{} // closed when the reader has ended
	quit  chan struct{} // closed by Close

	account *account // of the pod
	writing sync.Mutex

	mu       sync.Mutex
	credit   int // bytes of answers that were asked for
	helloMsg Hello
	greeted  bool
	waiting  map[answerKey][]chan Message
	err      error
	closed   bool
}

// answerKey is what matches an answer with its question.
type answerKey struct{ kind, req string }

// Connect dials a socket of a pod's directory. It does not wait for the Hello: a stopped process does not speak, and that is
// news too. The socket is pinned by an O_PATH descriptor first, so what was checked to be a socket is what is connected to.
func Connect(ctx context.Context, dir *Dir, name string) (*Session, error) {
	return dial(ctx, dir, name, newAccount(Budget{}, nil))
}

// dial is Connect on a pod's account.
func dial(ctx context.Context, dir *Dir, name string, a *account) (*Session, error) {
	pin, err := dir.open(name, unix.O_PATH, unix.S_IFSOCK, "a socket")
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %w", ErrNobodyListens, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = pin.Close() }()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", pin.Fd()))
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, fmt.Errorf("connect to %s: %w: %w", pin.Name(), ErrNobodyListens, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", pin.Name(), err)
	}
	inode, err := inodeOf(pin)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	s := &Session{
		inode: inode, conn: c.(*net.UnixConn), name: pin.Name(), peerPID: peerPID(c.(*net.UnixConn)),
		push: make(chan Message, 16), hello: make(chan struct{}), done: make(chan struct{}), quit: make(chan struct{}),
		waiting: map[answerKey][]chan Message{}, account: a,
	}
	go s.read()
	return s, nil
}

// peerPID is the process that listens, by the kernel's word, in this process's PID namespace; 0 where it cannot be seen.
func peerPID(c *net.UnixConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

func inodeOf(f *os.File) ([2]uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return [2]uint64{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return [2]uint64{st.Dev, st.Ino}, nil
}

// replaced says whether another socket now lies where this session's was found.
func (s *Session) replaced(dir *Dir, name string) bool {
	pin, err := dir.open(name, unix.O_PATH, unix.S_IFSOCK, "a socket")
	if err != nil {
		return false
	}
	defer func() { _ = pin.Close() }()
	inode, err := inodeOf(pin)
	return err == nil && inode != s.inode
}

// PeerPID is the listening process as the kernel reports it, or 0 where it is not visible to this process.
func (s *Session) PeerPID() int { return s.peerPID }

// Greeted is closed when the Hello has come.
func (s *Session) Greeted() <-chan struct{} { return s.hello }

// Hello is the peer's Hello; ok is false until it has come.
func (s *Session) Hello() (h Hello, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.helloMsg, s.greeted
}

// Messages are those that are no answers, the Hello not included. It is closed when the session has ended.
func (s *Session) Messages() <-chan Message { return s.push }

// Done is closed when the session has ended; Err says why.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is nil while the session runs, io.EOF when the peer closed.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session and waits for its goroutine. It may be called more than once.
func (s *Session) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
	s.mu.Unlock()
	_ = s.conn.Close()
	<-s.done
}

// Send writes a message that has no answer.
func (s *Session) Send(m Message) error {
	line, err := Encode(m)
	if err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return fmt.Errorf("%s: %s: %w", s.name, m.kind(), ErrSessionClosed)
	}
	if _, err := s.conn.Write(line); err != nil {
		// A line may be half written: the connection is of no more use.
		_ = s.conn.Close()
		return fmt.Errorf("%s: send %s: %w: %w", s.name, m.kind(), ErrSessionClosed, err)
	}
	return nil
}

// Request sends a message of a round (or a Ping) and waits for its answer, which may be a Nack. Several callers may ask the same: each
// gets the answer.
func (s *Session) Request(ctx context.Context, m Message) (Message, error) {
	key, ok := answerTo(m)
	if !ok {
		return nil, fmt.Errorf("message %s has no answer", m.kind())
	}
	answer := make(chan Message, 1)
	keys := []answerKey{key, {Nack{}.kind(), key.req}}
	s.wait(keys, answer)
	if _, saves := m.(Go); saves {
		s.mu.Lock()
		s.credit += maxAnswer
		s.mu.Unlock()
	}
	defer s.forget(keys, answer)
	if err := s.Send(m); err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: no answer to %s: %w", s.name, m.kind(), ctx.Err())
	case <-s.done:
		select {
		case a := <-answer: // the last word before the end
			return a, nil
		default:
		}
		return nil, fmt.Errorf("%s: %s: %w", s.name, m.kind(), ErrSessionClosed)
	}
}

// answerTo is the answer that a message waits for, besides a Nack.
func answerTo(m Message) (answerKey, bool) {
	switch m := m.(type) {
	case Arm:
		return answerKey{Armed{}.kind(), m.Req}, true
	case Go:
		return answerKey{Saved{}.kind(), m.Req}, true
	case Manifest:
		return answerKey{Manifested{}.kind(), m.Req}, true
	case Cancel:
		return answerKey{Cancelled{}.kind(), m.Req}, true
	case Release:
		return answerKey{Released{}.kind(), m.Req}, true
	case Ping:
		return answerKey{Pong{}.kind(), ""}, true
	}
	return answerKey{}, false
}

// keyOf is the question that a message answers.
func keyOf(m Message) (answerKey, bool) {
	switch m := m.(type) {
	case Armed:
		return answerKey{m.kind(), m.Req}, true
	case Nack:
		return answerKey{m.kind(), m.Req}, true
	case Saved:
		return answerKey{m.kind(), m.Req}, true
	case Manifested:
		return answerKey{m.kind(), m.Req}, true
	case Cancelled:
		return answerKey{m.kind(), m.Req}, true
	case Released:
		return answerKey{m.kind(), m.Req}, true
	case Pong:
		return answerKey{m.kind(), ""}, true
	}
	return answerKey{}, false
}

func (s *Session) wait(keys []answerKey, c chan Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		s.waiting[k] = append(s.waiting[k], c)
	}
}

func (s *Session) forget(keys []answerKey, c chan Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		list := s.waiting[k]
		for i, w := range list {
			if w == c {
				list = append(list[:i:i], list[i+1:]...)
				break
			}
		}
		if len(list) == 0 {
			delete(s.waiting, k)
		} else {
			s.waiting[k] = list
		}
	}
	if len(s.waiting) == 0 {
		s.credit = 0
	}
}

// deliver gives a message to each question that waits for it. An answer that no question waits for any more is dropped, since
// nobody acts on one; all else goes to Messages.
func (s *Session) deliver(m Message) {
	if k, ok := keyOf(m); ok {
		s.mu.Lock()
		waiters := s.waiting[k]
		for _, w := range waiters {
			select {
			case w <- m:
			default: // it has its answer
			}
		}
		s.mu.Unlock()
		return
	}
	select {
	case s.push <- m:
	case <-s.quit:
	}
}

func (s *Session) read() {
	err := s.readLines()
	_ = s.conn.Close()
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	close(s.push)
	close(s.done)
}

// maxAnswer is how many bytes of an answer to a Go are read beyond the budget: the files of a rank's checkpoint.
const maxAnswer = 8 << 20

func (s *Session) readLines() error {
	r := &lineReader{account: s.account, credit: s.spend, admit: s.admit, wanted: s.wanted, pause: s.pause}
	err := r.run(s.conn)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, ErrProtocol):
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return fmt.Errorf("%s: read: %w", s.name, err)
}

// spend takes n bytes from those that were asked for, and returns the rest.
func (s *Session) spend(n int) (rest int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := min(n, s.credit)
	s.credit -= used
	return n - used
}

// pause waits, or returns false at the session's end.
func (s *Session) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.quit:
		return false
	}
}

// asked says whether a question waits for an answer of this type.
func (s *Session) asked(kind string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.waiting {
		if k.kind == kind {
			return true
		}
	}
	return false
}

// wanted says whether a message of this type is decoded at all.
func (s *Session) wanted(kind string) bool {
	switch admissions[kind] {
	case ignored:
		return false
	case answer:
		return s.asked(kind)
	}
	return true
}

// admit decides on a line by its type alone and decodes what is left. Its error ends the session.
func (s *Session) admit(line []byte) error {
	kind, known, broken := kindOf(line)
	if broken {
		return fmt.Errorf("%w: not a message", ErrProtocol)
	}
	if !known {
		if !s.account.take(Messages, 1) {
			return nil
		}
		var err error
		if kind, err = slowKind(line); err != nil {
			return fmt.Errorf("%w: %s", ErrProtocol, Clip(err.Error(), maxFailure))
		}
	}
	if _, greeted := s.Hello(); !greeted && kind != (Hello{}).kind() {
		return fmt.Errorf("%w: %q before hello", ErrProtocol, Clip(kind, maxKind))
	} else if greeted && kind == (Hello{}).kind() {
		return fmt.Errorf("%w: a second hello", ErrProtocol)
	}
	if !s.wanted(kind) || admissions[kind] == budgeted && !s.account.take(Messages, 1) {
		return nil
	}
	if len(line) > longest(kind) {
		s.account.exceed(Bytes, len(line))
		return nil
	}
	m, err := decodeAs(kind, line)
	if err != nil {
		return fmt.Errorf("%w: %s", ErrProtocol, Clip(err.Error(), maxFailure))
	}
	return s.take(clipped(m))
}

// take handles one message.
func (s *Session) take(m Message) error {
	h, isHello := m.(Hello)
	if !isHello {
		s.deliver(m)
		return nil
	}
	if h.V != ProtocolVersion {
		return fmt.Errorf("%w: hello of version %d, want %d", ErrProtocol, h.V, ProtocolVersion)
	}
	s.mu.Lock()
	s.helloMsg, s.greeted = h, true
	s.mu.Unlock()
	close(s.hello)
	return nil
}
