// Package claims judges by the heartbeat of a job's claim on its checkpoint directory whether the job still trains (docs/decisions/0040).
//
// Rank 0 writes the heartbeat; ranks of the same job on other nodes read it and show it in their rings. The package promises: two readings are
// compared by content, never by a clock of another machine; only a reading that was made, and was heard here, long enough after an equal one
// proves that the heartbeat stands still; what is not read proves nothing.
package claims

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
)

const (
	// Watched is how long a heartbeat must stand still: 2.4 of its intervals of 5 s.
	Watched = 12 * time.Second
	// readWithin is the longest that a rank's look at the storage takes; the hook shows no slower one.
	readWithin = 2 * time.Second
	// forgetAfter is how long a job's readings are kept that nobody asks for.
	forgetAfter = 10 * time.Minute
)

// Progress is what a heartbeat shows.
type Progress string

// What a heartbeat can show.
const (
	Unknown  Progress = ""
	Silent   Progress = "silent"   // it stood still for Watched
	Alive    Progress = "alive"    // it goes on, at the same step
	Stepping Progress = "stepping" // its step went up within Watched
)

// Watch remembers what ranks read. It may be used by several goroutines.
type Watch struct {
	Now     func() time.Time
	Watched time.Duration // 0: the constant

	mu   sync.Mutex
	jobs map[string]*job
}

type job struct {
	epoch   int64
	attempt int
	asked   time.Time
	by      map[int]*reader // by rank
	moved   time.Time       // when the last change was read
	stepped time.Time       // when the last change of the step was read
}

// reader is the oldest reading of one rank that equals its last one.
type reader struct {
	bus.ClaimReading
	made  time.Time // by the age that its node measured
	heard time.Time
	last  time.Time // when the last one was made
}

// Judge takes in what ranks read now and says what the heartbeat shows, with the detail for people. While what it shows stays the same, so does
// the detail, unless it is a proof: an incident notes each new one.
func (w *Watch) Judge(of event.Job, live checkpoint.Gang) (Progress, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	j := w.of(of.UID, now)
	for _, rank := range slices.Sorted(maps.Keys(live.Ranks)) {
		r := live.Ranks[rank]
		if c := r.Claim; c != nil && rank > 0 && c.Attempt == r.Attempt && r.Attempt == live.Attempt {
			j.take(rank, *c, now)
		}
	}
	return j.judge(live, now, w.watched())
}

// Silent implements incident.Claims.
func (w *Watch) Silent(of event.Job, live checkpoint.Gang) (proof, why string) {
	switch shows, detail := w.Judge(of, live); shows {
	case Silent:
		return detail, ""
	default:
		return "", detail
	}
}

func (w *Watch) watched() time.Duration {
	if w.Watched > 0 {
		return w.Watched
	}
	return Watched
}

func (w *Watch) of(uid string, now time.Time) *job {
	if w.jobs == nil {
		w.jobs = map[string]*job{}
	}
	maps.DeleteFunc(w.jobs, func(_ string, j *job) bool { return now.Sub(j.asked) > forgetAfter })
	j := w.jobs[uid]
	if j == nil {
		j = &job{}
		w.jobs[uid] = j
	}
	j.asked = now
	return j
}

// take notes one reading. A later claim or attempt begins anew; an earlier one's reading is history.
func (j *job) take(rank int, c bus.ClaimReading, now time.Time) {
	if c.Epoch < j.epoch || c.Epoch == j.epoch && c.Attempt < j.attempt {
		return
	}
	if c.Epoch != j.epoch || c.Attempt != j.attempt {
		*j = job{epoch: c.Epoch, attempt: c.Attempt, asked: j.asked, by: map[int]*reader{}}
	}
	made := now.Add(-time.Duration(max(0, c.AgeS) * float64(time.Second)))
	k := j.by[rank]
	if k != nil && k.Step == c.Step && k.Count == c.Count {
		k.last = made
		return
	}
	if k != nil {
		j.moved = now
		if k.Step != c.Step {
			j.stepped = now
		}
	}
	j.by[rank] = &reader{ClaimReading: c, made: made, heard: now, last: made}
}

// judge compares: a rank that read the newest heartbeat, and the same long before, shows that it stands still.
func (j *job) judge(live checkpoint.Gang, now time.Time, watched time.Duration) (Progress, string) {
	newest := int64(-1)
	for _, k := range j.by {
		newest = max(newest, k.Count)
	}
	recent := func(t time.Time) bool { return !t.IsZero() && now.Sub(t) <= watched+readWithin }
	switch {
	case newest < 0:
		return Unknown, "no rank on another node can read the heartbeat in the checkpoint directory"
	case recent(j.stepped):
		return Stepping, fmt.Sprintf("the heartbeat in the checkpoint directory shows new steps (claim %d)", j.epoch)
	case recent(j.moved):
		return Alive, fmt.Sprintf("the heartbeat in the checkpoint directory continues, at one step (claim %d)", j.epoch)
	}
	if r, ok := live.Ranks[0]; ok && r.Exit == "running" {
		return Unknown, "rank 0, which writes the heartbeat in the checkpoint directory, is on another node and runs"
	}
	for _, rank := range slices.Sorted(maps.Keys(j.by)) {
		k := j.by[rank]
		fresh := now.Sub(k.last) <= watched // it still reads
		if fresh && k.Count == newest && k.last.Sub(k.made) > watched+readWithin && now.Sub(k.heard) > watched {
			return Silent, fmt.Sprintf("rank %d read the heartbeat in the checkpoint directory twice within %.0f s without a change (claim %d, step %d)",
				rank, k.last.Sub(k.made).Seconds(), j.epoch, k.Step)
		}
	}
	return Unknown, "the heartbeat in the checkpoint directory was not read twice yet"
}
