package offline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// outputs are the files of a run. Each is written beside its name and takes it only when all of them are whole: until then, and for
// ever if the run fails, what had the name stays as it was.
type outputs struct {
	files  []*output
	stdout io.Writer
}

type output struct {
	*os.File
	path, temp string // temp is empty of what is no regular file: a device or a pipe is written as it is
}

const tempTries = 100

func (o *outputs) create(path string) (io.Writer, error) {
	if path == "-" {
		return o.stdout, nil
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays one
	}
	mode := fs.FileMode(0o666)
	old, err := os.Stat(path)
	switch {
	case err == nil && old.IsDir():
		return nil, fmt.Errorf("%s: is a folder; name a file", path)
	case err == nil && !old.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		o.files = append(o.files, &output{File: f, path: path})
		return f, nil
	case err == nil:
		mode = old.Mode().Perm()
	}
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // not made: it may be a slip
		return nil, fmt.Errorf("%s: there is no folder %s; make it, or correct the name", path, dir)
	}
	for range tempTries {
		temp := filepath.Join(dir, fmt.Sprintf(".%s.%08x.tmp", filepath.Base(path), rand.Uint32()))
		f, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o.files = append(o.files, &output{File: f, path: path, temp: temp})
		if old != nil { // what the mask of a new file takes away, the old one may have had
			return f, f.Chmod(mode)
		}
		return f, nil
	}
	return nil, fmt.Errorf("%s: no free name for a temporary file beside it", path)
}

// commit gives each file its name, after all of them are on disk.
func (o *outputs) commit() error {
	for _, f := range o.files {
		if f.temp == "" {
			continue
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	for _, f := range o.files {
		if err := f.Close(); err != nil {
			return err
		}
		if f.temp == "" {
			continue
		}
		if err := os.Rename(f.temp, f.path); err != nil {
			return err
		}
		f.temp = ""
		if err := syncFolder(filepath.Dir(f.path)); err != nil {
			return err
		}
	}
	return nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// discard removes what was not committed.
func (o *outputs) discard() error {
	var all error
	for _, f := range o.files {
		_ = f.Close() // a second time, where commit did it
		if f.temp != "" {
			all = errors.Join(all, os.Remove(f.temp))
		}
	}
	return all
}

// interruptible reads r until ctx ends, also where a read waits: of a pipe or a terminal nothing else ends one. The reader's goroutine ends with
// the read that it is in.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	return &waiting{ctx: ctx, r: r, free: make([]byte, 64<<10), got: make(chan chunk, 1)}
}

type chunk struct {
	b   []byte
	err error
}

type waiting struct {
	ctx  context.Context
	r    io.Reader
	free []byte
	got  chan chunk
	left []byte
	err  error
}

func (w *waiting) Read(p []byte) (int, error) {
	if len(w.left) == 0 && w.err == nil {
		go func() {
			n, err := w.r.Read(w.free)
			w.got <- chunk{w.free[:n], err}
		}()
		select {
		case <-w.ctx.Done():
			w.err = w.ctx.Err() // the buffer is the goroutine's from now on
		case c := <-w.got:
			w.left, w.err = c.b, c.err
		}
	}
	if len(w.left) == 0 {
		return 0, w.err
	}
	n := copy(p, w.left)
	w.left = w.left[n:]
	return n, nil
}
