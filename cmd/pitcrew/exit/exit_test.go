package exit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func TestEachKindOfErrorHasItsCode(t *testing.T) {
	for code, errs := range map[int][]error{
		exit.Done:        {nil, exit.With(exit.Refused, nil)},
		exit.Failed:      {errors.New("any")},
		exit.Usage:       {exit.With(exit.Usage, errors.New("unknown flag"))},
		exit.NotFound:    {bus.ErrNotFound, cluster.ErrNotFound, exit.With(exit.NotFound, context.DeadlineExceeded)},
		exit.Refused:     {bus.ErrUnauthorized, cluster.ErrForbidden, cluster.ErrHeld},
		exit.Unreachable: {bus.ErrUnreachable},
		exit.TimedOut:    {context.DeadlineExceeded, bus.ErrNoAgent},
		exit.Unhealthy:   {exit.With(exit.Unhealthy, errors.New("2 checks failed"))},
	} {
		for _, err := range errs {
			wrapped := err
			if err != nil {
				wrapped = fmt.Errorf("read nodes: %w", err)
			}
			if got := exit.Code(wrapped); got != code {
				t.Errorf("%v: %d, want %d", err, got, code)
			}
		}
	}
}

func TestAServerThatIsAwayIsUnreachableThoughTheWaitTimedOut(t *testing.T) {
	b, err := bus.Connect(bus.Options{URL: "nats://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	if err := b.Wait(ctx); exit.Code(err) != exit.Unreachable || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d: %v", exit.Code(err), err)
	}
}

func TestThePageOfTheCommandLineListsEachCode(t *testing.T) {
	page, err := os.ReadFile("../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for code := exit.Done; code <= exit.Unhealthy; code++ {
		if !strings.Contains(string(page), fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("docs/cli.md has no row for exit code %d", code)
		}
	}
}
