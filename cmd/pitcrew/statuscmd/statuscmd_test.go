package statuscmd

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
)

func run(t *testing.T, url string, args ...string) (string, error) {
	t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(append(args, "--nats", url, "--cluster", "c"))
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func put[T any](t *testing.T, b *bus.Bus, bucket, key string, v T) {
	t.Helper()
	if err := bus.NewBucket[T](b, bucket).Set(t.Context(), key, v); err != nil {
		t.Fatal(err)
	}
}

// consumes stands for a remediator that takes findings.
func consumes(t *testing.T, b *bus.Bus) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Events(ctx, bus.ActingConsumer, func(context.Context, bus.Delivery) error { return nil }, func(string, error) {})
	}()
	t.Cleanup(func() { cancel(); <-done })
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if backlog, err := b.EventBacklog(t.Context()); err == nil && backlog.Waiting > 0 {
			return
		} else if time.Since(begin) > 10*time.Second {
			t.Fatalf("nobody consumes: %+v, %v", backlog, err)
		}
	}
}

func beats(t *testing.T, b *bus.Bus, node string) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Beat(ctx, node, 200*time.Millisecond) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestAClusterWithoutProblemsHasNoneAndExitsWithZero(t *testing.T) {
	s := bustest.Server(t)
	b := bustest.Connect(t, s.URL())
	consumes(t, b)
	beats(t, b, "a1")
	out, err := run(t, s.URL())
	for _, want := range []string{"not paused", "consumes findings; 0 findings wait", "1 heard", "none is open", "0 open; in the last 24 h: none ended", "0 incidents act"} {
		if err != nil || !strings.Contains(out, want) || strings.Contains(out, "!") {
			t.Errorf("%q is not in %v\n%s", want, err, out)
		}
	}
}

func TestWhatNeedsAnOperatorComesFirstAndTheExitCodeSaysSo(t *testing.T) {
	s := bustest.Server(t)
	b := bustest.Connect(t, s.URL())
	beats(t, b, "a1")
	began := time.Now().Add(-time.Minute)
	put(t, b, bus.ControlBucket, bus.KillKey, bus.KillSwitch{On: true, By: "ann", Reason: "RMA 4711", Since: began})
	put(t, b, bus.IncidentBucket, "inc-1", incident.Incident{ID: "inc-1", State: incident.Planned, Opened: began, Waiting: "an operator's approval",
		Wait:   &incident.Wait{Reason: incident.ReasonApproval, Since: began, Reported: began},
		Faults: []incident.Fault{{Signal: "xid/79", Node: "a2", Sev: event.Fatal}}})
	put(t, b, bus.IncidentBucket, "inc-0", incident.Incident{ID: "inc-0", State: incident.Closed, Outcome: incident.Recovered, Opened: began, ClosedAt: began,
		Faults: []incident.Fault{{Signal: "xid/79", Node: "a3"}}})
	put(t, b, bus.IncidentBucket, "inc-old", incident.Incident{ID: "inc-old", State: incident.Closed, Outcome: incident.Failed, Opened: began, ClosedAt: began.Add(-25 * time.Hour),
		Faults: []incident.Fault{{Signal: "xid/79", Node: "a3"}}})
	put(t, b, bus.LedgerBucket, ledger.Key, ledger.Book{Term: 4, Tripped: map[string]time.Time{"gpu-hardware": began, "past": began.Add(-2 * time.Hour)},
		Grants: []guard.Grant{{Incident: "inc-1", Active: true, Nodes: []guard.Place{{Node: "a2"}}, Targets: []string{"b1"}}, {Incident: "inc-0", Active: true, Ended: began}}})
	for _, node := range []string{"a1", "a2"} {
		if err := b.SetCondition(t.Context(), bus.Condition{Node: node, Key: "xid/79 gpu/GPU-1", Active: true, Since: began}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.SetCondition(t.Context(), bus.Condition{Node: "a9", Key: "xid/13", Since: began}); err != nil { // cleared
		t.Fatal(err)
	}
	out, err := run(t, s.URL())
	if exit.Code(err) != exit.Unhealthy {
		t.Errorf("exit code %d: %v", exit.Code(err), err)
	}
	for k, want := range []string{"! Pitcrew is paused by ann", "! incident inc-1 needs a person: ", "! no remediator consumes findings",
		"! 1 agents with open conditions are silent: a2", "! the breaker of policy gpu-hardware refused a cordon 1m"} {
		if lines := strings.Split(out, "\n"); len(lines) <= k || !strings.HasPrefix(lines[k], want) {
			t.Errorf("line %d does not begin with %q:\n%s", k, want, out)
		}
	}
	if strings.Contains(out, "policy past") || strings.Contains(out, "a9") {
		t.Errorf("what is over is mentioned:\n%s", out)
	}
	for _, want := range []string{"1 open; in the last 24 h: 1 recovered\n", "1 incidents act, 1 nodes cordoned by them, 1 reserved"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	out, err = run(t, s.URL(), "-o", "json")
	var st Status
	if json.Unmarshal([]byte(out), &st) != nil || exit.Code(err) != exit.Unhealthy || st.Remediator.Term != 4 || len(st.Problems) != 5 || st.Incidents.Recorded != 3 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAServerThatIsAwayIsAnErrorAndNoStatus(t *testing.T) {
	out, err := run(t, "nats://127.0.0.1:1", "--wait", "100ms")
	if exit.Code(err) != exit.Unreachable || out != "" {
		t.Errorf("exit code %d, %q", exit.Code(err), out)
	}
}

func TestAPartThatCannotBeReadIsNamedAndDoesNotHideTheOthers(t *testing.T) {
	s := bustest.Server(t)
	b := bustest.Connect(t, s.URL())
	consumes(t, b)
	put(t, b, bus.LedgerBucket, ledger.Key, "not a book")
	out, err := run(t, s.URL())
	if exit.Code(err) != exit.Unhealthy || !strings.Contains(out, "! limits: cannot be read: ") || !strings.Contains(out, "consumes findings") {
		t.Errorf("%v\n%s", err, out)
	}
}
