package sandbox

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// controlPlane lists the binaries in the order in which they are built, and the package of each.
var controlPlane = []struct{ name, pkg string }{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
}

// Binaries returns the directory that holds the control plane: KUBEBUILDER_ASSETS when set, else Pitcrew's cache, else it is built into
// the cache from the pinned modules in sandbox/controlplane, which takes minutes the first time. Concurrent callers wait for one build.
func Binaries(ctx context.Context, progress io.Writer) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		for _, b := range controlPlane {
			if _, err := os.Stat(filepath.Join(dir, b.name)); err != nil {
				return "", fmt.Errorf("KUBEBUILDER_ASSETS=%s lacks %s: unset it to have the control plane built, or point it to a complete set", dir, b.name)
			}
		}
		return dir, nil
	}
	return buildCached(ctx, "controlplane", controlPlane, progress)
}

// buildCached builds packages of the nested module sandbox/<module> into the cache, once for each state of its go.mod and go.sum.
func buildCached(ctx context.Context, module string, want []struct{ name, pkg string }, progress io.Writer) (string, error) {
	root, err := RepoRoot()
	if err != nil {
		return "", err
	}
	src := filepath.Join(root, "sandbox", module)
	sum := sha256.New()
	for _, f := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(src, f))
		if err != nil {
			return "", fmt.Errorf("sandbox: %w", err)
		}
		sum.Write(b)
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, module, hex.EncodeToString(sum.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	for _, b := range want {
		out := filepath.Join(dir, b.name)
		if _, err := os.Stat(out); err == nil {
			continue
		}
		fmt.Fprintf(progress, "building %s (once; a few minutes on a small machine)\n", b.name)
		began := time.Now()
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", out+".tmp", b.pkg)
		cmd.Dir = src
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
		if text, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("sandbox: go build %s: %w\n%s", b.pkg, err, text)
		}
		if err := os.Rename(out+".tmp", out); err != nil {
			return "", err
		}
		fmt.Fprintf(progress, "built %s in %.0f s\n", b.name, time.Since(began).Seconds())
	}
	return dir, nil
}

// CacheDir is where things that are slow to make are kept: PITCREW_CACHE, or pitcrew in the user's cache directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("PITCREW_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory: %w; set PITCREW_CACHE", err)
	}
	return filepath.Join(dir, "pitcrew"), nil
}

// RepoRoot finds Pitcrew's source: PITCREW_ROOT, or the nearest module root above the working directory or above the executable.
func RepoRoot() (string, error) {
	var starts []string
	if dir := os.Getenv("PITCREW_ROOT"); dir != "" {
		starts = append(starts, dir)
	} else {
		if wd, err := os.Getwd(); err == nil {
			starts = append(starts, wd)
		}
		if exe, err := os.Executable(); err == nil {
			starts = append(starts, filepath.Dir(exe))
		}
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			if moduleIn(dir) == "github.com/pitcrew/pitcrew" {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("pitcrew's source was not found above the working directory: run from a checkout or set PITCREW_ROOT")
}

func moduleIn(dir string) string {
	f, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		return ""
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if m, ok := strings.CutPrefix(sc.Text(), "module "); ok {
			return strings.TrimSpace(m)
		}
	}
	return ""
}

func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for %s, which another process holds: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
