package tail

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// feed gives a splitter its input in pieces and returns the lines.
func feed(s *splitter, input string, piece int) (lines []string) {
	for len(input) > 0 {
		room := s.room()
		n := copy(room[:min(len(room), piece)], input)
		s.took(n)
		input = input[n:]
		for line, ok := s.next(); ok; line, ok = s.next() {
			lines = append(lines, string(line))
		}
	}
	return lines
}

func TestLinesAreTheSameHoweverTheyCome(t *testing.T) {
	long := strings.Repeat("x", 3*MaxLine)
	input := "one\ntwo\n CONTINUED=1\n\nthree\n" + long + "\nfour\nhalf"
	for _, piece := range []int{1, 7, 1000, MaxLine, 10 * MaxLine} {
		var s splitter
		got := feed(&s, input, piece)
		if len(got) != 5 || got[0] != "one" || got[2] != "three" || got[3] != long[:MaxLine] || got[4] != "four" || s.clipped != 1 {
			t.Errorf("in pieces of %d: %d lines, %d clipped", piece, len(got), s.clipped)
		}
		if rest := feed(&s, " line\n", piece); len(rest) != 1 || rest[0] != "half line" {
			t.Errorf("in pieces of %d: the half line became %q", piece, rest)
		}
	}
}

func TestABlockedReadEndsWithItsDeadlineAndWithTheContext(t *testing.T) {
	dir := t.TempDir()
	regular, fifo := filepath.Join(dir, "log"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(regular, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{regular, fifo} {
		ctx, cancel := context.WithCancel(context.Background())
		s, err := Open(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(time.Time{}); !errors.Is(err, ErrCaughtUp) || !s.Live() {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := s.Next(time.Now().Add(time.Millisecond)); !errors.Is(err, ErrDeadline) {
			t.Errorf("%s: %v", path, err)
		}
		done := make(chan error)
		go func() { _, err := s.Next(time.Time{}); done <- err }()
		cancel()
		if err := <-done; err == nil || errors.Is(err, ErrDeadline) {
			t.Errorf("%s: %v", path, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A folder that is moved away takes its watch along, and a link on the way can
// be set to elsewhere unseen: a reader that goes on waiting there is blind.
func TestALogThatMovedFromUnderTheWatchIsFoundOut(t *testing.T) {
	for name, move := range map[string]func(t *testing.T, path string){
		"the folder is replaced": func(t *testing.T, path string) {
			must(t, os.Rename(filepath.Dir(path), filepath.Dir(path)+".old"))
			must(t, os.Mkdir(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte("new\n"), 0o600))
		},
		"the folder is removed": func(t *testing.T, path string) {
			must(t, os.RemoveAll(filepath.Dir(path)))
		},
		"a folder above it is replaced": func(t *testing.T, path string) {
			above := filepath.Dir(filepath.Dir(path))
			must(t, os.Rename(above, above+".old"))
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte("new\n"), 0o600))
		},
		"a link points elsewhere": func(t *testing.T, path string) {
			other := filepath.Join(t.TempDir(), "other")
			must(t, os.WriteFile(other, []byte("new\n"), 0o600))
			must(t, os.Symlink(other, path+".tmp"))
			must(t, os.Rename(path+".tmp", path))
		},
		"it is a pipe now": func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, unix.Mkfifo(path, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "above", "log", "kmsg")
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte("old\n"), 0o600))
			ended(t, path, func() { move(t, path) })
		})
	}
	t.Run("a pipe is made anew", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kmsg")
		must(t, unix.Mkfifo(path, 0o600))
		ended(t, path, func() {
			must(t, os.Remove(path))
			must(t, unix.Mkfifo(path, 0o600))
		})
	})
}

// growing is a file to which something is written right after the next look at its size.
type growing struct {
	content
	grow func()
}

func (g *growing) Stat() (os.FileInfo, error) {
	info, err := g.content.Stat()
	if grow := g.grow; grow != nil {
		g.grow = nil
		grow()
	}
	return info, err
}

func TestALineWrittenWhileAReplacedFileIsLookedAtIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	must(t, os.WriteFile(path, []byte("one\n"), 0o600))
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer w.Close()
	s, err := openFile(t.Context(), path)
	must(t, err)
	defer s.Close()
	next := func(want string, wanted error) {
		t.Helper()
		if line, err := s.Next(time.Now().Add(10 * time.Second)); string(line) != want || !errors.Is(err, wanted) {
			t.Fatalf("%q, %v; want %q, %v", line, err, want, wanted)
		}
	}
	next("one", nil)
	next("", ErrCaughtUp)
	late := &growing{s.f, func() { _, err := w.WriteString("late\n"); must(t, err) }}
	s.f, s.suspect = late, true
	must(t, os.WriteFile(path+".new", []byte("new\n"), 0o600))
	must(t, os.Rename(path+".new", path))
	next("late", nil)
	next("", ErrRestarted)
	next("new", nil)
	if late.grow != nil {
		t.Error("the size was not looked at")
	}
}

// ended reads until the source says that it is of no more use, or begins anew.
func ended(t *testing.T, path string, move func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := Open(ctx, path)
	must(t, err)
	defer s.Close()
	switch s := s.(type) {
	case *file:
		s.recheck = 10 * time.Millisecond
	case *stream:
		s.recheck = 10 * time.Millisecond
	}
	for {
		if _, err = s.Next(time.Time{}); errors.Is(err, ErrCaughtUp) {
			break
		}
		must(t, err)
	}
	move()
	if _, err := s.Next(time.Time{}); err == nil || errors.Is(err, ErrDeadline) || ctx.Err() != nil {
		t.Errorf("after the move: %v, %v", err, ctx.Err())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add([]byte("one\n two\nthree"), 2)
	f.Fuzz(func(t *testing.T, input []byte, piece int) {
		if piece < 1 {
			return
		}
		var s splitter
		for _, line := range feed(&s, string(input)+"\n", piece) {
			if strings.ContainsRune(line, '\n') || !bytes.Contains(input, []byte(line)) {
				t.Fatalf("%q is no line of %q", line, input)
			}
		}
	})
}
