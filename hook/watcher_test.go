package hook

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watching runs a Watcher and gives what it sees.
func watching(t *testing.T, root string, limits Limits) <-chan FileChange {
	t.Helper()
	changes := make(chan FileChange, 1<<16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	w := NewWatcher(root, limits, Budget{}, func(c FileChange) { changes <- c })
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return changes
}

// see waits for a change, letting others pass.
func see(t *testing.T, changes <-chan FileChange, want FileChange) {
	t.Helper()
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	for {
		select {
		case c := <-changes:
			c.Err = nil
			if c == want {
				return
			}
		case <-timer.C:
			t.Fatalf("never saw %+v", want)
		}
	}
}

func uid(i int) string { return fmt.Sprintf("0b9f5a1e-1111-4222-8333-%012d", i) }

func TestPodsAreFoundHoweverFastOrSlowTheirLevelsAreMade(t *testing.T) {
	for name, between := range map[string]time.Duration{"all at once": 0, "level by level": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			root := filepath.Join(base, "var", "lib", "kubelet") // not there yet
			changes := watching(t, root, DefaultLimits())
			const pods = 20
			go func() {
				for i := range pods {
					dir := base
					for _, level := range append([]string{"var", "lib", "kubelet", "pods", uid(i)}, podPath...) {
						dir = filepath.Join(dir, level)
						_ = os.Mkdir(dir, 0o755)
						time.Sleep(between)
					}
					_ = os.WriteFile(filepath.Join(dir, ".x"), nil, 0o644)
					_ = os.Rename(filepath.Join(dir, ".x"), filepath.Join(dir, RingName(i)))
				}
			}()
			missing := map[string]bool{}
			for i := range pods {
				missing[uid(i)] = true
			}
			timer := time.NewTimer(10 * time.Second)
			defer timer.Stop()
			for len(missing) > 0 {
				select {
				case c := <-changes:
					if c.Kind == RingAppeared && c.PodUID == uid(c.Local) {
						delete(missing, c.PodUID)
					}
				case <-timer.C:
					t.Fatalf("never found %v", missing)
				}
			}
		})
	}
}

func TestAPodThatGoesAndComesAgainIsGoneAndFound(t *testing.T) {
	root := t.TempDir()
	changes := watching(t, root, DefaultLimits())
	for range 3 {
		if err := os.MkdirAll(PodDir(root, uid(1)), 0o755); err != nil {
			t.Fatal(err)
		}
		see(t, changes, FileChange{Kind: PodFound, PodUID: uid(1)})
		if err := os.RemoveAll(filepath.Join(root, "pods", uid(1))); err != nil {
			t.Fatal(err)
		}
		see(t, changes, FileChange{Kind: PodGone, PodUID: uid(1)})
	}
	// The whole tree goes, as when a kubelet is reset.
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(PodDir(root, uid(2)), 0o755); err != nil {
		t.Fatal(err)
	}
	see(t, changes, FileChange{Kind: PodFound, PodUID: uid(2)})
}

func TestAPodWithTenThousandRanksIsBoundedAndNamedOnce(t *testing.T) {
	root := t.TempDir()
	dir := PodDir(root, uid(1))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		if err := os.WriteFile(filepath.Join(dir, RingName(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w := NewWatcher(root, Limits{Pods: 1, Ranks: 16, Lives: 1}, Budget{FileNames: 20_000}, nil)
	ranks, refused := map[int]bool{}, 0
	w.emit = func(c FileChange) {
		switch c.Kind {
		case RingAppeared:
			ranks[c.Local] = true
		case Refused:
			refused++
		}
	}
	var err error
	if w.notify, err = newInotify(); err != nil {
		t.Fatal(err)
	}
	defer w.notify.close()
	if err := w.scan(); err != nil {
		t.Fatal(err)
	}
	if len(ranks) != 16 || refused != 1 {
		t.Errorf("%d ranks and %d refusals, want 16 and 1", len(ranks), refused)
	}
}

func TestLostInotifyEventsAreMadeUpForByLookingAgain(t *testing.T) {
	root := t.TempDir()
	var got []FileChange
	w := NewWatcher(root, DefaultLimits(), Budget{}, func(c FileChange) { got = append(got, c) })
	var err error
	if w.notify, err = newInotify(); err != nil {
		t.Fatal(err)
	}
	defer w.notify.close()
	mk := func(i int) {
		if err := os.MkdirAll(PodDir(root, uid(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mk(1)
	if err := w.scan(); err != nil {
		t.Fatal(err)
	}
	// Nobody reads the events of what follows.
	mk(2)
	if err := os.WriteFile(filepath.Join(PodDir(root, uid(2)), LauncherSocket), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(root, "pods", uid(1))); err != nil {
		t.Fatal(err)
	}
	got = nil
	if err := w.rescan(); err != nil {
		t.Fatal(err)
	}
	want := []FileChange{{Kind: PodGone, PodUID: uid(1)}, {Kind: PodFound, PodUID: uid(2)}, {Kind: LauncherAppeared, PodUID: uid(2)}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("saw %v, want %v", got, want)
	}
}

func TestMorePodsThanTheLimitAreNamedAndOthersGoOn(t *testing.T) {
	root := t.TempDir()
	changes := watching(t, root, Limits{Pods: 1, Ranks: 1, Lives: 1})
	for i := range 2 {
		if err := os.MkdirAll(PodDir(root, uid(i)), 0o755); err != nil {
			t.Fatal(err)
		}
		see(t, changes, FileChange{Kind: map[int]ChangeKind{0: PodFound, 1: Refused}[i], PodUID: uid(i)})
	}
}
