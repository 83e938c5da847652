// Package bustest gives tests a NATS server of their own, and connections that are ready.
package bustest

import (
	"testing"

	"github.com/pitcrew/pitcrew/bus"
)

// Cluster is whose events and commands the connections carry.
const Cluster = "c"

// Server runs until the test ends.
func Server(t testing.TB) *bus.Server {
	t.Helper()
	s, err := bus.StartServer(bus.ServerOptions{Dir: t.TempDir(), Port: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Connect gives a connection that has found or made what it needs, and is closed when the test ends.
func Connect(t testing.TB, url string) *bus.Bus {
	t.Helper()
	b, err := bus.Connect(bus.Options{URL: url, Cluster: Cluster})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}
