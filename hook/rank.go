package hook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrRankGone is the error of a question to a rank whose process has ended or was never seen.
var ErrRankGone = errors.New("rank is gone")

// Rank is one local rank of a pod, over the processes that fill it one after the other. It is safe for concurrent use.
type Rank struct {
	pod   *Pod
	local int
	peer  *peer

	mu       sync.Mutex
	ring     *Ring     // the newest, nil until there is one
	previous *Ring     // the one before: its process may not have been reported yet
	lives    int       // rings opened so far
	unopened bool      // the newest ring, for want of budget
	crowded  time.Time // when it was last said that there were too many
	live     *Hello    // of the process that lives, once greeted
	livePID  int       // by the kernel's word
	reported Process   // the last process whose end was told
	exit     *RankExit
	kept     int    // bytes of the pod's text, of live
	seq      uint64 // of lifecycle events
	word     word   // what the process answers while its copied ring stands still
}

// Process names one process that filled a rank.
type Process struct{ PID, Attempt int }

// RankExit is the end of a rank's process.
type RankExit struct {
	Identity
	// Bye is true when the rank said bye, or its ring says that it ended cleanly: an end of its own choice.
	Bye bool
	// Code and Signal are the launcher's word; Known is false where no launcher told.
	Known        bool
	Code, Signal int
	// Told is true when the launcher killed it, as it was told to: no fault.
	Told bool
	// Error is the first line of its last error, if it told one.
	Error string
	// Step is the last completed step by the ring; StepKnown is false when there was no ring to read.
	Step      uint64
	StepKnown bool
	GPUUUID   string
	// Start is when the process began by its own clock, as its ring says; zero without one.
	Start time.Time
	// At is when the end was seen.
	At time.Time
	// History is true for an end that lies so far back that it is no news: found by an agent that started later.
	History bool
}

// Bounds in judging a rank that nobody listens for and that this agent never spoke with.
const (
	deadHeartbeat = 3 * time.Second  // the side thread beats every 200 ms, also while the step hangs
	oldHeartbeat  = 60 * time.Second // older is history
	exitWord      = 100 * time.Millisecond
	sayCrowded    = time.Hour       // that newer rings are left out
	aliveMost     = 4 * time.Second // between looks at a process that neither listens nor beats
)

// Local is the local rank.
func (r *Rank) Local() int { return r.local }

// PodUID is the pod, by the path of its directory.
func (r *Rank) PodUID() string { return r.pod.uid }

// Ring is the newest ring of the rank, or nil. It must not be closed by the caller; it is closed some time after a newer
// one has come, when reading it fails.
func (r *Rank) Ring() *Ring {
	r.mu.Lock()
	ring, again := r.ring, r.unopened && r.pod.account.after(Rings, 1) == 0
	r.mu.Unlock()
	if again {
		r.openRing()
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.ring
	}
	return ring
}

// Hello is what the living process said on connecting; ok is false when none is known.
func (r *Rank) Hello() (h Hello, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live == nil {
		return Hello{}, false
	}
	return *r.live, true
}

// Connected says whether the rank's socket answers now.
func (r *Rank) Connected() bool {
	s, _, _ := r.peer.current()
	return s != nil
}

// ProcessState is the state letter of /proc/<pid>/stat (R, S, D, T, Z ...), or "" where the process cannot be seen.
func (r *Rank) ProcessState() string {
	r.mu.Lock()
	pid := r.livePID
	r.mu.Unlock()
	if pid == 0 {
		return ""
	}
	state, _, err := procStat("/proc", pid)
	if err != nil {
		return ""
	}
	return state
}

// Ask sends a message and waits for its answer. It outlives lost connections, because messages are idempotent, and ends with
// ErrRankGone at the end of the process.
func (r *Rank) Ask(ctx context.Context, m Message) (Message, error) {
	for {
		s, alive, changed := r.peer.current()
		if !alive {
			return nil, fmt.Errorf("local rank %d of pod %s: %w", r.local, r.pod.uid, ErrRankGone)
		}
		if s != nil {
			a, err := s.Request(ctx, m)
			if !errors.Is(err, ErrSessionClosed) {
				return a, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("local rank %d of pod %s: no answer to %s: %w", r.local, r.pod.uid, m.kind(), ctx.Err())
		case <-changed:
		}
	}
}

// Send sends a message that has no answer.
func (r *Rank) Send(m Message) error {
	s, _, _ := r.peer.current()
	if s == nil {
		return fmt.Errorf("local rank %d of pod %s: not connected: %w", r.local, r.pod.uid, ErrRankGone)
	}
	return s.Send(m)
}

// KeepText replaces old bytes of text that the caller keeps of this rank with new ones. It returns false, and counts the excess, if
// the pod's budget of kept text has no room; the caller then does not keep the new text.
func (r *Rank) KeepText(old, new int) bool {
	return r.pod == nil || r.pod.account.keep(old, new)
}

// openRing looks at the ring file again.
func (r *Rank) openRing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	ring, err := OpenRing(r.pod.dir, r.local, r.pod.fleet.opts.Now)
	if err != nil {
		if !isNotExist(err) {
			r.pod.fleet.problem(r.pod.uid, err)
		}
		return
	}
	if r.ring != nil && r.ring.same(ring) {
		_ = ring.Close()
		return
	}
	if !r.pod.account.take(Rings, 1) {
		_ = ring.Close()
		r.unopened = true
		r.outdate()
		return
	}
	r.unopened = false
	if r.lives >= r.pod.fleet.opts.Limits.Lives {
		_ = ring.Close()
		r.outdate()
		if now := time.Now(); r.crowded.IsZero() || now.Sub(r.crowded) >= sayCrowded {
			r.crowded = now
			r.pod.fleet.problem(r.pod.uid, fmt.Errorf("local rank %d: more than %d rings; newer ones are left out", r.local, r.lives))
		}
		return
	}
	r.lives++
	if r.previous != nil {
		_ = r.previous.Close()
	}
	r.previous, r.ring = r.ring, ring
}

// outdate stops showing a ring in whose place a newer one is: its age would pass for that of the process that lives. The lock is held.
func (r *Rank) outdate() {
	if r.ring != nil {
		if r.previous != nil {
			_ = r.previous.Close()
		}
		r.previous, r.ring = r.ring, nil
	}
}

func (r *Rank) closeRings() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ring := range []*Ring{r.ring, r.previous} {
		if ring != nil {
			_ = ring.Close()
		}
	}
	r.ring, r.previous = nil, nil
}

// ringOf is the ring of a process: the newest that names it. Before its Hello it is the newest there is.
func (r *Rank) ringOf(l *life) *Ring {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ring := range []*Ring{r.ring, r.previous} {
		if ring == nil {
			continue
		}
		if id := ring.Identity(); !l.greeted || id.PID == l.hello.PID && id.Attempt == l.hello.Attempt {
			return ring
		}
	}
	return nil
}

// same implements peerEvents: a rank's process belongs to one attempt.
func (r *Rank) same(a, b Hello) bool { return a.PID == b.PID && a.Attempt == b.Attempt }

// greeted implements peerEvents.
func (r *Rank) greeted(l *life, s *Session, again bool) error {
	h := l.hello
	if h.Role != RoleRank || h.LocalRank != r.local || h.WorldSize < 1 || h.WorldSize > maxRanks || h.Rank < 0 || h.Rank >= h.WorldSize {
		l.greeted = false
		return fmt.Errorf("%s: hello of %s %d (local %d) of %d is refused", SocketName(r.local), h.Role, h.Rank, h.LocalRank, h.WorldSize)
	}
	r.openRing()
	r.mu.Lock()
	if n := h.keptText(); r.pod.account.keep(r.kept, n) {
		r.kept = n
	} else {
		h = h.withoutText()
	}
	r.live, r.livePID, r.exit = &h, l.pid, nil
	if !again {
		r.seq++
	}
	seq := r.seq
	r.mu.Unlock()
	if !again {
		r.pod.fleet.publish(Event{Kind: RankAttached, PodUID: r.pod.uid, Rank: r, Hello: h, seq: seq})
	}
	return nil
}

// message implements peerEvents.
func (r *Rank) message(_ *life, m Message) {
	r.pod.fleet.publish(Event{Kind: RankSaid, PodUID: r.pod.uid, Rank: r, Message: m})
}

// ended implements peerEvents.
func (r *Rank) ended(l *life) {
	r.mu.Lock()
	r.live, r.livePID = nil, 0
	r.pod.account.keep(r.kept, 0)
	r.kept = 0
	r.mu.Unlock()
	x := RankExit{At: time.Now(), Bye: l.bye != nil, Error: l.failure}
	if l.greeted {
		h := l.hello
		x.Identity = Identity{Rank: h.Rank, LocalRank: h.LocalRank, WorldSize: h.WorldSize, Attempt: h.Attempt, PID: h.PID}
	}
	if ring := r.ringOf(l); ring != nil {
		if s, err := ring.Snapshot(); err == nil {
			x.take(&s)
		} else {
			r.problem(err)
		}
	}
	r.report(x, true)
}

// take fills in what the ring knows.
func (x *RankExit) take(s *Snapshot) {
	x.Identity, x.GPUUUID = s.Identity, s.GPUUUID
	x.Step, x.StepKnown, x.Start = s.Step, true, s.StartUnix
	x.Bye = x.Bye || s.Exit == ExitClean
	if x.Error == "" && s.Exit != ExitClean {
		x.Error = s.Error
	}
}

// report publishes an end, once for each process.
func (r *Rank) report(x RankExit, fresh bool) {
	if x.WorldSize == 0 {
		return // it never said who it was, in any way
	}
	p := Process{x.PID, x.Attempt}
	r.mu.Lock()
	known := r.reported == p && r.exit != nil
	r.mu.Unlock()
	if known {
		return
	}
	if fresh && !x.Bye {
		if e, ok := r.pod.exitOf(x.Attempt, r.local, x.PID); ok {
			x.Known, x.Code, x.Signal, x.Told = true, e.Code, e.Signal, e.Told
		}
	}
	r.mu.Lock()
	r.reported, r.exit = p, &x
	r.seq++
	seq := r.seq
	r.mu.Unlock()
	r.pod.fleet.publish(Event{Kind: RankExited, PodUID: r.pod.uid, Rank: r, Exit: &x, seq: seq})
}

// idle implements peerEvents: nobody listens. Either the process is about to, or it died before this agent came.
func (r *Rank) idle(tries int) time.Duration {
	ring := r.Ring()
	if ring == nil {
		return settle(tries)
	}
	s, err := ring.Snapshot()
	if err != nil {
		r.problem(err)
		return settle(tries)
	}
	r.mu.Lock()
	told := r.exit != nil && r.reported == Process{s.PID, s.Attempt}
	r.mu.Unlock()
	if told || s.Exit == ExitClean {
		return settle(tries)
	}
	age := s.Age(max(s.HeartbeatMono, s.StartMono))
	if age < deadHeartbeat {
		wait := deadHeartbeat - age // the file of a socket that appears meanwhile ends the wait
		if soon := settle(tries); soon > 0 {
			wait = min(wait, soon)
		}
		return max(wait, firstRedial) // 0 would be for ever
	}
	if r.pod.fleet.lives.mayBeAlive(r.pod.uid, &s) {
		return min(time.Second<<min(tries, 3), aliveMost)
	}
	x := RankExit{At: time.Now(), History: age > oldHeartbeat}
	x.take(&s)
	r.report(x, false)
	return settle(tries)
}

// problem implements peerEvents.
func (r *Rank) problem(err error) { r.pod.fleet.problem(r.pod.uid, err) }
