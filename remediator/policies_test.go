package remediator

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	shipped "github.com/pitcrew/pitcrew/deploy/policies"
)

// A kubelet mounts a ConfigMap as links into ..data, and changes it by putting another folder in ..data's place.
func TestPoliciesOfAConfigMapAreReloadedWhenTheKubeletChangesIt(t *testing.T) {
	dir := t.TempDir()
	project := func(version, mode string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		names, err := fs.Glob(shipped.Files, "*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			raw, err := fs.ReadFile(shipped.Files, name)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(raw), "mode: observe", "mode: "+mode)
			if err := os.WriteFile(filepath.Join(dir, version, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			_ = os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name))
		}
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	project("..1", "observe")
	p, err := newPolicies([]string{dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 8)
	p.tell = func() { told <- struct{}{} }
	ended := make(chan error, 1)
	go func() { ended <- p.watch(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	time.Sleep(50 * time.Millisecond) // until it watches
	project("..2", "enforce")
	select {
	case <-told:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was reloaded")
	}
	if n := len(p.current().Policies()); n < 3 {
		t.Errorf("%d policies", n)
	}
	for _, x := range p.current().Policies() {
		if x.Spec.Mode != "enforce" {
			t.Errorf("policy %s is still in mode %s", x.Metadata.Name, x.Spec.Mode)
		}
	}
}
