package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// Names in a spool folder. A file is written under its name with temporarySuffix first, so that one with spoolSuffix is complete.
const (
	spoolSuffix     = ".event.json"
	temporarySuffix = ".tmp"
	badSuffix       = ".bad"   // content that is not an event; kept for a person
	maxBad          = 100      // of these; beyond it they are removed
	maxSpoolFile    = 16 << 20 // bytes; NATS takes no message that long
)

// files is the part of a file system that the spool uses. Tests make each call fail.
type files interface {
	MkdirAll(dir string) error
	Names(dir string) ([]string, error)
	Read(path string) ([]byte, error)
	Write(path string, b []byte) error
	Rename(from, to string) error
	Remove(path string) error
}

// disk is the real one.
type disk struct{}

func (disk) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

func (disk) Names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	return d.Readdirnames(-1)
}

// Read reads a regular file. What is not one, such as a FIFO, is not waited for.
func (disk) Read(path string) ([]byte, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxSpoolFile {
		return nil, fmt.Errorf("%s: %v of %d bytes is not a file of the spool", path, st.Mode(), st.Size())
	}
	return os.ReadFile(path)
}

func (disk) Write(path string, b []byte) error { return os.WriteFile(path, b, 0o600) }
func (disk) Rename(from, to string) error      { return os.Rename(from, to) }
func (disk) Remove(path string) error          { return os.Remove(path) }

// write puts a file in the spool, complete or not at all. What a failed write leaves is removed: on a full disk it would take the room
// that the next event needs.
func (p *Publisher) write(path string, b []byte) error {
	tmp := path + temporarySuffix
	err := p.files.Write(tmp, b)
	if err == nil {
		err = p.files.Rename(tmp, path)
	}
	if err != nil {
		if left := p.files.Remove(tmp); left != nil && !errors.Is(left, fs.ErrNotExist) {
			p.log.Warn("spool of findings: an incomplete file is left; it is removed at the next start", "file", tmp, "error", left)
		}
	}
	return err
}

// reload queues what the spool holds, oldest first. Each file stands for itself: one that cannot be read is left for the next start, one
// that is not an event is set aside, and the others are taken up. Incomplete files of an earlier process are removed. The error names all
// that went wrong.
func (p *Publisher) reload() error {
	names, err := p.files.Names(p.spool)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	slices.Sort(names)
	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) && len(errs) < 10 {
			errs = append(errs, err)
		}
	}
	bad := 0
	for _, name := range names {
		path := filepath.Join(p.spool, name)
		switch {
		case strings.HasSuffix(name, spoolSuffix+temporarySuffix):
			note(p.files.Remove(path))
		case strings.HasSuffix(name, spoolSuffix+badSuffix):
			if bad++; bad > maxBad {
				note(p.files.Remove(path))
			}
		case strings.HasSuffix(name, spoolSuffix):
			note(p.takeUp(path))
		}
	}
	return errors.Join(errs...)
}

// takeUp queues one file of the spool.
func (p *Publisher) takeUp(path string) error {
	raw, err := p.files.Read(path)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	m, err := event.ReadMessage(raw)
	if err != nil {
		p.log.Error("a file of the spool is not an event; set aside", "file", path, "error", err)
		if err := p.files.Rename(path, path+badSuffix); err != nil {
			return fmt.Errorf("set aside: %w", err)
		}
		return nil
	}
	if own := p.path(m); own != path { // under its own name it is removed when it is acknowledged
		if err := p.files.Rename(path, own); err != nil {
			return fmt.Errorf("rename: %w", err)
		}
	}
	p.accept(&item{m, time.Now()})
	return nil
}
