// Package tail follows a kernel log line by line without polling: a device such
// as /dev/kmsg and a FIFO by blocking reads, a regular file by inotify.
//
// It promises that a read wakes when something is there, at its deadline or when
// the context ends; that no line waits for a timer; that a line longer than MaxLine
// is cut and counted; that a file which was truncated, rotated or replaced is
// read on from its new beginning, and the reader is told so. It knows nothing of
// what the lines mean.
package tail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// MaxLine is how much of a line is kept; the kernel's own records are shorter.
const MaxLine = 64 << 10

// What Next returns beside lines. After each of them reading goes on.
var (
	// ErrDeadline: nothing came before the deadline.
	ErrDeadline = errors.New("no line before the deadline")
	// ErrCaughtUp: all that was there at opening has been read. It comes once.
	ErrCaughtUp = errors.New("caught up with the log")
	// ErrOverrun: the kernel overwrote records before they were read.
	ErrOverrun = errors.New("records were overwritten before they were read")
	// ErrRestarted: the file was truncated or replaced; the next line is its first.
	ErrRestarted = errors.New("the log begins anew")
)

// errMoved ends a source: it must be opened again.
var errMoved = errors.New("the name leads elsewhere now")

// recheck is how often a file or a FIFO that is silent is looked for by its
// name: a folder above it, or a link, can be set to elsewhere without a word.
const recheck = 10 * time.Second

// Open opens a log for reading from its beginning. The source ends with ctx.
func Open(ctx context.Context, path string) (Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return openFile(ctx, path)
	case mode&fs.ModeCharDevice != 0, mode&fs.ModeNamedPipe != 0:
		return openStream(ctx, path, mode)
	default:
		return nil, fmt.Errorf("%s is neither a device, a pipe nor a file", path)
	}
}

// splitter cuts a stream of bytes into lines.
type splitter struct {
	buf     []byte
	start   int  // of what was not returned yet
	scanned int  // up to where there is no newline
	cutting bool // the rest of an overlong line is being dropped
	clipped uint64
}

// room returns where the next read may put its bytes.
func (s *splitter) room() []byte {
	if s.start > 0 {
		n := copy(s.buf, s.buf[s.start:])
		s.buf, s.scanned, s.start = s.buf[:n], s.scanned-s.start, 0
	}
	if s.buf == nil {
		s.buf = make([]byte, 0, 2*MaxLine)
	}
	return s.buf[len(s.buf):cap(s.buf)]
}

// took says that n bytes were read into room.
func (s *splitter) took(n int) { s.buf = s.buf[:len(s.buf)+n] }

// next returns a whole line, valid until the next call of room.
func (s *splitter) next() ([]byte, bool) {
	for {
		i := bytes.IndexByte(s.buf[s.scanned:], '\n')
		if i < 0 {
			s.scanned = len(s.buf)
			if s.scanned-s.start <= MaxLine {
				return nil, false
			}
			// Too long already: give what fits and drop the rest as it comes.
			line := s.buf[s.start : s.start+MaxLine]
			s.buf = s.buf[:s.start+MaxLine]
			s.start, s.scanned = len(s.buf), len(s.buf)
			if s.cutting {
				continue
			}
			s.cutting = true
			s.clipped++
			return line, true
		}
		end := s.scanned + i
		line := s.buf[s.start:end]
		s.start, s.scanned = end+1, end+1
		if s.cutting {
			s.cutting = false
			continue
		}
		// Continuation lines of a record begin with a space.
		if len(line) == 0 || line[0] == ' ' {
			continue
		}
		if len(line) > MaxLine {
			line = line[:MaxLine]
			s.clipped++
		}
		return line, true
	}
}

// reset forgets a half line: its other half will not come.
func (s *splitter) reset() {
	s.buf, s.start, s.scanned, s.cutting = s.buf[:0], 0, 0, false
}
