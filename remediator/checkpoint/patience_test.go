package checkpoint

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/bus"
)

// flaky is an agent with one rank whose every command is answered as a well one's, except where lost says otherwise.
type flaky struct {
	calls atomic.Int64
	lost  func(call int64, verb string) error // errHush: no answer at all
	rank  bus.RankStatus
}

var errHush = errors.New("no answer")

func (f *flaky) Request(ctx context.Context, _, verb string, c bus.Command) (bus.Reply, error) {
	if err := f.lost(f.calls.Add(1), verb); errors.Is(err, errHush) {
		<-ctx.Done()
		return bus.Reply{}, ctx.Err()
	} else if err != nil {
		return bus.Reply{}, err
	}
	answer := bus.RankReply{PodUID: "pod", T: map[string]string{bus.VerbArm: "armed", bus.VerbGo: "saved", bus.VerbManifest: "manifested"}[verb], AtStep: c.AtStep}
	if verb == bus.VerbGo {
		answer.Save = &bus.Save{Step: 12, Dir: "step-12"}
	}
	return bus.Reply{Ranks: []bus.RankReply{answer}, Pods: []bus.PodStatus{{PodUID: "pod", Ranks: []bus.RankStatus{f.rank}}}}, nil
}

func well() bus.RankStatus {
	return bus.RankStatus{WorldSize: 1, Step: 10, Connected: true, CanSave: true, Exit: "running", Section: "step"}
}

func (f *flaky) save(t *testing.T) (bus.Save, time.Duration, error) {
	t.Helper()
	start := time.Now()
	s, err := (&Coordinator{Agents: f, Log: slog.New(slog.DiscardHandler)}).Save(t.Context(), Request{ID: "r", Members: []Member{{Node: "n", PodUID: "pod"}}})
	return s, time.Since(start), err
}

func TestARoundWaitsForAnAgentThatIsBeingReplaced(t *testing.T) {
	for name, lost := range map[string]func(time.Duration, string) error{
		"away when the ranks are observed": func(since time.Duration, _ string) error {
			if since < 4*time.Second {
				return bus.ErrNoAgent
			}
			return nil
		},
		"gone between arm and go": func(since time.Duration, verb string) error {
			if verb == bus.VerbGo && since < 2*time.Second {
				return errHush
			}
			return nil
		},
		"gone before it answered to the manifest": func(since time.Duration, verb string) error {
			if verb == bus.VerbManifest && since < 2*time.Second {
				return errHush
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				f := &flaky{rank: well(), lost: func(_ int64, verb string) error { return lost(time.Since(start), verb) }}
				if s, took, err := f.save(t); err != nil || s.Step != 12 {
					t.Errorf("after %s: %+v, %v", took, s, err)
				}
			})
		})
	}
}

func TestARoundDoesNotWaitForWhatDoesNotComeByItself(t *testing.T) {
	cannot := well()
	cannot.CanSave = false
	dead := well()
	dead.Connected, dead.Exit = false, "signal 9"
	for name, c := range map[string]struct {
		rank bus.RankStatus
		lost error
		most time.Duration
	}{
		"a rank that cannot save":             {cannot, nil, 0},
		"a rank that has ended":               {dead, nil, 0},
		"an agent that never comes back":      {well(), bus.ErrNoAgent, agentWait + time.Second},
		"an agent that answers with an error": {well(), errors.New("refused"), agentWait + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{rank: c.rank, lost: func(int64, string) error { return c.lost }}
				if _, took, err := f.save(t); !errors.Is(err, ErrImpossible) || took > c.most {
					t.Errorf("after %s, at most %s is right: %v", took, c.most, err)
				}
			})
		})
	}
}

func TestARankThatIsNotAttachedToItsNewAgentYetIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := &flaky{rank: well()}
		f.rank.Connected = false
		f.lost = func(int64, string) error {
			if time.Since(start) > time.Second {
				f.rank.Connected = true
			}
			return nil
		}
		if _, _, err := f.save(t); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{rank: well(), lost: func(int64, string) error { return nil }}
		f.rank.Connected = false
		if _, took, err := f.save(t); !errors.Is(err, ErrImpossible) || took > rankWait+time.Second {
			t.Errorf("after %s: %v", took, err)
		}
	})
}
