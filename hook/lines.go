package hook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// chunkSize is how much is read from a socket at once.
const chunkSize = 8 << 10

// chunks are buffers for reading. A session holds one only while there is something to read.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// lineReader splits what a peer sends into lines and stays within the pod's budget. It reads no faster than the budget of bytes
// allows: what a pod sends beyond it stays in the pod's own socket. It keeps the beginning of a line only if its type may be that long and
// the message would be decoded.
type lineReader struct {
	account *account
	credit  func(n int) (rest int)   // takes n bytes from those of an answer that was asked for
	admit   func(line []byte) error  // an error ends the session
	wanted  func(kind string) bool   // whether a message of this type would be decoded
	pause   func(time.Duration) bool // false at the session's end

	partial []byte
	held    int // bytes of the account's line buffers
	size    int // of the line so far, kept or not
	skip    bool
}

// run reads until the connection ends or the protocol is broken.
func (r *lineReader) run(conn *net.UnixConn) error {
	defer r.reset()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	for {
		n, chunk, err := readChunk(raw)
		if err != nil {
			return err
		}
		err = r.feed(chunk[:n])
		chunks.Put(chunk)
		if err != nil {
			return err
		}
		if n = r.credit(n); n == 0 {
			continue
		}
		if d := r.account.charge(Bytes, n); d > 0 && !r.pause(d) {
			return net.ErrClosed
		}
	}
}

// readChunk waits until there is something to read, and only then takes a buffer.
func readChunk(raw syscall.RawConn) (n int, chunk *[chunkSize]byte, err error) {
	failed := raw.Read(func(fd uintptr) bool {
		chunk = chunks.Get().(*[chunkSize]byte)
		for {
			n, err = unix.Read(int(fd), chunk[:])
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err == nil && n > 0 {
			return true
		}
		chunks.Put(chunk)
		chunk = nil
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case failed != nil:
		return 0, nil, failed
	case err != nil:
		return 0, nil, err
	case n == 0:
		return 0, nil, io.EOF
	}
	return n, chunk, nil
}

// feed takes what was read.
func (r *lineReader) feed(data []byte) error {
	for len(data) > 0 {
		piece, ends := data, false
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			piece, ends = data[:i+1], true
		}
		data = data[len(piece):]
		if r.size += len(piece); r.size > MaxLine {
			return fmt.Errorf("%w: %w", ErrProtocol, ErrLineTooLong)
		}
		if err := r.take(piece, ends); err != nil {
			return err
		}
		if ends {
			r.reset()
		}
	}
	return nil
}

func (r *lineReader) take(piece []byte, ends bool) error {
	switch {
	case r.skip:
		return nil
	case ends && len(r.partial) == 0:
		return r.admit(piece)
	}
	if err := r.extend(piece); err != nil || r.skip || !ends {
		return err
	}
	return r.admit(r.partial)
}

// extend keeps a piece of a line that is not complete, or decides to leave the line out.
func (r *lineReader) extend(piece []byte) error {
	head := append(make([]byte, 0, 128), r.partial[:min(len(r.partial), 64)]...)
	kind, known, broken := kindOf(append(head, piece[:min(len(piece), 64)]...))
	if broken {
		return fmt.Errorf("%w: not a message", ErrProtocol)
	}
	if known && !r.wanted(kind) || len(r.partial)+len(piece) > longest(kind) || !r.account.hold(len(piece), admissions[kind] == answer) {
		r.drop()
		r.skip = true
		return nil
	}
	r.held += len(piece)
	r.partial = append(r.partial, piece...)
	return nil
}

func (r *lineReader) drop() {
	if r.held > 0 {
		r.account.free(r.held)
	}
	r.partial, r.held = nil, 0
}

func (r *lineReader) reset() {
	r.drop()
	r.size, r.skip = 0, false
}
