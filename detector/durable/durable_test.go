package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
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
