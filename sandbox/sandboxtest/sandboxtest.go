// Package sandboxtest gives tests a running sandbox: one per test binary, started when first asked for.
//
// It ends with the test binary, also when that is killed: the sandbox's dead man's switch sees to it.
package sandboxtest

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/pitcrew/pitcrew/sandbox"
)

var shared struct {
	once sync.Once
	s    *sandbox.Sandbox
	err  error
}

// Cluster returns the test binary's cluster: two racks of three nodes, and JobSet's controller. Tests that break a node repair it.
func Cluster(t testing.TB) *sandbox.Sandbox {
	t.Helper()
	shared.once.Do(func() {
		shared.s, shared.err = sandbox.Up(context.Background(), sandbox.Options{JobSet: true, Progress: os.Stderr})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.s
}

// Main runs a package's tests and stops the cluster if one was started; use it in TestMain to see its processes gone before the
// binary ends.
func Main(m *testing.M) {
	code := m.Run()
	if shared.s != nil {
		if err := shared.s.Stop(); err != nil && code == 0 {
			code = 1
		}
	}
	os.Exit(code)
}
