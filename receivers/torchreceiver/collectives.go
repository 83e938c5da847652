package torchreceiver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

const (
	// collectivesFresh is for how long a rank's word about its collectives is told as metrics; it says them every 5 s.
	collectivesFresh = 15 * time.Second
	// maxGroupNames bounds the process groups of one rank: their names are the pod's to choose, and each is a series.
	maxGroupNames = 16
	// maxOps bounds the names of operations that one rank's series bear, which are the pod's to choose too.
	maxOps = 16
)

var (
	enqueued  = about{semconv.TrainCollectiveEnqueued, "{collective}", "Collectives of a process group that the rank has entered, while its step stands still", integer}
	completed = about{semconv.TrainCollectiveCompleted, "{collective}", "Collectives of a process group that the rank has completed, while its step stands still", integer}
)

// claims is what ranks told last of their collectives.
type claims struct {
	mu    sync.Mutex
	ranks map[*hook.Rank]*claim
}

type claim struct {
	last  hook.Collectives
	at    time.Time
	names map[string]bool // of this attempt
	ops   map[string]bool // told as an attribute
	kept  int             // bytes of text, by the pod's budget
}

// take remembers a message, of groups that are within the bound.
func (s *claims) take(r *hook.Rank, c hook.Collectives, now time.Time) hook.Collectives {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ranks == nil {
		s.ranks = map[*hook.Rank]*claim{}
	}
	for k, v := range s.ranks { // ranks of pods that have left
		if now.Sub(v.at) > 10*collectivesFresh {
			k.KeepText(v.kept, 0)
			delete(s.ranks, k)
		}
	}
	have := s.ranks[r]
	if have == nil {
		have = &claim{names: map[string]bool{}, ops: map[string]bool{}}
		s.ranks[r] = have
	}
	kept := c.Groups[:0]
	for _, g := range c.Groups {
		if have.names[g.Name] || len(have.names) < maxGroupNames {
			have.names[g.Name] = true
			if op := opName(g.Op); have.ops[op] || len(have.ops) < maxOps {
				have.ops[op] = true
			}
			kept = append(kept, g)
		}
	}
	c.Groups = kept
	if n := c.KeptText() + have.text(); r.KeepText(have.kept, n) {
		have.kept = n
	} else { // no room: what was kept goes, too
		r.KeepText(have.kept, 0)
		delete(s.ranks, r)
		return hook.Collectives{}
	}
	have.last, have.at = c, now
	return c
}

// text is how many bytes of names are remembered.
func (c *claim) text() (n int) {
	for _, m := range []map[string]bool{c.names, c.ops} {
		for s := range m {
			n += len(s)
		}
	}
	return n
}

// opName is an operation without its sizes.
func opName(op string) string {
	name, _, _ := strings.Cut(op, " ")
	return name
}

// of is what a rank said that still holds of the step it is in; operations without their sizes.
func (s *claims) of(r *hook.Rank, snap *hook.Snapshot, now time.Time) []hook.CollectiveGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.ranks[r]
	if have == nil || now.Sub(have.at) > collectivesFresh || have.last.Attempt != snap.Attempt || uint64(have.last.Step) != snap.Step {
		return nil
	}
	groups := slices.Clone(have.last.Groups)
	for i := range groups {
		if g := &groups[i]; have.ops[opName(g.Op)] {
			g.Op = opName(g.Op)
		} else {
			g.Op = ""
		}
	}
	return groups
}

// collectives turns a rank's word into one log event for each group.
func (r *torchReceiver) collectives(ctx context.Context, e hook.Event, c hook.Collectives) {
	ring := e.Rank.Ring()
	if ring == nil {
		return
	}
	s, err := ring.Snapshot()
	if err != nil || c.Attempt != s.Attempt {
		return
	}
	now := time.Now()
	c = r.claims.take(e.Rank, c.Trimmed(), now)
	for _, g := range c.Groups {
		body := fmt.Sprintf("rank %d stands in step %d after %d collectives of group %s", s.Rank, c.Step, g.Enqueued, g.Name)
		r.emit(ctx, semconv.EventTrainCollectives, plog.SeverityNumberInfo, now, body, func(a pcommon.Map) {
			putIdentity(a, e.PodUID, s.Identity, s.GPUUUID)
			a.PutInt(semconv.Step, c.Step)
			a.PutStr(semconv.ProcessGroupName, g.Name)
			a.PutStr(semconv.ProcessGroupDesc, g.Desc)
			a.PutStr(semconv.ProcessGroupRanks, g.Ranks)
			a.PutInt(semconv.ProcessGroupSize, int64(g.Size))
			a.PutInt(semconv.CollectiveEnqueued, g.Enqueued)
			a.PutInt(semconv.CollectiveStarted, g.Started)
			a.PutInt(semconv.CollectiveCompleted, g.Completed)
			a.PutStr(semconv.CollectiveOp, g.Op)
		})
	}
}

// collectives adds what a rank said of its process groups, for whoever compares ranks across nodes.
func (b *batch) collectives(c *cursor, rank *hook.Rank, s *hook.Snapshot) {
	at := pcommon.NewTimestampFromTime(b.now)
	for _, g := range b.r.claims.of(rank, s, b.now) {
		for m, v := range map[*about]int64{&enqueued: g.Enqueued, &completed: g.Completed} {
			if v >= 0 {
				p := b.put(m, c, s, at, float64(v))
				p.Attributes().PutStr(semconv.ProcessGroupName, g.Name)
				if m == &enqueued && g.Op != "" {
					p.Attributes().PutStr(semconv.CollectiveOp, g.Op)
				}
			}
		}
	}
}
