package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestARefusedSnapshotIsReplacedByTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	var got string
	take := func(b []byte) error {
		if string(b) == "torn" {
			return errors.New("torn")
		}
		got = string(b)
		return nil
	}
	if err := Read(path, take); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing was written: %v", err)
	}
	for _, s := range []string{"first", "second"} {
		if err := Write(path, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Read(path, take); err != nil || got != "second" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(path, take); err != nil || got != "first" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := os.Stat(path + ".tmp"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a temporary file is left: %v", err)
	}
}

func TestASnapshotThatCannotBeReadIsNotAMissingOne(t *testing.T) {
	for _, name := range []string{"state", "state.old"} {
		path := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte("torn"), 0o600); err != nil {
			t.Fatal(err)
		}
		torn := errors.New("torn")
		if err := Read(path, func([]byte) error { return torn }); !errors.Is(err, torn) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAWriteThatFailedIsTriedAgainThoughNothingChanges(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		blocked, failures := filepath.Join(dir, "state"), 0
		if err := os.WriteFile(blocked, nil, 0o600); err != nil { // where its folder should be
			t.Fatal(err)
		}
		path := filepath.Join(blocked, "open.json")
		f := NewFile(Options{Path: path, Content: func(bool) ([]byte, error) { return []byte("x"), nil }, Failed: func(error) { failures++ }})
		f.Start()
		defer f.Stop()
		f.Changed()
		time.Sleep(retryAfter / 2)
		if err := os.Remove(blocked); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryAfter)
		if b, err := os.ReadFile(path); failures != 1 || string(b) != "x" {
			t.Errorf("%d failures, then %q, %v", failures, b, err)
		}
	})
}
