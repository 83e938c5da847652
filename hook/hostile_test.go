package hook

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// floods are what a hostile rank may send without end.
var floods = map[string]string{
	"groups":           `{"t":"collectives","attempt":0,"step":1,"groups":[` + strings.TrimSuffix(strings.Repeat("{},", 10_000), ",") + "]}\n",
	"files, unasked":   `{"t":"saved","req":"x","files":[` + strings.TrimSuffix(strings.Repeat("{},", 21_000), ",") + "]}\n",
	"answers, unasked": strings.Repeat(`{"t":"pong"}`+"\n", 4000),
	"unknown types":    strings.Repeat(`{"t":"x"}`+"\n", 6000),
	"long types":       `{"t":"` + strings.Repeat("A", 60_000) + `"}` + "\n",
	"wrong order":      strings.Repeat(`{"step":1,"t":"pong"}`+"\n", 3000),
	"states":           strings.Repeat(`{"t":"held","req":"x"}`+"\n", 3000),
}

func TestAFloodIsReadNoFasterThanItsPodsBudgetAndMostOfItIsNotDecoded(t *testing.T) {
	for name, line := range floods {
		t.Run(name, func(t *testing.T) {
			d := serve(t, func(c net.Conn) {
				_, err := io.WriteString(c, helloLine)
				for err == nil {
					_, err = io.WriteString(c, line)
				}
			})
			named := make(chan Resource, 16)
			a := newAccount(Budget{Bytes: Rate{64 << 10, 256 << 10}, Messages: Rate{1, 10}}, func(e Excess) { named <- e.Resource })
			s, err := dial(context.Background(), d, SocketName(0), a)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			decoded := 0
			end := time.After(300 * time.Millisecond)
			for open := true; open; {
				select {
				case _, open = <-s.Messages():
					decoded++
				case <-end:
					open = false
				}
			}
			if err := s.Err(); err != nil {
				t.Errorf("the session ended: %v", err)
			}
			if decoded > 11 {
				t.Errorf("%d messages were decoded, want at most 11", decoded)
			}
			select {
			case <-named:
			default:
				t.Error("no budget was named")
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if b := a.buckets[Bytes]; b == nil || b.tokens < -dearer*chunkSize {
				t.Errorf("read beyond the budget of bytes: %+v", b)
			}
		})
	}
}

func TestLongLinesOfOnePodHoldNoMoreThanItsLineBuffers(t *testing.T) {
	hold := make(chan struct{})
	d := serve(t, func(c net.Conn) {
		_, _ = io.WriteString(c, helloLine+`{"t":"error","error":"`+strings.Repeat("x", 50_000)) // never ends
		<-hold
	})
	defer close(hold)
	a := newAccount(Budget{}, nil)
	for range 8 {
		s, err := dial(context.Background(), d, SocketName(0), a)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	time.Sleep(100 * time.Millisecond)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lines > a.budget.LineBufferBytes || a.lines == 0 {
		t.Errorf("%d bytes are held, want at most %d", a.lines, a.budget.LineBufferBytes)
	}
	if a.excess[Bytes] == 0 {
		t.Error("the excess is not counted")
	}
}

func TestAPodOverItsBudgetHoldsAQuarterOfALineAndOfAnAnswerAllThatWasAskedFor(t *testing.T) {
	const long = 50_000
	for _, c := range []struct {
		name, line string
		over, asks bool
		least      int
		most       int
	}{
		{"an error of a pod within its budget", `{"t":"error","error":"`, false, false, long, 64 << 10},
		{"an error of a pod over its budget", `{"t":"error","error":"`, true, false, 0, 16 << 10},
		{"an answer that was asked for, of a pod over its budget", `{"t":"saved","req":"`, true, true, long, 64 << 10},
		{"an answer that nobody asked for", `{"t":"saved","req":"`, false, false, 0, 0},
		{"a type that this version does not know", `{"t":"news","text":"`, false, false, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			hold, begin := make(chan struct{}), make(chan struct{})
			d := serve(t, func(conn net.Conn) {
				_, _ = io.WriteString(conn, helloLine)
				<-begin
				_, _ = io.WriteString(conn, c.line+strings.Repeat("x", long)) // never ends
				<-hold
			})
			defer close(hold)
			a := newAccount(Budget{Bytes: Rate{1 << 20, 1 << 20}}, nil)
			s, err := dial(context.Background(), d, SocketName(0), a)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			<-s.Greeted()
			if c.over {
				a.exceed(Messages, 1)
			}
			if c.asks {
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan struct{})
				go func() { defer close(ended); _, _ = s.Request(ctx, Go{Req: "r", Attempt: 1}) }()
				defer func() { cancel(); <-ended }()
				for !s.asked(Saved{}.kind()) {
					time.Sleep(time.Millisecond)
				}
			}
			close(begin)
			held := 0
			for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end) || held < c.least && time.Now().Before(end.Add(5*time.Second)); time.Sleep(5 * time.Millisecond) {
				a.mu.Lock()
				held = max(held, a.lines)
				a.mu.Unlock()
			}
			if held < c.least || held > c.most {
				t.Errorf("%d bytes are held, want %d to %d", held, c.least, c.most)
			}
		})
	}
}

func TestArraysAreCappedWhileTheyAreDecoded(t *testing.T) {
	line := []byte(floods["groups"])
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m, err := Decode(line)
	runtime.ReadMemStats(&after)
	if c, ok := m.(Collectives); err != nil || !ok || len(c.Groups) != maxGroups {
		t.Errorf("%T, %v", m, err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 256<<10 { // 10,000 groups take 1.5 MB
		t.Errorf("%d bytes to decode it", got)
	}
	if m, err := Decode([]byte(`{"t":"state","pids":[` + strings.Repeat("1,", 30_000) + `1]}`)); err != nil || len(m.(LauncherState).PIDs) != maxPIDs {
		t.Errorf("%T, %v", m, err)
	}
	// A list of files is never cut: the checkpoint would be taken for complete.
	if m, err := Decode([]byte(floods["files, unasked"])); err == nil {
		t.Errorf("a list of too many files was taken: %d", len(m.(Saved).Files))
	}
}

func TestHostileTextIsCutBeforeItIsKept(t *testing.T) {
	long := strings.Repeat("é\n\x1b[31m", 10_000)
	h := clipped(Hello{Section: long, Strategy: long, CkptDir: long, State: long, JobUID: long, Torch: long, Role: long}).(Hello)
	if n := h.keptText(); n > 6*maxWord+maxPath {
		t.Errorf("a hello keeps %d bytes", n)
	}
	for _, m := range []string{clipped(Nack{Reason: long}).(Nack).Reason, clipped(Failure{Error: long}).(Failure).Error, clipped(Saved{Error: long}).(Saved).Error} {
		if len(m) > maxPath || !utf8.ValidString(m) || strings.ContainsAny(m, "\n\x1b") {
			t.Errorf("%d bytes: %.20q", len(m), m)
		}
	}
	for n := range 10 { // a cut within a character
		if got := Clip("aéé", n); len(got) > n || Clip(got, n) != got {
			t.Errorf("cut to %d: %q", n, got)
		}
	}
}

func TestAPodKeepsNoMoreTextThanItsBudget(t *testing.T) {
	named := 0
	a := newAccount(Budget{KeptTextBytes: 100}, func(e Excess) { named++ })
	if !a.keep(0, 60) || a.keep(0, 60) || !a.keep(60, 100) || a.keep(0, 1) {
		t.Error("the bound does not hold")
	}
	if a.keep(100, 0); a.text != 0 || !a.keep(0, 100) || named != 1 {
		t.Errorf("%d bytes kept, named %d times", a.text, named)
	}
}

// busy is a Fleet with a pod, as far as publish and standing need one.
func busy(t *testing.T, uid string, ranks int) (*Fleet, *Pod) {
	t.Helper()
	f := NewFleet(FleetOptions{KubeletRoot: t.TempDir()})
	t.Cleanup(f.Close)
	p := &Pod{fleet: f, uid: uid, dir: &Dir{fd: -1}, ranks: map[int]*Rank{}, account: newAccount(Budget{}, nil)}
	for i := range ranks {
		p.ranks[i] = &Rank{pod: p, local: i}
	}
	f.pods[uid] = p
	return f, p
}

// goes lets a rank attach and exit.
func goes(r *Rank, pid int) {
	h := Hello{WorldSize: 64, LocalRank: r.local, Rank: r.local, PID: pid}
	r.mu.Lock()
	r.live, r.exit = &h, nil
	r.seq++
	e := Event{Kind: RankAttached, PodUID: r.pod.uid, Rank: r, Hello: h, seq: r.seq}
	r.mu.Unlock()
	r.pod.fleet.publish(e)
	r.mu.Lock()
	r.live = nil
	r.mu.Unlock()
	r.report(RankExit{Identity: Identity{WorldSize: 64, LocalRank: r.local, PID: pid}}, false)
}

func TestNoFloodOfMessagesCrowdsOutALifecycleEvent(t *testing.T) {
	f, loud := busy(t, uid(1), 1)
	quiet := &Pod{fleet: f, uid: uid(2), dir: &Dir{fd: -1}, ranks: map[int]*Rank{}, account: newAccount(Budget{}, nil)}
	quiet.ranks[0] = &Rank{pod: quiet}
	f.pods[uid(2)] = quiet
	var mu sync.Mutex
	got, release := map[EventKind]int{}, make(chan struct{})
	dropped := false
	stop := f.Subscribe(func(e Event) {
		<-release
		mu.Lock()
		defer mu.Unlock()
		dropped = dropped || e.Kind == Problem
		if e.PodUID == uid(2) {
			got[e.Kind]++
		}
	})
	defer stop()
	for range 100_000 {
		f.publish(Event{Kind: RankSaid, PodUID: loud.uid, Rank: loud.ranks[0], Message: Held{}})
	}
	goes(quiet.ranks[0], 7)
	f.publish(Event{Kind: RankSaid, PodUID: quiet.uid, Rank: quiet.ranks[0], Message: Held{}})
	close(release)
	eventuallyTrue(t, func() bool { mu.Lock(); defer mu.Unlock(); return dropped })
	mu.Lock()
	defer mu.Unlock()
	if got[RankAttached] != 1 || got[RankExited] != 1 || got[RankSaid] != 1 {
		t.Errorf("of the quiet pod: %v", got)
	}
}

func TestAfterLifecycleEventsWereDroppedTheStateIsReadAgain(t *testing.T) {
	f, p := busy(t, uid(1), 64)
	var mu sync.Mutex
	last, twice, release := map[*Rank]Event{}, 0, make(chan struct{})
	stop := f.Subscribe(func(e Event) {
		<-release
		mu.Lock()
		defer mu.Unlock()
		if e.Rank != nil {
			if was, ok := last[e.Rank]; ok && was.seq >= e.seq {
				twice++
			}
			last[e.Rank] = e
		}
	})
	defer stop()
	for pid := 1; pid <= 50; pid++ { // far more than the pod's share of the queue
		for _, r := range p.Ranks() {
			goes(r, pid)
		}
	}
	close(release)
	eventuallyTrue(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range p.Ranks() {
			if e := last[r]; e.Kind != RankExited || e.Exit.PID != 50 {
				return false
			}
		}
		return true
	})
	if twice != 0 {
		t.Errorf("%d events came twice or after a later one", twice)
	}
	if !p.OverBudget() {
		t.Error("the pod is not over its budget of events")
	}
}

func eventuallyTrue(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never came")
		}
	}
}

func TestAPodThatMakesNamesWithoutEndIsNotWatchedForAWhileAndOthersAre(t *testing.T) {
	root := t.TempDir()
	for i := range 2 {
		if err := os.MkdirAll(PodDir(root, uid(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	changes := make(chan FileChange, 1<<16)
	var mu sync.Mutex
	now := time.Now()
	w := NewWatcher(root, DefaultLimits(), Budget{FileEvents: Rate{1, 100}, FileNames: 50}, func(c FileChange) { changes <- c })
	w.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	var err error
	if w.notify, err = newInotify(); err != nil {
		t.Fatal(err)
	}
	defer w.notify.close()
	if err := w.scan(); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		if err := os.WriteFile(filepath.Join(PodDir(root, uid(0)), fmt.Sprint("x", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 { // what the kernel has gathered
		if err := w.notify.read(time.Now().Add(20*time.Millisecond), w.event); err != nil {
			break
		}
	}
	exceeded := 0
	for len(changes) > 0 {
		if c := <-changes; c.Kind == Exceeded && c.Resource == FileEvents && c.PodUID == uid(0) {
			exceeded++
		}
	}
	if exceeded != 1 || w.pods[uid(0)].rests.IsZero() || !w.pods[uid(1)].rests.IsZero() {
		t.Errorf("%d times over budget; the first pod rests until %v, the other until %v", exceeded, w.pods[uid(0)].rests, w.pods[uid(1)].rests)
	}
	// A rank of the loud pod is found when it has rested, though its directory has more names than are read.
	for i := range 2 {
		if err := os.WriteFile(filepath.Join(PodDir(root, uid(i)), RingName(3)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.wait(); err != nil {
		t.Fatal(err)
	}
	see(t, changes, FileChange{Kind: RingAppeared, PodUID: uid(1), Local: 3})
	mu.Lock()
	now = now.Add(restFirst + time.Second)
	mu.Unlock()
	if err := os.WriteFile(filepath.Join(PodDir(root, uid(1)), RingName(4)), nil, 0o600); err != nil { // wakes it
		t.Fatal(err)
	}
	if err := w.wait(); err != nil {
		t.Fatal(err)
	}
	see(t, changes, FileChange{Kind: RingAppeared, PodUID: uid(0), Local: 3})
}

func TestANodeFullOfRanksHasRoomForEachPodsOwn(t *testing.T) {
	root := t.TempDir()
	f := NewFleet(FleetOptions{KubeletRoot: root, Limits: Limits{Pods: 10, Ranks: 64, NodeRanks: 20, RanksGuaranteed: 4, Lives: 10}})
	defer f.Close()
	for i := range 3 {
		if err := os.MkdirAll(PodDir(root, uid(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ranks := func(i int) int { return len(f.podOf(uid(i)).Ranks()) }
	for local := range 64 {
		f.change(FileChange{Kind: SocketAppeared, PodUID: uid(0), Local: local})
	}
	for local := range 8 {
		f.change(FileChange{Kind: SocketAppeared, PodUID: uid(1), Local: local})
	}
	if ranks(0) != 20 || ranks(1) < 4 {
		t.Errorf("%d and %d ranks, want 20 and at least 4", ranks(0), ranks(1))
	}
	if !f.Pod(uid(0)).OverBudget() {
		t.Error("the first pod is not over its budget")
	}
}

func TestARingThatTheBudgetLeavesOutIsOpenedLaterAndTheOldOneIsNotShownMeanwhile(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(PodDir(root, uid(1)), 0o755); err != nil {
		t.Fatal(err)
	}
	f := NewFleet(FleetOptions{KubeletRoot: root, Budget: Budget{Rings: Rate{1, 1}}})
	defer f.Close()
	golden, err := os.ReadFile("testdata/ring-v1.bin")
	if err != nil {
		t.Fatal(err)
	}
	put := func() {
		path := filepath.Join(PodDir(root, uid(1)), RingName(1))
		if err := os.WriteFile(path+".tmp", golden, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			t.Fatal(err)
		}
		f.change(FileChange{Kind: RingAppeared, PodUID: uid(1), Local: 1})
	}
	put()
	r, a := f.Pod(uid(1)).Ranks()[0], f.Pod(uid(1)).account
	var mu sync.Mutex
	now := time.Now()
	a.mu.Lock()
	a.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	a.mu.Unlock()
	first := r.Ring()
	if first == nil {
		t.Fatal("the first ring was not opened")
	}
	put()
	if got := r.Ring(); got != nil {
		t.Error("the ring of a process that is gone is shown in place of the newest")
	}
	mu.Lock()
	now = now.Add(2 * time.Second)
	mu.Unlock()
	if got := r.Ring(); got == nil || got == first {
		t.Error("the newest ring was not opened when there was budget again")
	}
}

func TestAProcessThatBeatAfterTheLastLookIsNotCalledDead(t *testing.T) {
	c := &census{proc: t.TempDir(), at: time.Now().Add(-4 * time.Second), pods: true}
	now := uint64(time.Hour)
	s := &Snapshot{Identity: Identity{PID: 2}, NowMono: now, HeartbeatMono: now - uint64(3*time.Second)}
	if !c.mayBeAlive(uid(1), s) {
		t.Error("a process that began after the look is called dead")
	}
	s.HeartbeatMono = now - uint64(5*time.Second)
	if c.mayBeAlive(uid(1), s) {
		t.Error("a process that was gone at the look is called alive")
	}
}

func TestARankThatDiedWhileTheAgentWasDownIsDeadThoughItsNumberIsAnothersOnTheHost(t *testing.T) {
	pod, other := uid(1), uid(2)
	const start = 100 * time.Second
	stat := func(state string) string { return "1 (x) " + state + strings.Repeat(" 0", 18) + " 100 0\n" } // a second after boot
	type proc struct{ cgroup, nspid, state, more string }
	kube := func(uid string) string {
		return "0::/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-x.scope"
	}
	for name, c := range map[string]struct {
		procs map[int]proc
		alive bool
	}{
		"a kernel thread has its number":               {map[int]proc{2: {"0::/", "2", "S", "Kthread:\t1\n"}, 50: {kube(other), "50\t9", "S", ""}}, false},
		"a daemon of the host has its number":          {map[int]proc{2: {"0::/system.slice/x.service", "2", "S", ""}, 50: {kube(other), "50\t9", "S", ""}}, false},
		"another pod's process has its number":         {map[int]proc{7: {kube(other), "7\t2", "S", ""}}, false},
		"another process of the pod lives":             {map[int]proc{7: {kube(pod), "7\t3", "S", ""}}, false},
		"it is a zombie":                               {map[int]proc{7: {kube(pod), "7\t2", "Z", ""}}, false},
		"it lives":                                     {map[int]proc{7: {kube(pod), "7\t2", "S", ""}}, true},
		"it lives, cgroup v1":                          {map[int]proc{7: {"12:memory:/kubepods/burstable/pod" + pod + "/abc", "7\t2", "D", ""}}, true},
		"no pod can be seen, a process has its number": {map[int]proc{2: {"0::/", "2", "S", "VmSize:\t1 kB\n"}}, true},
		"no pod can be seen, a kernel thread has it":   {map[int]proc{2: {"0::/", "2", "S", "Kthread:\t1\n"}}, false},
		"no pod can be seen, nothing has its number":   {map[int]proc{3: {"0::/", "3", "S", ""}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for pid, p := range c.procs {
				dir := filepath.Join(root, fmt.Sprint(pid))
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				for file, content := range map[string]string{"stat": stat(p.state), "cgroup": p.cgroup + "\n", "status": "Name:\tx\nNSpid:\t" + p.nspid + "\n" + p.more} {
					if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			census := &census{proc: root}
			if got := census.mayBeAlive(pod, &Snapshot{Identity: Identity{PID: 2}, StartMono: uint64(start)}); got != c.alive {
				t.Errorf("alive: %v, want %v", got, c.alive)
			}
		})
	}
}
