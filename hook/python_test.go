package hook_test

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// pythonRank starts a process with the real pitcrew_torch in it.
func pythonRank(t *testing.T, dir, ckpt string, rank, world int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("python3", "testdata/rank.py", ckpt)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1", "PITCREW_DIR="+dir, fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank),
		fmt.Sprint("WORLD_SIZE=", world), "PITCREW_ATTEMPT=3")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// inMemory is a folder on a tmpfs, as a pod's is: a ring on a disk is copied there every 50 ms, so a kill can lose its last steps.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "pitcrew-hook-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestTheRealHookAndThisPackageUnderstandEachOther(t *testing.T) {
	probe := exec.Command("python3", "-c", "import pitcrew_torch.hook")
	probe.Env = append(os.Environ(), "PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("python3 cannot import pitcrew_torch.hook: %v\n%s", err, out)
	}
	root, ckpt := inMemory(t), t.TempDir()
	_, events := watch(t, root)
	dir := hooktest.Pod(t, root, podUID)
	const world = 3
	procs, ranks := make([]*exec.Cmd, world), make([]*hook.Rank, world)
	for i := range procs {
		procs[i] = pythonRank(t, dir, ckpt, i, world)
	}
	for range world {
		a := next(t, events, hook.RankAttached)
		if h := a.Hello; h.Attempt != 3 || h.WorldSize != world || h.PID != procs[h.Rank].Process.Pid || !h.CanSave || h.Strategy != "ddp" {
			t.Errorf("hello %+v", h)
		}
		ranks[a.Hello.Rank] = a.Rank
	}

	// Arm ahead of the fastest, go, manifest, release: the ranks step freely all the while.
	var at uint64
	for _, r := range ranks {
		s, err := r.Ring().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		if s.HeartbeatAge() > 5*time.Second || s.Exit != hook.ExitRunning || !s.CanSave() {
			t.Errorf("ring %+v", s)
		}
		at = max(at, s.Step)
	}
	at += 30
	for i, r := range ranks {
		if a, err := ask(t, r, hook.Arm{Req: "inc/1", Attempt: 3, AtStep: int64(at), DeadlineMS: 20_000}); err != nil || fmt.Sprintf("%T", a) != "hook.Armed" {
			t.Fatalf("rank %d: arm: %#v, %v", i, a, err)
		}
	}
	m := hook.Manifest{Req: "inc/1", Attempt: 3, Step: int64(at), WorldSize: world}
	for i, r := range ranks {
		a, err := ask(t, r, hook.Go{Req: "inc/1", Attempt: 3})
		saved, ok := a.(hook.Saved)
		if err != nil || !ok || saved.Error != "" || saved.Step != int64(at) || len(saved.Files) != 1 {
			t.Fatalf("rank %d: go: %#v, %v", i, a, err)
		}
		f := saved.Files[0]
		f.Rank = i
		body, err := os.ReadFile(filepath.Join(saved.Dir, f.Name))
		if err != nil || int64(len(body)) != f.Bytes || fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)) != f.CRC32 {
			t.Errorf("rank %d: %q, %v is not %+v", i, body, err, f)
		}
		m.Dir, m.Files, m.Writers = saved.Dir, append(m.Files, f), append(m.Writers, i)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) { // a ring on a disk is copied there every 50 ms
		s, err := ranks[1].Ring().Snapshot()
		if err == nil && s.Section == hook.SectionHeld && s.Step == at {
			break
		}
		if time.Now().After(end) {
			t.Errorf("after the save: %+v, %v, want held at %d", s, err, at)
			break
		}
	}
	a, err := ask(t, ranks[1], m)
	if got, ok := a.(hook.Manifested); err != nil || !ok || got.Error != "" || got.CRC32 == "" {
		t.Errorf("manifest: %#v, %v", a, err)
	}
	var manifest struct {
		Step  uint64      `json:"step"`
		Files []hook.File `json:"files"`
	}
	raw, err := os.ReadFile(filepath.Join(m.Dir, "MANIFEST.json"))
	if err == nil {
		err = json.Unmarshal(raw, &manifest)
	}
	if err != nil || manifest.Step != at || len(manifest.Files) != world {
		t.Errorf("MANIFEST.json: %s, %v", raw, err)
	}
	for i, r := range ranks {
		if a, err := ask(t, r, hook.Release{Req: "inc/1", Attempt: 3}); err != nil || fmt.Sprintf("%T", a) != "hook.Released" {
			t.Errorf("rank %d: release: %#v, %v", i, a, err)
		}
	}

	// Three ways to end.
	_ = procs[0].Process.Kill()
	if x := next(t, events, hook.RankExited).Exit; x.Rank != 0 || x.Bye || x.Error != "" || x.Step < at {
		t.Errorf("killed: %+v", x)
	}
	for rank, how := range map[int]string{1: "raise", 2: "bye"} {
		tmp := filepath.Join(ckpt, "tmp")
		if err := os.WriteFile(tmp, []byte(how), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(ckpt, fmt.Sprint("end-", rank))); err != nil {
			t.Fatal(err)
		}
		x := next(t, events, hook.RankExited).Exit
		if want := how == "bye"; x.Rank != rank || x.Bye != want || !want && x.Error != "RuntimeError: boom" {
			t.Errorf("%s: %+v", how, x)
		}
	}
}
