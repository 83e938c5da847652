// Package durable keeps a snapshot in a file so that a crash at any point leaves a whole one: the new one is written beside the
// old, synced and renamed, and the one before stays as path.old. It promises nothing of the bytes: who reads them checks them.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write writes b beside path, syncs it, keeps the one before as path.old, and renames.
func Write(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read gives take the newest snapshot of path, and the older one if take refuses it. Where there is none, the error is
// fs.ErrNotExist.
func Read(path string, take func([]byte) error) error {
	var all error
	for _, p := range []string{path, path + ".old"} {
		b, err := os.ReadFile(p)
		if err == nil {
			if err = take(b); err == nil {
				return nil
			}
			err = fmt.Errorf("%s: %w", p, err)
		}
		all = errors.Join(all, err)
	}
	return all
}
