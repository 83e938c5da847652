package tail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stream reads a device or a FIFO. The runtime's poller does the waiting, so a
// blocked read costs no thread and ends with its deadline or with Close.
type stream struct {
	path    string
	f       *os.File
	conn    syscall.RawConn
	stop    func() bool
	split   splitter
	live    bool
	device  bool
	fifo    bool
	recheck time.Duration
}

func openStream(ctx context.Context, path string, mode fs.FileMode) (*stream, error) {
	flags := os.O_RDONLY
	if mode&fs.ModeNamedPipe != 0 {
		flags = os.O_RDWR // so that the pipe does not end with its last writer
	}
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s cannot be waited on: %w", path, err)
	}
	conn, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &stream{path: path, f: f, conn: conn, device: mode&fs.ModeCharDevice != 0, fifo: mode&fs.ModeNamedPipe != 0, recheck: recheck,
		stop: context.AfterFunc(ctx, func() { f.Close() })}, nil
}

func (s *stream) Next(deadline time.Time) ([]byte, error) {
	for {
		if line, ok := s.split.next(); ok {
			return line, nil
		}
		until := deadline
		if again := time.Now().Add(s.recheck); s.fifo && (until.IsZero() || again.Before(until)) {
			until = again
		}
		if err := s.f.SetReadDeadline(until); err != nil {
			return nil, err
		}
		var n int
		var readErr error
		room := s.split.room()
		err := s.conn.Read(func(fd uintptr) bool {
			for {
				n, readErr = unix.Read(int(fd), room)
				if readErr != unix.EINTR {
					break
				}
			}
			// Nothing there: wait, but say first that all before has been read.
			return readErr != unix.EAGAIN || !s.live
		})
		switch {
		case err == nil && readErr == unix.EAGAIN:
			s.live = true
			return nil, ErrCaughtUp
		case errors.Is(err, os.ErrDeadlineExceeded) && until.Equal(deadline):
			return nil, ErrDeadline
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := s.stillThere(); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		case readErr == unix.EPIPE:
			// The kernel has moved the reader to the oldest record it still has.
			return nil, ErrOverrun
		case readErr != nil:
			return nil, &os.PathError{Op: "read", Path: s.path, Err: readErr}
		case n <= 0:
			return nil, &os.PathError{Op: "read", Path: s.path, Err: io.EOF}
		}
		s.split.took(n)
	}
}

// stillThere looks whether the name still leads to the pipe that is read.
func (s *stream) stillThere() error {
	mine, err := s.f.Stat()
	if err != nil {
		return err
	}
	now, err := os.Stat(s.path)
	if err == nil && !os.SameFile(mine, now) {
		err = fmt.Errorf("%s: %w", s.path, errMoved)
	}
	return err
}

func (s *stream) Live() bool      { return s.live }
func (s *stream) Device() bool    { return s.device }
func (s *stream) Clipped() uint64 { return s.split.clipped }

func (s *stream) Close() error {
	s.stop()
	err := s.f.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
