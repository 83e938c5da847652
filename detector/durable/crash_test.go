package durable

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var errCrashed = errors.New("the machine is off")

// machine goes off at its n-th call. What was not synced by then is lost, as after a power cut.
type machine struct {
	disk
	at, calls int
	synced    map[string]bool // content, by the path that it was written to
}

func (m *machine) step() error {
	m.calls++
	if m.calls >= m.at {
		return errCrashed
	}
	return nil
}

func (m *machine) MkdirAll(dir string) error { return errors.Join(m.step(), m.disk.MkdirAll(dir)) }
func (m *machine) SyncDir(string) error      { return m.step() }

func (m *machine) Remove(path string) error {
	if err := m.step(); err != nil {
		return err
	}
	return m.disk.Remove(path)
}

func (m *machine) Create(path string) (file, error) {
	if err := m.step(); err != nil {
		return nil, err
	}
	f, err := m.disk.Create(path)
	m.synced[path] = false
	return &part{f, m, path}, err
}

func (m *machine) Rename(from, to string) error {
	if err := m.step(); err != nil {
		return err
	}
	if err := m.disk.Rename(from, to); err != nil {
		return err
	}
	m.synced[to] = m.synced[from]
	return nil
}

// off loses what was not synced.
func (m *machine) off(t *testing.T) {
	for path, synced := range m.synced {
		if _, err := os.Stat(path); err == nil && !synced {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

type part struct {
	file
	m    *machine
	path string
}

func (p *part) Write(b []byte) (int, error) {
	if err := p.m.step(); err != nil {
		n, _ := p.file.Write(b[:len(b)/2])
		return n, err
	}
	return p.file.Write(b)
}

func (p *part) Sync() error {
	if err := p.m.step(); err != nil {
		return err
	}
	p.m.synced[p.path] = true
	return nil
}

func (p *part) Close() error { return errors.Join(p.m.step(), p.file.Close()) }

func TestACrashInEachCallOfAWriteLeavesAWholeSnapshot(t *testing.T) {
	for at := 1; ; at++ {
		path := filepath.Join(t.TempDir(), "state", "open.json")
		for _, s := range []string{"first", "second"} {
			if err := Write(path, []byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		m := &machine{at: at, synced: map[string]bool{path: true, path + ".old": true}}
		err := write(m, path, []byte("the third one"))
		m.off(t)
		got := ""
		read := Read(path, func(b []byte) error {
			if len(b) == 0 || !strings.Contains("first second the third one", string(b)) || string(b) == "the th" {
				return errors.New("torn")
			}
			got = string(b)
			return nil
		})
		if read != nil || got == "first" || err == nil && got != "the third one" {
			t.Errorf("crash in call %d (%v): read %q, %v", at, err, got, read)
		}
		if err := Write(path, []byte("after")); err != nil {
			t.Errorf("crash in call %d: the next process cannot write: %v", at, err)
		}
		if m.calls < at { // it was not reached
			if at < 8 {
				t.Errorf("a write has only %d calls", at-1)
			}
			return
		}
	}
}

func TestAFileWritesSoonAfterAChangeAndAtItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "open.json")
	content := make(chan string, 1)
	content <- "a"
	f := NewFile(Options{Path: path, After: time.Millisecond, Failed: func(err error) { t.Error(err) }, Content: func(last bool) ([]byte, error) {
		select {
		case s := <-content:
			return []byte(s), nil
		default:
		}
		if last {
			return []byte("last"), nil
		}
		return nil, nil
	}})
	f.Start()
	for range 100 {
		f.Changed()
	}
	read := func() (s string) {
		_ = f.Read(func(b []byte) error { s = string(b); return nil })
		return s
	}
	for deadline := time.Now().Add(20 * time.Second); read() != "a"; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("read %q", read())
		}
	}
	f.Stop()
	if got := read(); got != "last" {
		t.Errorf("read %q", got)
	}
}

func TestAWriteThatFailsIsReportedAndTheNextOneIsTried(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "state")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil { // a file where the folder should be
		t.Fatal(err)
	}
	failures := 0
	f := NewFile(Options{
		Path: filepath.Join(blocked, "open.json"), Content: func(bool) ([]byte, error) { return []byte("x"), nil }, Failed: func(error) { failures++ },
	})
	f.Save()
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	f.Save()
	if err := f.Read(func([]byte) error { return nil }); err != nil || failures != 1 {
		t.Errorf("%v after %d failures", err, failures)
	}
}

func TestWithoutAPathNothingIsReadOrWritten(t *testing.T) {
	f := NewFile(Options{Content: func(bool) ([]byte, error) { t.Error("asked for content"); return nil, nil }})
	f.Start()
	f.Changed()
	f.Save()
	if err := f.Read(func([]byte) error { t.Error("something was read"); return nil }); err != nil {
		t.Error(err)
	}
	f.Stop()
}
