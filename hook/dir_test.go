package hook

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const testUID = "0b9f5a1e-1111-4222-8333-444455556666"

// openTestDir is an open pod directory and its path.
func openTestDir(t *testing.T) (*Dir, string) {
	t.Helper()
	root := t.TempDir()
	path := PodDir(root, testUID)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := OpenPodDir(root, testUID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, path
}

func TestOnlyARegularFileIsARing(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "ring")
	if err := os.WriteFile(secret, goldenRing(t), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]func(path string) error{
		"a symlink":                  func(p string) error { return os.Symlink(secret, p) },
		"a FIFO, and nobody waits":   func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a directory":                func(p string) error { return os.Mkdir(p, 0o700) },
		"a symlink out of the world": func(p string) error { return os.Symlink("/dev/zero", p) },
	}
	for name, lay := range cases {
		t.Run(name, func(t *testing.T) {
			d, dir := openTestDir(t)
			if err := lay(filepath.Join(dir, RingName(1))); err != nil {
				t.Fatal(err)
			}
			if r, err := OpenRing(d, 1, nil); err == nil {
				_ = r.Close()
				t.Error("it was opened")
			}
		})
	}
}

func TestNoSymlinkOnTheWayToAPodIsFollowed(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", testUID, "volumes", "kubernetes.io~empty-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, PodDir(root, testUID)); err != nil {
		t.Fatal(err)
	}
	if d, err := OpenPodDir(root, testUID); err == nil {
		_ = d.Close()
		t.Error("the volume is a symlink and was followed")
	}
	for _, uid := range []string{"..", "a/b", "", "A", "x\n"} {
		if d, err := OpenPodDir(root, uid); err == nil {
			_ = d.Close()
			t.Errorf("%q was taken for a pod UID", uid)
		}
	}
}
