package detectorconnector

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pitcrew/pitcrew/event"
)

// keeper is a gateway that keeps what it knows of jobs in a file.
func keeper(t *testing.T, file string, at int64) *learner {
	t.Helper()
	return learnerAt(t, Jobs{StateFile: file}, at)
}

// slowed makes steps of a job of which one rank takes half as long again.
func (l *learner) slowed(from, steps int, factor float64) {
	l.t.Helper()
	for i := from; i < from+steps; i++ {
		at := time.Unix(0, l.at.Add(int64(250*time.Millisecond)))
		md := pmetric.NewMetrics()
		for rank := range 8 {
			compute := 0.1
			if rank == 5 {
				compute *= factor
			}
			step(md, "n0", rank, int64(i), at, 0.2, compute)
		}
		if err := l.ConsumeMetrics(l.t.Context(), md); err != nil {
			l.t.Fatal(err)
		}
	}
}

func TestANewGatewayGoesOnWithTheJobsOfTheOneBeforeAndSaysNothingTwice(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "jobs")
	first := keeper(t, file, t0.UnixNano())
	first.slowed(1, 60, 1)
	first.slowed(61, 40, 1.5)
	if words, _ := first.said(); len(words) != 1 || words[0] != "rank/straggler" {
		t.Fatalf("said %v", words)
	}
	first.end()

	second := keeper(t, file, first.at.Load())
	if n := second.logs.FilterMessage("jobs of before are known").FilterField(zap.Int64("open", 1)).Len(); n != 1 {
		t.Errorf("it does not say what it loaded: %+v", second.logs.All())
	}
	second.slowed(101, 60, 1.5)
	if words, _ := second.said(); len(words) != 0 {
		t.Errorf("said again: %v", words)
	}
	second.slowed(161, 60, 1)
	second.end()
	if words, es := second.said(); len(words) != 1 || es[0].Type != event.Recovery {
		t.Errorf("it is not over: %v", words)
	}
}

func TestACorruptFileOfJobsIsRefusedAndTheOlderOneUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jobs")
	first := keeper(t, file, t0.UnixNano())
	first.slowed(1, 60, 1)
	first.running.Save()
	first.slowed(61, 60, 1)
	first.end()
	if err := os.WriteFile(file, []byte("no snapshot"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := keeper(t, file, first.at.Load())
	defer second.end()
	if c, _ := second.counts(); c.Ranks != 8 || second.logs.FilterLevelExact(zapcore.WarnLevel).Len() != 1 {
		t.Errorf("%+v; %+v", c, second.logs.All())
	}
	for _, f := range []string{file, file + ".old"} {
		if err := os.WriteFile(f, []byte("no snapshot"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	third := keeper(t, file, first.at.Load())
	defer third.end()
	if c, _ := third.counts(); c.Ranks != 0 || third.logs.FilterMessageSnippet("learning anew").Len() != 1 {
		t.Errorf("%+v; %+v", c, third.logs.All())
	}
}

func TestJobsAreSavedEveryTenSecondsWhenTheyChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jobs")
	l := keeper(t, file, t0.UnixNano())
	defer l.end()
	l.running.Save()
	if _, err := os.Stat(file); err == nil {
		t.Error("nothing is known, and it is saved")
	}
	l.slowed(1, 20, 1)
	l.running.Save()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	l.slowed(21, 20, 1) // five seconds
	l.running.Save()
	if _, err := os.Stat(file); err == nil {
		t.Error("saved again after five seconds")
	}
	l.slowed(41, 21, 1)
	l.running.Save()
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
