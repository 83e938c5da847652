package remediator

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// aged is a board a while after noon, when its conditions began.
func aged(after time.Duration, b *board) *board {
	b.clock = func() time.Time { return noon.Add(after) }
	return b
}

func TestAConditionThatOnlyTheKernelLogReportedEndsByAge(t *testing.T) {
	const week = 7 * 24 * time.Hour
	line, measured := holds("xid/79", "gpu/GPU-1", byLine), holds("gpu/ecc", "gpu/GPU-1")
	for name, c := range map[string]struct {
		after time.Duration
		about event.Event
		want  incident.Standing
	}{
		"a line, young":          {week - time.Minute, *line.Event, incident.Holds},
		"a line, too old":        {week + time.Minute, *line.Event, incident.Ended},
		"a measurement, too old": {week + time.Minute, *measured.Event, incident.Holds},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := aged(c.after, aboard(line, measured)).Standing(c.about)
			if got != c.want || c.want == incident.Ended && !strings.Contains(why, "kernelConditionMaxAge") {
				t.Errorf("%v, %q, want %v", got, why, c.want)
			}
		})
	}
}

func TestTheStrictestPolicySaysHowLongALineCounts(t *testing.T) {
	p := func(d time.Duration) policy.Policy {
		return policy.Policy{Spec: policy.Spec{Guards: policy.Guards{KernelConditionMaxAge: policy.Duration(d)}}}
	}
	for name, c := range map[string]struct {
		book []policy.Policy
		want time.Duration
	}{
		"no policy":        {nil, 30 * 24 * time.Hour},
		"the default":      {[]policy.Policy{p(0)}, 7 * 24 * time.Hour},
		"the strictest":    {[]policy.Policy{p(48 * time.Hour), p(time.Hour), p(0)}, time.Hour},
		"longer than both": {[]policy.Policy{p(20 * 24 * time.Hour)}, 20 * 24 * time.Hour},
	} {
		j := &judge{policies: fixed{policy.NewBook(c.book)}}
		if got := j.kernelConditionMaxAge(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestAnOldLineOfTheKernelLogKeepsNoNodeCordoned(t *testing.T) {
	line := holds("xid/79", "gpu/GPU-1", byLine)
	if n := len(aged(time.Hour, aboard(line)).grave("n1")); n != 1 {
		t.Errorf("young: %d conditions count", n)
	}
	if n := len(aged(8*24*time.Hour, aboard(line)).grave("n1")); n != 0 {
		t.Errorf("old: %d conditions count", n)
	}
}
