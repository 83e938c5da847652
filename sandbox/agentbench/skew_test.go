package agentbench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// previousRevision is the one of which hook/testdata/previous holds the bytes. At a release it becomes the release before it.
const previousRevision = "ab320c6"

// previous is the tree of the previous release with its collector built, made once.
var previous = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "previous-")
	if err != nil {
		return "", err
	}
	cleanup = append(cleanup, dir)
	for _, script := range []string{
		fmt.Sprintf("git archive %s | tar -x -C %s", previousRevision, dir),
		fmt.Sprintf("cd %s && go build -tags grpcnotrace -ldflags '-s -w' -o pitcrew-collector ./cmd/pitcrew-collector", dir),
	} {
		c := exec.Command("bash", "-c", "set -o pipefail; cd ../.. && "+script)
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", script, err, out)
		}
	}
	return dir, nil
})

const skewPod = "0a7f3c1e-5b0d-4a53-9d7e-3f1c2b4a6d81"

// TestAWholeIncidentGoesThroughWhileTheAgentIsUpgradedOrRolledBack plays the remediator's part over the bus, with real launchers, ranks and
// agents of two releases. The agent is replaced twice: between arm and go of a round, and after the order to stop the failed attempt,
// while nobody is there to give the order to start the next one.
func TestAWholeIncidentGoesThroughWhileTheAgentIsUpgradedOrRolledBack(t *testing.T) {
	if os.Getenv(envFull) == "" {
		t.Skip("builds the previous release; set " + envFull)
	}
	if err := exec.Command("git", "cat-file", "-e", previousRevision+"^{commit}").Run(); err != nil {
		t.Skipf("revision %s is not in this checkout", previousRevision)
	}
	old, err := previous()
	if err != nil {
		t.Fatal(err)
	}
	now, err := build()
	if err != nil {
		t.Fatal(err)
	}
	before, current := filepath.Join(old, "pitcrew-collector"), now.collector
	for _, c := range []struct {
		name, tree string
		agents     [3]string // at the start, from the middle of the round on, from the middle of the restart on
	}{
		{"the hook of the previous release while the agent is upgraded in a round", old, [3]string{before, current, current}},
		{"the hook of the previous release while the agent is upgraded in a restart", old, [3]string{before, before, current}},
		{"the hook of this release with agents of the previous one", "../..", [3]string{before, before, before}},
		{"the hook of this release while the agent is rolled back in a round", "../..", [3]string{current, before, before}},
		{"the hook of this release while the agent is rolled back in a restart", "../..", [3]string{current, current, before}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startSkew(t, c.tree)
			s.agent(c.agents[0])
			s.incident(c.agents[1], c.agents[2])
		})
	}
}

// skew is a node with one training pod, and the remediator's side of the bus.
type skew struct {
	*node
	ckpt    string
	running *process
	env     []string
}

func startSkew(t *testing.T, tree string) *skew {
	s := &skew{node: &node{t: t, dir: t.TempDir()}, ckpt: t.TempDir()}
	server := bustest.Server(t)
	s.bus = bustest.Connect(t, server.URL())
	kmsg := filepath.Join(s.dir, "kmsg")
	if err := os.WriteFile(kmsg, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = []string{
		"PITCREW_NATS=" + server.URL(), "PITCREW_CLUSTER=c", "PITCREW_NODE=node-a", "PITCREW_KMSG=" + kmsg,
		"PITCREW_RUN_DIR=" + filepath.Join(s.dir, "run"), "PITCREW_STATE_DIR=" + filepath.Join(s.dir, "state"),
		"PITCREW_KUBELET_ROOT=" + s.kubeletRoot(), "PITCREW_POD_RESOURCES=" + filepath.Join(s.dir, "none.sock"), "PITCREW_PROMETHEUS=127.0.0.1:0",
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir,
	}
	tree, err := filepath.Abs(tree)
	if err != nil {
		t.Fatal(err)
	}
	python := filepath.Join(tree, "python")
	launcher := exec.Command("python3", filepath.Join(python, "tests", "bare.py"), "--nproc-per-node=2", "--max-restarts=3",
		filepath.Join(tree, "hook", "testdata", "rank.py"), s.ckpt)
	launcher.Env = append(os.Environ(), "PYTHONPATH="+python, "PYTHONDONTWRITEBYTECODE=1", "PITCREW_DIR="+hooktest.Pod(t, s.kubeletRoot(), skewPod),
		"PITCREW_JOB_UID=job-1", "PITCREW_AGENT_WAIT=30", "PITCREW_HEAL_WAIT=120")
	log, err := os.Create(filepath.Join(s.dir, "launcher.log"))
	if err != nil {
		t.Fatal(err)
	}
	launcher.Stdout, launcher.Stderr = log, log
	if err := launcher.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = launcher.Process.Signal(syscall.SIGTERM)
		_ = launcher.Wait()
		_ = log.Close()
		if raw, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the launcher:\n%s", raw)
		}
	})
	return s
}

// agent replaces the agent by another program; "" only ends it.
func (s *skew) agent(exe string) {
	s.t.Helper()
	if s.running != nil {
		_ = s.running.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.running.cmd.Wait()
		s.running = nil
	}
	if exe != "" {
		s.running = s.start(exe, "agent", s.env)
	}
}

// ask repeats a command until the answer is good: agents come and go.
func (s *skew) ask(what, verb string, c bus.Command, good func(bus.Reply) bool) (r bus.Reply) {
	s.t.Helper()
	var err error
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		r, err = s.bus.Request(ctx, "node-a", verb, c)
		cancel()
		if err == nil && good(r) {
			return r
		}
	}
	for _, p := range r.Pods {
		s.t.Logf("launcher %+v, ranks %+v", p.Launcher, p.Ranks)
	}
	s.t.Fatalf("not within a minute: %s: %+v, %v", what, r, err)
	return r
}

// stepping waits until both ranks of an attempt have passed a step, and returns the furthest and the process of rank 1.
func (s *skew) stepping(attempt int, past int64) (most int64, pid int) {
	s.t.Helper()
	s.ask(fmt.Sprintf("attempt %d steps", attempt), bus.VerbStatus, bus.Command{}, func(r bus.Reply) bool {
		ready := 0
		for _, p := range r.Pods {
			for _, x := range p.Ranks {
				if x.Connected && x.Attempt == attempt && x.Step > past {
					ready++
					most = max(most, x.Step)
					if x.Rank == 1 {
						pid = x.Pid
					}
				}
			}
		}
		return ready == 2
	})
	return most, pid
}

func all(word string) func(bus.Reply) bool {
	return func(r bus.Reply) bool {
		for _, x := range r.Ranks {
			if x.T != word {
				return false
			}
		}
		return len(r.Ranks) == 2
	}
}

func (s *skew) incident(inRound, inRestart string) {
	t, heard := s.t, s.listen()
	at, _ := s.stepping(0, 20)
	at += 200 // both ranks are ahead of it when they are asked
	round := bus.Command{Req: "inc/1", PodUIDs: []string{skewPod}, DeadlineMS: 60_000}
	arm := round
	arm.AtStep = at
	s.ask("armed", bus.VerbArm, arm, all("armed"))
	s.agent(inRound)
	r := s.ask("saved", bus.VerbGo, round, all("saved"))
	write := round
	write.Manifest = &bus.Save{Step: at, WorldSize: 2}
	for _, x := range r.Ranks {
		if x.Step != at || x.Save == nil || len(x.Save.Files) != 1 {
			t.Fatalf("saved %+v, want step %d", x, at)
		}
		write.Manifest.Dir, write.Manifest.Files = x.Save.Dir, append(write.Manifest.Files, x.Save.Files...)
	}
	s.ask("manifest", bus.VerbManifest, write, func(r bus.Reply) bool {
		return len(r.Ranks) == 1 && r.Ranks[0].T == "manifested" && r.Ranks[0].Save.CRC32 != ""
	})
	if _, err := os.Stat(filepath.Join(write.Manifest.Dir, "MANIFEST.json")); err != nil {
		t.Error(err)
	}
	s.ask("released", bus.VerbRelease, round, all("released"))

	_, pid := s.stepping(0, at)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.eventually("the death of rank 1", func() bool { return len(heard.about("rank/dead")) > 0 })
	if d := heard.about("rank/dead")[0].Data; d.Target.PodUID != skewPod || d.Target.Rank == nil || *d.Target.Rank != 1 || d.Target.Attempt == nil || *d.Target.Attempt != 0 {
		t.Errorf("event %+v", d)
	}
	job := event.Job{UID: "job-1"}
	plan := bus.Attempt{Job: job, Attempt: 1, Incident: "inc", NProc: 2, WorldSize: 2, Members: []bus.Member{{Node: "node-a", PodUID: skewPod}}}
	rev, err := s.bus.Attempts().Put(t.Context(), job.UID, plan, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.ask("the failed attempt is stopped", bus.VerbStatus, bus.Command{}, func(r bus.Reply) bool {
		return len(r.Pods) == 1 && r.Pods[0].Launcher != nil && r.Pods[0].Launcher.State == "stopped"
	})
	s.agent("")
	plan.MasterAddr, plan.MasterPort = "127.0.0.1", 29511
	if _, err := s.bus.Attempts().Put(t.Context(), job.UID, plan, rev); err != nil {
		t.Fatal(err)
	}
	s.agent(inRestart)
	s.stepping(1, 20)
	time.Sleep(2 * time.Second)                                                                                      // for what would be said of the attempt that ended
	deaths := slices.DeleteFunc(heard.about("rank/dead"), func(e event.Event) bool { return e.Type != event.Fault }) // the others are recoveries
	for _, e := range deaths {
		if d := e.Data.Target; d.Attempt != nil && *d.Attempt != 0 || d.Rank != nil && *d.Rank != 1 {
			t.Errorf("a death that is none: %+v", e)
		}
	}
	if n := len(deaths); n != 1 {
		t.Errorf("the death was reported %d times", n)
	}
	if raw, err := os.ReadFile(s.running.log.Name()); err == nil && strings.Contains(string(raw), "panic") {
		t.Errorf("the agent:\n%s", raw)
	}
}
