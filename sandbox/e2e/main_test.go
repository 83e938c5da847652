package e2e

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/demo"
)

// asRemediator is the word that makes the test binary a remediator.
const asRemediator = "remediator"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asRemediator {
		if err := runRemediator(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	for range cap(scenes) {
		s := <-scenes
		if s.stage == nil {
			continue
		}
		_ = os.RemoveAll(filepath.Dir(s.crash))
		if s.raw != nil {
			s.raw.Close()
		}
		if tried := violations(s.stage); tried != "" {
			fmt.Fprintf(os.Stderr, "a program of ours did on NATS what its role may not:\n%s", tried)
			code = 1
		}
		if code != 0 {
			keepLogs(s.stage)
		}
		s.stage.Close()
	}
	os.Exit(code)
}

// lossWait is when silence alone opens an incident, in place of 40 s.
const lossWait = 15 * time.Second

// runRemediator is the shipped remediator, which dies by SIGKILL after the step that the crash file names, once.
func runRemediator(args []string) error {
	var o remediator.Options
	var policies, crash string
	f := flag.NewFlagSet(asRemediator, flag.ContinueOnError)
	f.StringVar(&o.NATS, "nats", "", "")
	f.StringVar(&o.NATSKeys, "nats-keys", "", "")
	f.StringVar(&o.TokenFile, "nats-token-file", "", "")
	f.StringVar(&o.Cluster, "cluster", "", "")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "")
	f.StringVar(&policies, "policies", "", "")
	f.StringVar(&o.Metrics, "metrics", "", "")
	f.StringVar(&o.Audit, "audit", "", "")
	f.StringVar(&crash, "crash", "", "")
	f.DurationVar(&o.Lease, "elect", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.Elect, o.LossWait = o.Lease > 0, lossWait
	o.Policies, o.Namespace = []string{policies}, demo.SystemNamespace
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	o.AfterStep = func(s incident.State) {
		want, err := os.ReadFile(crash)
		if err != nil || string(want) != string(s) {
			return
		}
		_ = os.Remove(crash) // the next run does not crash
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return remediator.Run(ctx, o)
}

// scene is a cluster with Pitcrew on it, and what tests leave on it for those that come after.
type scene struct {
	stage *demo.Stage
	raw   *nats.Conn // the tests' own, to say what nobody should
	crash string     // the file that names the step after which the remediator dies
	job   *demo.Job
	made  int
	err   error
	tried bool

	launcher string // of job
}

// scenes are those that no test has now. They are two, and tests run in parallel, since most of a recovery is waiting.
var scenes = func() chan *scene {
	c := make(chan *scene, 2)
	for range cap(c) {
		c <- &scene{}
	}
	return c
}()

// far is a node in another rack, cordoned by hand unless a test wants it free.
const far = "b1"

func nodes() []sandbox.NodeSpec {
	spec := func(name, rack string) sandbox.NodeSpec {
		return sandbox.NodeSpec{Name: name, Rack: rack, Spine: "spine-1", Zone: "zone-1", GPUCount: 8}
	}
	return []sandbox.NodeSpec{spec("a1", "rack-a"), spec("a2", "rack-a"), spec("a3", "rack-a"), spec("a4", "rack-a"), spec(far, "rack-b")}
}

// relaxed are the policies as shipped, enforcing, but for guards that a job trips which is hurt again and again on purpose.
func relaxed(ps []policy.Policy) []policy.Policy {
	ps = demo.Relaxed(ps)
	for i := range ps {
		for k := range ps[i].Spec.Rules {
			for n := range ps[i].Spec.Rules[k].Steps {
				if w := ps[i].Spec.Rules[k].Steps[n].With; w != nil {
					w.MaxPerJob = 1000
				}
			}
		}
	}
	return ps
}

// setUp builds the stage, once.
func (s *scene) setUp() error {
	if !s.tried {
		s.tried = true
		s.stage, s.crash, s.err = newStage()
	}
	return s.err
}

func newStage() (_ *demo.Stage, crash string, _ error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	root, err := sandbox.RepoRoot()
	if err != nil {
		return nil, "", err
	}
	bin := os.Getenv("PITCREW_BIN")
	if bin == "" {
		bin = filepath.Join(root, "bin")
	}
	dir, err := os.MkdirTemp("", "pitcrew-e2e-")
	if err != nil {
		return nil, "", err
	}
	crash = filepath.Join(dir, "crash")
	s, err := demo.SetUp(context.Background(), demo.StageOptions{
		Nodes: nodes(), JobSet: true, Auth: true, Links: true, Progress: os.Stderr, Policies: relaxed, Bin: bin,
		Remediator: []string{self, asRemediator, "--crash", crash},
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, "", err
	}
	return s, crash, cordon(s, far, true)
}

// violations are the NATS server's complaints of what its clients tried.
func violations(s *demo.Stage) string {
	raw, err := os.ReadFile(filepath.Join(s.Box().Logs(), "bus.log"))
	if err != nil {
		return err.Error()
	}
	var tried strings.Builder
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "Violation") {
			tried.WriteString(line)
		}
	}
	return tried.String()
}

// keepLogs copies the logs to where they outlive the sandbox.
func keepLogs(s *demo.Stage) {
	dir, err := os.MkdirTemp("", "pitcrew-e2e-logs-")
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "logs"), os.DirFS(s.Box().Logs()))
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "train"), os.DirFS(filepath.Join(s.Box().Dir(), "train")))
	}
	if raw, rerr := os.ReadFile(s.Box().AuditLog()); rerr == nil {
		_ = os.WriteFile(filepath.Join(dir, "audit.log"), raw, 0o644)
	}
	fmt.Fprintln(os.Stderr, strings.TrimSpace(fmt.Sprintln("logs of the failed run:", dir, err)))
}
