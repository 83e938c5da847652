// Package durable keeps a snapshot in a file so that a crash at any point leaves a whole one: the new one is written beside the
// old, synced and renamed, and the one before stays as path.old. It promises nothing of the bytes: who reads them checks them.
//
// Write and Read are one write and one read. A File also decides when to write.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// files is the part of a file system that a write uses. Tests make each call fail.
type files interface {
	MkdirAll(dir string) error
	Create(path string) (file, error)
	Rename(from, to string) error
	SyncDir(dir string) error
	Remove(path string) error
}

type file interface {
	io.WriteCloser
	Sync() error
}

// disk is the real one.
type disk struct{}

func (disk) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

func (disk) Create(path string) (file, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}

func (disk) Rename(from, to string) error { return os.Rename(from, to) }
func (disk) Remove(path string) error     { return os.Remove(path) }

func (disk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Write makes the folder if it is missing, writes b beside path, syncs it, keeps the one before as path.old, and renames.
func Write(path string, b []byte) error { return write(disk{}, path, b) }

func write(on files, path string, b []byte) error {
	if err := on.MkdirAll(filepath.Dir(path)); err != nil {
		return err
	}
	tmp := path + ".tmp"
	f, err := on.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, on.Remove(tmp))
	}
	if err := on.Rename(path, path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := on.Rename(tmp, path); err != nil {
		return err
	}
	return on.SyncDir(filepath.Dir(path))
}

// Read gives take the newest snapshot of path, and the older one if take refuses it. The error is fs.ErrNotExist only if there is neither.
func Read(path string, take func([]byte) error) error {
	var failed, missing error
	for _, p := range []string{path, path + ".old"} {
		b, err := os.ReadFile(p)
		if err == nil {
			if err = take(b); err == nil {
				return nil
			}
			err = fmt.Errorf("%s: %w", p, err)
		}
		if errors.Is(err, fs.ErrNotExist) {
			missing = err
			continue
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return failed
	}
	return missing
}
