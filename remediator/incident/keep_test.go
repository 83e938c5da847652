package incident

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// answers is a cluster that says the same of every job.
type answers struct {
	*world
	err error
}

func (a answers) Gang(context.Context, event.Job) (cluster.Gang, error) { return cluster.Gang{}, a.err }

// The record fences older attempts: without it the next one of the same job would begin at 1 again.
func TestTheAttemptsOfAJobAreForgottenOnlyIfTheAPIServerSaysThatItIsNoMore(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		kept bool
	}{
		"it is there":                    {nil, true},
		"it does not exist":              {fmt.Errorf("job: %w", cluster.ErrNotFound), false},
		"another has its name":           {fmt.Errorf("job: %w", cluster.ErrStale), false},
		"the API server does not answer": {fmt.Errorf("job: %w", cluster.ErrRetry), true},
		"it may not be read":             {fmt.Errorf("job: %w", cluster.ErrForbidden), true},
		"it cannot be restarted":         {fmt.Errorf("job: %w", cluster.ErrUnsupported), true},
		"the call was given up":          {context.DeadlineExceeded, true},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.stop() // its own keeper
				s.attempts.values["job-train"] = kept[bus.Attempt]{bus.Attempt{Attempt: 7}, 1}
				s.e.Cluster = answers{s.world, c.err}
				if err := s.e.keepAttempts(context.Background()); err != nil {
					t.Fatal(err)
				}
				if _, _, err := s.attempts.Get(context.Background(), "job-train"); (err == nil) != c.kept {
					t.Errorf("kept: %v", err)
				}
			})
		})
	}
}

func TestOldIncidentsAreForgottenAndOpenOnesNever(t *testing.T) {
	on(t, func(s *stage) {
		s.stop() // its own keeper
		now := time.Now()
		for id, i := range map[string]Incident{
			"open since long": {State: Planned, Opened: now.Add(-2 * keepFor)}, "closed lately": {State: Closed, ClosedAt: now.Add(-time.Hour)},
			"closed long ago": {State: Closed, ClosedAt: now.Add(-keepFor - time.Hour)},
		} {
			i.ID = id
			s.incidents.values[id] = kept[Incident]{i, 1}
		}
		if err := s.e.keepIncidents(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, gone := s.incidents.values["closed long ago"]; gone || len(s.incidents.values) != 2 {
			t.Errorf("left: %d", len(s.incidents.values))
		}
		for k := range closedKept + 5 {
			id := fmt.Sprint("inc-", k)
			s.incidents.values[id] = kept[Incident]{Incident{ID: id, State: Closed, ClosedAt: now.Add(-time.Duration(k) * time.Second)}, 1}
		}
		if err := s.e.keepIncidents(context.Background()); err != nil {
			t.Fatal(err)
		}
		_, newest := s.incidents.values["inc-0"]
		_, open := s.incidents.values["open since long"]
		if _, old := s.incidents.values["closed lately"]; old || !newest || !open || len(s.incidents.values) != closedKept+1 {
			t.Errorf("%d left, the newest %v, the open one %v", len(s.incidents.values), newest, open)
		}
	})
}
