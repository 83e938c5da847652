package incident

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// The bucket was lost, or its record kept for less time than the job trains: what runs says which attempt it is.
func TestTheNextAttemptIsNewerThanBothTheRecordAndWhatRuns(t *testing.T) {
	for name, c := range map[string]struct{ record, runs, meanwhile, want int }{
		"no record":                   {0, 5, 0, 6},
		"a record of before":          {3, 5, 0, 6},
		"a record that is ahead":      {7, 5, 0, 8},
		"the record of what runs":     {5, 5, 0, 6},
		"neither was ever restarted":  {0, 0, 0, 1},
		"another began one meanwhile": {0, 0, 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *stage) {
				s.mu.Lock()
				g := s.gangs["job-train"]
				g.attempt = c.runs
				has := func(attempt int) {
					s.attempts.rev++
					s.attempts.values["job-train"] = kept[bus.Attempt]{bus.Attempt{Job: g.Job, Attempt: attempt, NProc: nproc, WorldSize: 2 * nproc}, s.attempts.rev}
				}
				if c.record > 0 {
					has(c.record)
				}
				s.mute = c.record > c.runs // its ranks wait to begin
				s.mu.Unlock()
				s.e.Stepped = func(i *Incident) {
					s.mu.Lock()
					defer s.mu.Unlock()
					switch {
					case i.State == Restarted:
						s.mute = false
					case i.State == Placed && c.meanwhile > 0 && len(s.attempts.values) == 0:
						has(c.meanwhile)
					}
				}
				s.says(at("xid/79", "n1", func(e *event.Event) { e.Data.Severity = event.Fatal }))
				if i := s.closes(time.Minute, Recovered); i.Attempt != c.want {
					t.Errorf("attempt %d, want %d", i.Attempt, c.want)
				}
			})
		})
	}
}

func TestAnIncidentWhoseRecordIsDeletedIsLeftWhereItStands(t *testing.T) {
	for _, state := range []State{Correlated, Planned, Approved, Checkpointed} {
		t.Run(string(state), func(t *testing.T) {
			on(t, func(s *stage) {
				if state == Planned {
					asks(s) // it waits there
				}
				s.says(at("gpu/row-remap", "n1"))
				s.passes(state)
				s.mu.Lock()
				clear(s.incidents.values)
				s.mu.Unlock()
				time.Sleep(5 * time.Minute)
				if open, _ := s.e.Incidents(); len(open) > 0 || len(s.incidents.values) > 0 {
					t.Errorf("%d open, %d stored, did %q", len(open), len(s.incidents.values), s.did)
				}
				if s.count("evict train-0-1") > 0 || len(s.attempts.values) > 0 {
					t.Errorf("did %q", s.did)
				}
			})
		})
	}
}
