package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/claims"
	"github.com/pitcrew/pitcrew/sandbox"
)

// trainer is a rank with the real hook and without torch. Its heartbeat and its looks come every 0.2 s in place of 5 s.
const trainer = `
import sys, time
from pitcrew_torch import claims
claims.BEAT_EVERY = 0.2
from pitcrew_torch.hook import Hook
hook = Hook(save_fn=lambda ctx: None, load_fn=lambda ctx: None, checkpoint_dir=sys.argv[1], strategy="ddp")
hook.resume()
while True:
    time.sleep(0.02)
    hook.step(loss=0.25)
`

// pair are the two ranks of a job, on two nodes, and what the remediator makes of what the second one reads.
type pair struct {
	*testing.T
	procs [2]*exec.Cmd
	ring  *hook.Ring // of rank 1
	watch *claims.Watch
}

func (p *pair) start(rank int, ckpt, dir string) {
	p.Helper()
	root, err := sandbox.RepoRoot()
	if err != nil {
		p.Fatal(err)
	}
	cmd := exec.Command("python3", "-c", trainer, ckpt)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "python"), "PYTHONDONTWRITEBYTECODE=1", "PITCREW_DIR="+dir, fmt.Sprint("RANK=", rank), "LOCAL_RANK=0",
		"WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "PITCREW_ATTEMPT=3", "PITCREW_JOB_UID=job-1")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	p.procs[rank] = cmd
	p.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// shows judges what rank 1 reads now.
func (p *pair) shows() claims.Progress {
	p.Helper()
	s, err := p.ring.Snapshot()
	if err != nil {
		p.Fatal(err)
	}
	r := bus.RankStatus{Rank: 1, Attempt: s.Attempt, Exit: "running"}
	if c := s.Claim; c.ReadMono > 0 {
		r.Claim = &bus.ClaimReading{Epoch: int64(c.Epoch), Attempt: int(c.Attempt), Step: int64(c.Step), Count: int64(c.Count), AgeS: s.Age(c.ReadMono).Seconds()}
	}
	shows, _ := p.watch.Judge(event.Job{UID: "job-1"}, checkpoint.Gang{Ranks: map[int]bus.RankStatus{1: r}, Attempt: s.Attempt})
	return shows
}

// never checks for a time that the heartbeat is not taken for silent.
func (p *pair) never(during string, d time.Duration) {
	p.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if p.shows() == claims.Silent {
			p.Fatalf("%s the heartbeat counts as silent", during)
		}
	}
}

func (p *pair) comes(want claims.Progress, within time.Duration) {
	p.Helper()
	for end := time.Now().Add(within); p.shows() != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("the heartbeat shows %q after %s, not %q", p.shows(), within, want)
		}
	}
}

func (p *pair) signal(rank int, s syscall.Signal) {
	p.Helper()
	if err := p.procs[rank].Process.Signal(s); err != nil {
		p.Fatal(err)
	}
}

func TestWhatARealRankReadsProvesALossOnlyWhileTheHeartbeatStandsStill(t *testing.T) {
	t.Parallel()
	p := &pair{T: t, watch: &claims.Watch{Now: time.Now, Watched: time.Second}}
	ckpt, root := t.TempDir(), t.TempDir()
	p.start(0, ckpt, t.TempDir())
	p.waitFor(filepath.Join(ckpt, ".pitcrew", "beat-000001.json"))
	dir := hook.PodDir(root, "0b3c2f5e-8f0a-4c3e-9a5e-2f6d7c8b9a01")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.start(1, ckpt, dir)
	p.waitFor(filepath.Join(dir, "local-0.ring"))
	d, err := hook.OpenPodDir(root, "0b3c2f5e-8f0a-4c3e-9a5e-2f6d7c8b9a01")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if p.ring, err = hook.OpenRing(d, 0, hook.Monotonic); err != nil {
		t.Fatal(err)
	}
	defer p.ring.Close()

	p.comes(claims.Stepping, 10*time.Second)
	p.never("while rank 0 steps", 4*time.Second)
	p.signal(1, syscall.SIGSTOP) // the reader hangs: what it read last grows old
	p.never("while nobody reads", 5*time.Second)
	p.signal(1, syscall.SIGCONT)
	p.comes(claims.Stepping, 5*time.Second)
	p.signal(0, syscall.SIGSTOP)
	p.never("just after rank 0 stopped", 2*time.Second)
	p.comes(claims.Silent, 8*time.Second)
	p.signal(0, syscall.SIGCONT)
	p.comes(claims.Stepping, 5*time.Second)
	if err := os.Remove(filepath.Join(ckpt, ".pitcrew", "beat-000001.json")); err != nil { // and somebody clears the directory as rank 0 dies
		t.Fatal(err)
	}
	p.signal(0, syscall.SIGKILL)
	_ = os.Remove(filepath.Join(ckpt, ".pitcrew", "beat-000001.json"))
	time.Sleep(300 * time.Millisecond)
	_ = os.Remove(filepath.Join(ckpt, ".pitcrew", "beat-000001.json"))
	p.never("without a file", 5*time.Second)
}

func (p *pair) waitFor(path string) {
	p.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if raw, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(raw)) != "" {
			return
		}
		if time.Now().After(end) {
			p.Fatalf("no %s within 20 s", path)
		}
	}
}
