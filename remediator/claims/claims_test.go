package claims

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
)

// read is what a rank says that it read, age seconds ago.
func read(epoch int64, attempt int, step, count int64, age float64) bus.RankStatus {
	return bus.RankStatus{Attempt: attempt, Exit: "running", Section: "eval", Claim: &bus.ClaimReading{Epoch: epoch, Attempt: attempt, Step: step, Count: count, AgeS: age}}
}

func TestOnlyAHeartbeatThatWasReadTwiceAndStoodStillIsSilent(t *testing.T) {
	type ranks = map[int]bus.RankStatus
	type look struct {
		at    time.Duration
		ranks ranks
	}
	still := func(age float64) ranks { return ranks{1: read(3, 2, 40, 9, age)} }
	for name, c := range map[string]struct {
		looks []look
		want  Progress
		why   string
	}{
		"read twice, 15 s apart, and equal":             {[]look{{0, still(1)}, {15 * time.Second, still(1)}}, Silent, "without a change (claim 3, step 40)"},
		"one reading":                                   {[]look{{0, still(1)}}, Unknown, "not read twice"},
		"two readings 12 s apart":                       {[]look{{0, still(0)}, {12 * time.Second, still(0)}}, Unknown, "not read twice"},
		"the same old reading, heard again":             {[]look{{0, still(1)}, {15 * time.Second, still(16)}, {time.Minute, still(61)}}, Unknown, "not read twice"},
		"a first reading that claims to be an hour old": {[]look{{0, still(3600)}, {2 * time.Second, still(0)}}, Unknown, "not read twice"},
		"a reading from the future":                     {[]look{{0, still(-3600)}, {5 * time.Second, still(-3600)}}, Unknown, "not read twice"},
		"the step goes up":                              {[]look{{0, still(1)}, {15 * time.Second, ranks{1: read(3, 2, 41, 12, 1)}}}, Stepping, "shows new steps (claim 3)"},
		"only the count goes up":                        {[]look{{0, still(1)}, {15 * time.Second, ranks{1: read(3, 2, 40, 12, 1)}}}, Alive, "continues, at one step (claim 3)"},
		"the step went up, and stood still for 10 s":    {[]look{{0, still(1)}, {5 * time.Second, ranks{1: read(3, 2, 41, 10, 1)}}, {15 * time.Second, ranks{1: read(3, 2, 41, 10, 1)}}}, Stepping, ""},
		"the step went up, and stood still for 20 s":    {[]look{{0, still(1)}, {5 * time.Second, ranks{1: read(3, 2, 41, 10, 1)}}, {25 * time.Second, ranks{1: read(3, 2, 41, 10, 1)}}}, Silent, ""},
		"a later claim":                                 {[]look{{0, still(1)}, {15 * time.Second, ranks{1: read(4, 3, 40, 9, 1)}}}, Unknown, "not read twice"},
		"an earlier claim again":                        {[]look{{0, ranks{1: read(4, 3, 50, 2, 1)}}, {time.Second, still(0)}, {20 * time.Second, still(0)}}, Unknown, "not read twice"},
		"rank 0 itself says so":                         {[]look{{0, ranks{0: read(3, 2, 40, 9, 1)}}, {15 * time.Second, ranks{0: read(3, 2, 40, 9, 1)}}}, Unknown, "no rank on another node"},
		"rank 0 runs on another node, and cannot reach the storage": {[]look{{0, ranks{0: {Attempt: 2, Exit: "running"}, 1: read(3, 2, 40, 9, 1)}},
			{15 * time.Second, ranks{0: {Attempt: 2, Exit: "running"}, 1: read(3, 2, 40, 9, 1)}}}, Unknown, "rank 0"},
		"another reader saw a later beat": {[]look{{0, ranks{1: read(3, 2, 40, 9, 1), 2: read(3, 2, 40, 10, 1)}},
			{15 * time.Second, ranks{1: read(3, 2, 40, 9, 1)}}}, Unknown, "not read twice"},
		"a reading of another attempt than its rank's": {[]look{{0, ranks{1: {Attempt: 2, Claim: &bus.ClaimReading{Epoch: 3, Attempt: 1, Step: 4, Count: 5}}}},
			{15 * time.Second, ranks{1: {Attempt: 2, Claim: &bus.ClaimReading{Epoch: 3, Attempt: 1, Step: 4, Count: 5}}}}}, Unknown, "no rank on another node"},
		"no rank reads":    {[]look{{0, ranks{1: {Attempt: 2}}}, {time.Minute, ranks{1: {Attempt: 2}}}}, Unknown, "no rank on another node"},
		"no rank is there": {[]look{{0, nil}, {time.Minute, nil}}, Unknown, "no rank on another node"},
		"read twice and equal, and not read since": {[]look{{0, still(1)}, {15 * time.Second, still(0)}, {30 * time.Second, still(15)}}, Unknown, "not read twice"},
		"the reader is gone":                       {[]look{{0, still(1)}, {15 * time.Second, ranks{2: {Attempt: 2}}}}, Unknown, "not read twice"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			now := start
			w := &Watch{Now: func() time.Time { return now }}
			var got Progress
			var why string
			for _, l := range c.looks {
				now = start.Add(l.at)
				got, why = w.Judge(event.Job{UID: "u"}, checkpoint.Gang{Ranks: l.ranks, Attempt: attemptOf(l.ranks)})
			}
			if got != c.want || !strings.Contains(why, c.why) {
				t.Errorf("%q (%s), want %q (%s)", got, why, c.want, c.why)
			}
			if proof, why := w.Silent(event.Job{UID: "u"}, checkpoint.Gang{Ranks: c.looks[len(c.looks)-1].ranks, Attempt: attemptOf(c.looks[len(c.looks)-1].ranks)}); (proof != "") != (c.want == Silent) || (proof == "") == (why == "") {
				t.Errorf("proof %q, why %q", proof, why)
			}
		})
	}
}

func attemptOf(ranks map[int]bus.RankStatus) int {
	for _, r := range ranks {
		return r.Attempt
	}
	return -1
}

func TestReadingsOfAJobThatNobodyAsksForAreForgotten(t *testing.T) {
	now := time.Now()
	w := &Watch{Now: func() time.Time { return now }}
	for _, uid := range []string{"a", "b"} {
		w.Judge(event.Job{UID: uid}, checkpoint.Gang{Ranks: map[int]bus.RankStatus{1: read(1, 0, 1, 1, 0)}})
	}
	now = now.Add(forgetAfter + time.Second)
	w.Judge(event.Job{UID: "b"}, checkpoint.Gang{})
	if len(w.jobs) != 1 {
		t.Errorf("%d jobs are remembered", len(w.jobs))
	}
}
