package hook_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// onDisk is a folder whose rings are copies, or the test is skipped.
func onDisk(t *testing.T) string {
	for _, root := range []string{os.TempDir(), "."} {
		dir, err := os.MkdirTemp(root, "pitcrew-disk-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err == nil && fs.Type != 0x01021994 { // tmpfs
			abs, err := filepath.Abs(dir)
			if err != nil {
				t.Fatal(err)
			}
			return abs
		}
	}
	t.Skip("every directory here is in memory")
	return ""
}

// TestAFrozenDiskUnderACopiedRingIsNoHungRank: a rank whose ring is on a disk trains on while the disk stands still; a rank that is stopped
// does not.
func TestAFrozenDiskUnderACopiedRingIsNoHungRank(t *testing.T) {
	root, ckpt := onDisk(t), t.TempDir()
	_, events := watch(t, root)
	proc := pythonRank(t, hooktest.Pod(t, root, podUID), ckpt, 0, 1)
	rank := next(t, events, hook.RankAttached).Rank
	look := func() hook.Snapshot {
		t.Helper()
		s, err := rank.Snapshot(rank.Ring())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	within := func(what string, ok func(hook.Snapshot) bool) {
		t.Helper()
		for end := time.Now().Add(soon); ; time.Sleep(20 * time.Millisecond) {
			s := look()
			if ok(s) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: never, at last %+v", what, s)
			}
		}
	}
	within("first steps", func(s hook.Snapshot) bool { return s.Flags&hook.FlagCopied != 0 && s.Step > 10 })

	if err := os.WriteFile(filepath.Join(ckpt, "frozen"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if s := look(); s.HeartbeatAge() > time.Second {
			t.Fatalf("the disk stands still: heartbeat %v old, of a rank that trains", s.HeartbeatAge())
		}
	}
	file, err := rank.Ring().Snapshot()
	if err != nil || file.HeartbeatAge() < 3*time.Second {
		t.Fatalf("the file says %+v, %v: it did not stand still", file, err)
	}
	if s := look(); s.Step <= file.Step || s.StepAge() > 2*time.Second || s.Section != hook.SectionStep {
		t.Errorf("step %d, %v old, section %v; the file has step %d", s.Step, s.StepAge(), s.Section, file.Step)
	}

	if err := proc.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	within("the stopped rank's heartbeat stands still", func(s hook.Snapshot) bool { return s.HeartbeatAge() > 2*time.Second && s.StepAge() > 2*time.Second })
	if err := proc.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	within("it trains on", func(s hook.Snapshot) bool { return s.HeartbeatAge() < time.Second && s.StepAge() < time.Second })

	if err := os.Remove(filepath.Join(ckpt, "frozen")); err != nil {
		t.Fatal(err)
	}
	within("the copy is fresh", func(s hook.Snapshot) bool { return s.Age(s.CopiedMono) < 200*time.Millisecond })
}
