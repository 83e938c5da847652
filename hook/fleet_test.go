package hook_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

func ask(t *testing.T, r *hook.Rank, m hook.Message) (hook.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return r.Ask(ctx, m)
}

func TestAKilledRankIsReportedAtOnceWithWhatItsRingSays(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	dir := hooktest.Pod(t, root, podUID)
	rank := hooktest.Start(t, hooktest.Config{Dir: dir, Rank: 5, LocalRank: 1, WorldSize: 8, Attempt: 3})
	a := next(t, events, hook.RankAttached)
	if a.PodUID != podUID || a.Hello.Rank != 5 || a.Rank.Local() != 1 {
		t.Errorf("attached %+v", a)
	}
	rank.Tell("step 42")
	killed := time.Now()
	rank.Kill()
	x := next(t, events, hook.RankExited).Exit
	want := hook.Identity{Rank: 5, LocalRank: 1, WorldSize: 8, Attempt: 3, PID: rank.PID()}
	if x.Identity != want || x.Bye || x.Known || x.Step != 42 || !x.StepKnown || x.History || x.GPUUUID != "GPU-fake-5" {
		t.Errorf("exit %+v", x)
	}
	t.Logf("told %v after the kill", x.At.Sub(killed))
	never(t, events, hook.RankExited, 200*time.Millisecond)
}

func TestARankThatSaysByeEndedOfItsOwnChoice(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	next(t, events, hook.RankAttached)
	rank.End("bye")
	if x := next(t, events, hook.RankExited).Exit; !x.Bye {
		t.Errorf("exit %+v, want a bye", x)
	}
}

func TestAnExceptionIsNoByeAndIsToldWithItsFirstLine(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	next(t, events, hook.RankAttached)
	rank.End("raise CUDA error: unspecified launch failure")
	if x := next(t, events, hook.RankExited).Exit; x.Bye || x.Error != "CUDA error: unspecified launch failure" {
		t.Errorf("exit %+v", x)
	}
}

func TestALongErrorIsCutAndPrintable(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, NoRing: 1})
	next(t, events, hook.RankAttached)
	rank.Tell(`say {"t":"error","attempt":0,"step":0,"error":"a\nb` + strings.Repeat("x", 60_000) + `"}`)
	rank.Kill()
	if x := next(t, events, hook.RankExited).Exit; len(x.Error) != 255 || !strings.HasPrefix(x.Error, "a bx") {
		t.Errorf("an error of %d bytes: %.20q", len(x.Error), x.Error)
	}
}

func TestALostConnectionIsNotALostRank(t *testing.T) {
	root := t.TempDir()
	fleet, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, CanSave: true})
	r := next(t, events, hook.RankAttached).Rank
	for range 3 {
		rank.Tell("drop")
	}
	if _, err := ask(t, r, hook.Ping{}); err != nil {
		t.Errorf("after the hiccups: %v", err)
	}
	// Nobody listens and the connection breaks, yet the process lives.
	rank.Tell("unlisten")
	rank.Tell("drop")
	never(t, events, hook.RankExited, 300*time.Millisecond)
	// Its socket comes back.
	rank.Tell("listen")
	if _, err := ask(t, r, hook.Ping{}); err != nil {
		t.Errorf("after listening anew: %v", err)
	}
	if !fleet.Pod(podUID).Ranks()[0].Connected() {
		t.Error("not connected")
	}
	rank.Kill()
	next(t, events, hook.RankExited)
}

func TestAKilledRankWhoseChildrenHoldItsSocketsIsGone(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	next(t, events, hook.RankAttached)
	rank.Tell("orphan")
	rank.Kill()
	if x := next(t, events, hook.RankExited).Exit; x.Bye {
		t.Errorf("exit %+v", x)
	}
}

func TestAStoppedRankIsSeenAndNotCalledDead(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1})
	r := next(t, events, hook.RankAttached).Rank
	rank.Signal(syscall.SIGSTOP)
	deadline := time.Now().Add(soon)
	for r.ProcessState() != "T" && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if got := r.ProcessState(); got != "T" {
		t.Errorf("process state %q", got)
	}
	// A second agent comes while the rank is stopped: it gets no Hello, and no death either.
	_, others := watch(t, root)
	never(t, others, hook.RankExited, 300*time.Millisecond)
	rank.Kill()
	if x := next(t, others, hook.RankExited).Exit; x.PID != rank.PID() {
		t.Errorf("the second agent: %+v", x)
	}
	next(t, events, hook.RankExited)
}

func TestANewAttemptInTheSamePlaceEndsTheOldOneOnceAndAttaches(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	dir := hooktest.Pod(t, root, podUID)
	old := hooktest.Start(t, hooktest.Config{Dir: dir, WorldSize: 2, Attempt: 0})
	next(t, events, hook.RankAttached)
	old.Tell("step 7")
	old.Kill()
	hooktest.Start(t, hooktest.Config{Dir: dir, WorldSize: 2, Attempt: 1})
	if x := next(t, events, hook.RankExited).Exit; x.Attempt != 0 || x.Step != 7 {
		t.Errorf("exit %+v", x)
	}
	a := next(t, events, hook.RankAttached)
	if s, err := a.Rank.Ring().Snapshot(); a.Hello.Attempt != 1 || err != nil || s.Attempt != 1 {
		t.Errorf("attached %+v, ring %+v, %v", a.Hello, s, err)
	}
}

func TestARankDeadBeforeThisAgentStartedIsReportedAndAnOldOneAsHistory(t *testing.T) {
	for name, c := range map[string]struct {
		stale   int
		end     string
		history bool
		silent  bool
	}{
		"killed ten seconds ago":                 {stale: 10},
		"killed two minutes ago":                 {stale: 120, history: true},
		"ended by an exception":                  {stale: 10, end: "raise boom"},
		"ended cleanly: nobody needs to know it": {stale: 10, end: "bye", silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, StaleSeconds: c.stale})
			if c.end == "" {
				rank.Kill()
			} else {
				rank.End(c.end)
			}
			_, events := watch(t, root)
			if c.silent {
				never(t, events, hook.RankExited, 300*time.Millisecond)
				return
			}
			x := next(t, events, hook.RankExited).Exit
			if x.Bye || x.History != c.history || x.PID != rank.PID() {
				t.Errorf("exit %+v", x)
			}
			never(t, events, hook.RankExited, 200*time.Millisecond)
		})
	}
}

func TestARankWithoutASocketIsNotDeadWhileItsProcessLives(t *testing.T) {
	root := t.TempDir()
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, NoSocket: 1})
	_, events := watch(t, root)
	never(t, events, hook.RankExited, 300*time.Millisecond)
	rank.Signal(syscall.SIGSTOP) // now the heartbeat stands still, too
	never(t, events, hook.RankExited, 3500*time.Millisecond)
	rank.Kill()
	if x := next(t, events, hook.RankExited).Exit; x.PID != rank.PID() {
		t.Errorf("exit %+v", x)
	}
}

func TestTheLaunchersWordOnAnEndIsPartOfIt(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	dir := hooktest.Pod(t, root, podUID)
	launcher := hooktest.Start(t, hooktest.Config{Dir: dir, Launcher: true, State: "running"})
	next(t, events, hook.LauncherAttached) // before there is a rank: the two could come in either order
	rank := hooktest.Start(t, hooktest.Config{Dir: dir, WorldSize: 1})
	next(t, events, hook.RankAttached)
	launcher.Tell(`say {"t":"exit","attempt":0,"local_rank":0,"pid":` + strconv.Itoa(rank.PID()) + `,"code":-1,"signal":9,"told":true}`)
	next(t, events, hook.LauncherSaid)
	rank.Kill()
	if x := next(t, events, hook.RankExited).Exit; !x.Known || x.Signal != 9 || x.Code != -1 || !x.Told || x.Start.IsZero() {
		t.Errorf("exit %+v", x)
	}
	launcher.Tell("attempt 1")
	launcher.Tell("drop") // on the way to another attempt it is still the same launcher
	for {
		e := <-events
		if e.Kind == hook.LauncherGone {
			t.Error("a launcher that went to another attempt is called gone")
		}
		if e.Kind == hook.LauncherAttached {
			if e.Hello.Attempt != 1 {
				t.Errorf("hello %+v", e.Hello)
			}
			break
		}
	}
	launcher.Kill()
	next(t, events, hook.LauncherGone)
}

func TestWhoeverSubscribesLaterHearsWhatIsSo(t *testing.T) {
	root := t.TempDir()
	fleet, events := watch(t, root)
	dir := hooktest.Pod(t, root, podUID)
	hooktest.Start(t, hooktest.Config{Dir: dir, Rank: 0, WorldSize: 2})
	dead := hooktest.Start(t, hooktest.Config{Dir: dir, Rank: 1, LocalRank: 1, WorldSize: 2})
	next(t, events, hook.RankAttached)
	next(t, events, hook.RankAttached)
	dead.Kill()
	next(t, events, hook.RankExited)
	late := make(chan hook.Event, 16)
	stop := fleet.Subscribe(func(e hook.Event) { late <- e })
	defer stop()
	if e := next(t, late, hook.RankAttached); e.Hello.Rank != 0 || !e.Replayed {
		t.Errorf("attached %+v", e)
	}
	if e := next(t, late, hook.RankExited); e.Exit.Rank != 1 || !e.Replayed {
		t.Errorf("exited %+v", e)
	}
}

func TestWhatIsNoSocketIsNeverDialled(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	trap := hooktest.Start(t, hooktest.Config{Dir: outside, WorldSize: 1, NoRing: 1})
	dir := hooktest.Pod(t, root, podUID)
	if err := os.Symlink(filepath.Join(outside, hook.SocketName(0)), filepath.Join(dir, hook.SocketName(0))); err != nil {
		t.Fatal(err)
	}
	_, events := watch(t, root)
	e := next(t, events, hook.Problem)
	if !strings.Contains(e.Err.Error(), "not a socket") {
		t.Errorf("problem %v", e.Err)
	}
	never(t, events, hook.RankAttached, 200*time.Millisecond)
	trap.Kill()
}

func TestAHelloThatIsNotOfThisPlaceIsRefused(t *testing.T) {
	for name, c := range map[string]hooktest.Config{
		"a rank outside its world":      {Rank: 9, WorldSize: 2},
		"a world beyond all that are":   {WorldSize: 1<<20 + 1},
		"another place than its socket": {LocalRank: 1, WorldSize: 2},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			_, events := watch(t, root)
			dir := hooktest.Pod(t, root, podUID)
			c.Dir, c.NoRing = t.TempDir(), 1
			hooktest.Start(t, c)
			if err := os.Rename(filepath.Join(c.Dir, hook.SocketName(c.LocalRank)), filepath.Join(dir, hook.SocketName(0))); err != nil {
				t.Fatal(err)
			}
			if e := next(t, events, hook.Problem); !strings.Contains(e.Err.Error(), "refused") {
				t.Errorf("problem %v", e.Err)
			}
			never(t, events, hook.RankAttached, 100*time.Millisecond)
		})
	}
}

func TestAQuestionToADeadRankEndsWithItAndNotWithItsDeadline(t *testing.T) {
	root := t.TempDir()
	_, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, CanSave: true})
	r := next(t, events, hook.RankAttached).Rank
	if _, err := ask(t, r, hook.Arm{Req: "a", AtStep: 5, DeadlineMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := r.Ask(context.Background(), hook.Go{Req: "a"}) // no deadline at all
		failed <- err
	}()
	time.Sleep(20 * time.Millisecond)
	rank.Kill()
	select {
	case err := <-failed:
		if !errors.Is(err, hook.ErrRankGone) {
			t.Errorf("error %v", err)
		}
	case <-time.After(soon):
		t.Error("it still waits for a dead rank")
	}
}

func TestARoundOutlivesAReplacedAgentAndALostConnection(t *testing.T) {
	root := t.TempDir()
	first, events := watch(t, root)
	rank := hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 1, CanSave: true, CkptDir: "/c", SaveTakes: 20 * time.Millisecond})
	r := next(t, events, hook.RankAttached).Rank
	if a, err := ask(t, r, hook.Arm{Req: "a", AtStep: 5, DeadlineMS: 60_000}); err != nil || a.(hook.Armed).Req != "a" {
		t.Fatalf("arm: %#v, %v", a, err)
	}
	first.Close() // the agent is replaced between arm and go
	_, events = watch(t, root)
	r = next(t, events, hook.RankAttached).Rank
	saved := make(chan hook.Message, 1)
	go func() {
		m, err := ask(t, r, hook.Go{Req: "a"})
		if err != nil {
			t.Error(err)
		}
		saved <- m
	}()
	time.Sleep(20 * time.Millisecond)
	rank.Tell("drop") // and the connection is lost while it waits
	rank.Tell("step 5")
	if m, ok := (<-saved).(hook.Saved); !ok || m.Step != 5 || m.Dir != "/c/step-5.attempt-0" || len(m.Files) != 1 {
		t.Errorf("saved %#v", m)
	}
	if _, err := ask(t, r, hook.Release{Req: "a"}); err != nil {
		t.Error(err)
	}
	never(t, events, hook.RankExited, 50*time.Millisecond)
}
