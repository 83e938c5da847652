package hook_test

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

func TestMain(m *testing.M) {
	hooktest.Main()
	previousMain()
	goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit))
}

// soon bounds waits that end by an event; it is generous because the machine may be busy.
const soon = 10 * time.Second

const podUID = "0b9f5a1e-1111-4222-8333-444455556666"

// watch starts a Fleet and gives its events.
func watch(t *testing.T, root string) (*hook.Fleet, <-chan hook.Event) {
	t.Helper()
	f := hook.NewFleet(hook.FleetOptions{KubeletRoot: root})
	events := make(chan hook.Event, 4096)
	f.Subscribe(func(e hook.Event) { events <- e })
	f.Start()
	t.Cleanup(f.Close)
	return f, events
}

// next is the next event of a kind. Others before it are let pass, problems are logged.
func next(t *testing.T, events <-chan hook.Event, kind hook.EventKind) hook.Event {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	for {
		select {
		case e := <-events:
			if e.Kind == kind {
				return e
			}
			if e.Kind == hook.Problem {
				t.Logf("problem: %v", e.Err)
			}
		case <-timer.C:
			t.Fatalf("no event of kind %d within %v", kind, soon)
		}
	}
}

// never fails if an event of the kind comes within d.
func never(t *testing.T, events <-chan hook.Event, kind hook.EventKind, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case e := <-events:
			if e.Kind == kind {
				t.Fatalf("unexpected event of kind %d: %+v", kind, e)
			}
		case <-timer.C:
			return
		}
	}
}
