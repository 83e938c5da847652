package tail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// printSize is how much of a file's beginning is remembered, to notice one that
// was truncated and written again to more than its old length.
const printSize = 64

// content is an open file.
type content interface {
	io.ReaderAt
	io.Closer
	Stat() (os.FileInfo, error)
}

// file reads a regular file as others append to it.
type file struct {
	ctx     context.Context
	name    string // as it was asked for
	path    string // without links
	dir     os.FileInfo
	f       content
	offset  int64
	print   []byte // the first bytes read, at most printSize
	watch   *fsnotify.Watcher
	timer   *time.Timer
	split   splitter
	live    bool
	suspect bool // the name may stand for another file now
	moved   bool // the watched folder is not where it was
	recheck time.Duration
}

func openFile(ctx context.Context, path string) (*file, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	// Watch before the first read, so that nothing falls in between.
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w (is fs.inotify.max_user_instances used up?)", path, err)
	}
	if err := watch.Add(filepath.Dir(real)); err != nil {
		watch.Close()
		return nil, fmt.Errorf("watch %s: %w", filepath.Dir(real), err)
	}
	dir, err := os.Stat(filepath.Dir(real))
	if err != nil {
		watch.Close()
		return nil, err
	}
	f, err := os.Open(real)
	if err != nil {
		watch.Close()
		return nil, err
	}
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &file{ctx: ctx, name: path, path: real, dir: dir, f: f, watch: watch, timer: timer, recheck: recheck}, nil
}

func (s *file) Next(deadline time.Time) ([]byte, error) {
	for {
		if line, ok := s.split.next(); ok {
			return line, nil
		}
		room := s.split.room()
		n, err := s.f.ReadAt(room, s.offset)
		if n > 0 {
			if want := printSize - len(s.print); want > 0 {
				s.print = append(s.print, room[:min(n, want)]...)
			}
			s.offset += int64(n)
			s.split.took(n)
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		restarted, err := s.check()
		if err != nil {
			return nil, err
		}
		if restarted {
			return nil, ErrRestarted
		}
		if !s.live {
			s.live = true
			return nil, ErrCaughtUp
		}
		if err := s.wait(deadline); err != nil {
			return nil, err
		}
	}
}

// check looks, at the end of the file, whether it is still the one to read.
func (s *file) check() (restarted bool, err error) {
	info, err := s.f.Stat()
	if err != nil {
		return false, err
	}
	if info.Size() < s.offset || !s.samePrint() {
		s.offset, s.print = 0, nil
		s.split.reset()
		return true, nil
	}
	if !s.suspect {
		return false, nil
	}
	s.suspect = false
	now, err := os.Stat(s.name)
	if err != nil {
		return false, err
	}
	if os.SameFile(info, now) && !s.moved {
		return false, nil
	}
	// What was written before the file was replaced comes first. Only now is its
	// size final: it may have grown since the look above.
	if info, err = s.f.Stat(); err != nil {
		return false, err
	}
	if info.Size() > s.offset {
		s.suspect = true
		return false, nil
	}
	if !now.Mode().IsRegular() || !s.watched() {
		return false, fmt.Errorf("%s: %w", s.name, errMoved)
	}
	f, err := os.Open(s.path)
	if err != nil {
		return false, err
	}
	s.f.Close()
	s.f, s.offset, s.print = f, 0, nil
	s.split.reset()
	return true, nil
}

// watched reports whether what the name leads to is still in the watched folder.
func (s *file) watched() bool {
	real, err := filepath.EvalSymlinks(s.name)
	if err != nil || real != s.path || s.moved {
		return false
	}
	dir, err := os.Stat(filepath.Dir(real))
	return err == nil && os.SameFile(dir, s.dir)
}

// samePrint compares the file's first bytes with what was read of them.
func (s *file) samePrint() bool {
	var buf [printSize]byte
	n, _ := s.f.ReadAt(buf[:len(s.print)], 0)
	return bytes.Equal(buf[:n], s.print)
}

// wait blocks until the file may have changed.
func (s *file) wait(deadline time.Time) error {
	if s.suspect {
		return nil
	}
	again := s.recheck
	if !deadline.IsZero() {
		again = min(again, time.Until(deadline))
	}
	s.timer.Reset(again)
	defer s.timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-s.timer.C:
			if again < s.recheck {
				return ErrDeadline
			}
			s.suspect = true
			return nil
		case err, ok := <-s.watch.Errors:
			if !ok {
				return os.ErrClosed
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			s.suspect = true
			return nil
		case ev, ok := <-s.watch.Events:
			if !ok {
				return os.ErrClosed
			}
			if ev.Name == filepath.Dir(s.path) && (ev.Has(fsnotify.Rename) || ev.Has(fsnotify.Remove)) {
				s.moved, s.suspect = true, true
				return nil
			}
			if ev.Name != s.path {
				continue
			}
			if ev.Op != fsnotify.Write {
				s.suspect = true
			}
			return nil
		}
	}
}

func (s *file) Live() bool      { return s.live }
func (s *file) Device() bool    { return false }
func (s *file) Clipped() uint64 { return s.split.clipped }

func (s *file) Close() error {
	return errors.Join(s.watch.Close(), s.f.Close())
}
