package pilotextension

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.uber.org/goleak"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
	"github.com/pitcrew/pitcrew/receivers/torchreceiver"
)

func TestMain(m *testing.M) {
	hooktest.Main()
	goleak.VerifyTestMain(m, goleak.Cleanup(os.Exit),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.init.0.func1"), // a ticker of the server's package, for ever
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"))
}

// The torch receiver finds the fleet here.
var _ torchreceiver.FleetProvider = (*Pilot)(nil)

const (
	soon   = 10 * time.Second
	podA   = "aaaaaaaa-1111-4222-8333-444455556666"
	podB   = "bbbbbbbb-1111-4222-8333-444455556666"
	node   = "node-1.example"
	jobUID = "job-1"
)

// cluster is a NATS server and the remediator's side of the bus.
type cluster struct {
	t    *testing.T
	root string
	url  string
	bus  *bus.Bus
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	srv := bustest.Server(t)
	return &cluster{t: t, root: t.TempDir(), url: srv.URL(), bus: bustest.Connect(t, srv.URL())}
}

// pilot starts the extension; stop ends it, as an upgrade does.
func (c *cluster) pilot() (p *Pilot, stop func()) { return startPilot(c.t, c.root, c.url) }

func startPilot(t *testing.T, root, url string) (p *Pilot, stop func()) {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.Node, cfg.KubeletRoot, cfg.Cluster, cfg.URL = node, root, "c", url
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	log := zaptest.NewLogger(t, zaptest.Level(zapcore.WarnLevel))
	set := componenttest.NewNopTelemetrySettings()
	set.Logger = log
	p, err := newPilot(set, cfg, func() (Bus, error) { return dial(log, cfg) })
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			if err := p.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return p, stop
}

// request asks the agent, again until one answers and ok holds.
func (c *cluster) request(verb string, cmd bus.Command, ok func(bus.Reply) bool) bus.Reply {
	c.t.Helper()
	var r bus.Reply
	var err error
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		r, err = c.bus.Request(ctx, node, verb, cmd)
		cancel()
		if err == nil && ok(r) {
			return r
		}
	}
	c.t.Fatalf("%s: %+v, %v", verb, r, err)
	return r
}

// ready waits until n ranks are connected.
func (c *cluster) ready(n int) bus.Reply {
	c.t.Helper()
	return c.request(bus.VerbStatus, bus.Command{}, func(r bus.Reply) bool {
		connected := 0
		for _, p := range r.Pods {
			for _, rank := range p.Ranks {
				if rank.Connected {
					connected++
				}
			}
		}
		return connected == n
	})
}

func said(t string, n int) func(bus.Reply) bool {
	return func(r bus.Reply) bool {
		for _, x := range r.Ranks {
			if x.T != t {
				return false
			}
		}
		return len(r.Ranks) == n
	}
}

func TestARoundHoldsSavesAndReleasesAllRanksThroughTheBusAndOutlivesTheAgent(t *testing.T) {
	c := newCluster(t)
	_, stop := c.pilot()
	dir := hooktest.Pod(t, c.root, podA)
	ranks := []*hooktest.Process{}
	for i := range 2 {
		ranks = append(ranks, hooktest.Start(t, hooktest.Config{Dir: dir, Rank: i, LocalRank: i, WorldSize: 2, Attempt: 3, CanSave: true, CkptDir: "/ckpt"}))
	}
	c.ready(2)
	base := bus.Command{Req: "inc/1", Attempt: 3, PodUIDs: []string{podA}, DeadlineMS: 8000}

	past, armed := base, base
	past.Req, past.AtStep = "inc/0", 0
	r := c.request(bus.VerbArm, past, said("nack", 2))
	if r.Ranks[0].Reason != "past" || r.Node != node {
		t.Errorf("arm at a step behind: %+v", r)
	}
	other := base
	other.Attempt, other.Req, other.AtStep = 2, "inc/2", 9
	if r := c.request(bus.VerbArm, other, said("nack", 2)); r.Ranks[1].Reason != "attempt" {
		t.Errorf("arm of another attempt: %+v", r)
	}
	armed.AtStep = 5
	c.request(bus.VerbArm, armed, said("armed", 2))

	stop() // the agent is replaced in the middle of the round
	c.pilot()
	c.ready(2)
	for _, p := range ranks {
		p.Tell("step 5")
	}
	r = c.request(bus.VerbGo, base, said("saved", 2))
	manifest := &bus.Save{Step: 5, WorldSize: 2}
	for i, x := range r.Ranks {
		if x.Rank != i || x.Step != 5 || x.Save == nil || x.Save.Files[0].Rank != i || x.Save.Files[0].CRC32 == "" {
			t.Errorf("saved %+v", x)
		}
		manifest.Dir = x.Save.Dir
		manifest.Files = append(manifest.Files, x.Save.Files...)
	}
	write := base
	write.Writer, write.Manifest = 1, manifest
	if r := c.request(bus.VerbManifest, write, said("manifested", 1)); r.Ranks[0].Rank != 1 || r.Ranks[0].Save.Dir != "/ckpt/step-5.attempt-3" || r.Ranks[0].Save.CRC32 != "00000002" {
		t.Errorf("manifested %+v", r.Ranks[0])
	}
	c.request(bus.VerbRelease, base, said("released", 2))

	base.Reason = "test"
	c.request(bus.VerbAbort, base, said("aborted", 2))
	c.request(bus.VerbGo, base, said("gone", 2))
}

func TestARankThatDiesInTheRoundIsGoneInTheAnswerAndDoesNotHoldItUp(t *testing.T) {
	c := newCluster(t)
	c.pilot()
	dir := hooktest.Pod(t, c.root, podA)
	alive := hooktest.Start(t, hooktest.Config{Dir: dir, Rank: 0, WorldSize: 2, CanSave: true})
	dead := hooktest.Start(t, hooktest.Config{Dir: dir, Rank: 1, LocalRank: 1, WorldSize: 2, CanSave: true})
	c.ready(2)
	cmd := bus.Command{Req: "r", PodUIDs: []string{podA, podB}, AtStep: 3, DeadlineMS: 60_000}
	c.request(bus.VerbArm, cmd, func(r bus.Reply) bool { return len(r.Ranks) == 3 })
	alive.Tell("step 3")
	answer := make(chan bus.Reply, 1)
	go func() {
		answer <- c.request(bus.VerbGo, cmd, func(r bus.Reply) bool { return len(r.Ranks) == 3 })
	}()
	time.Sleep(50 * time.Millisecond)
	dead.Kill()
	select {
	case r := <-answer:
		got := map[int]string{}
		for _, x := range r.Ranks {
			got[x.Rank] = x.T
		}
		if fmt.Sprint(got) != "map[-1:gone 0:saved 1:gone]" {
			t.Errorf("answers %v", got)
		}
	case <-time.After(soon):
		t.Error("the dead rank holds the answer up")
	}
}

func TestStatusTellsWhatRingSocketAndProcessSay(t *testing.T) {
	c := newCluster(t)
	c.pilot()
	dir := hooktest.Pod(t, c.root, podA)
	p := hooktest.Start(t, hooktest.Config{Dir: dir, Rank: 4, WorldSize: 8, Attempt: 2, CanSave: true})
	hooktest.Start(t, hooktest.Config{Dir: dir, Launcher: true, State: "running", JobUID: jobUID, NProc: 1})
	c.ready(1)
	p.Tell("step 1")
	p.Tell("step 2")
	if r := c.request(bus.VerbStatus, bus.Command{}, func(bus.Reply) bool { return true }); r.Pods[0].Ranks[0].ResumedStep != nil {
		t.Error("a rank that has not looked for a checkpoint has a resumed step")
	}
	p.Tell("resume 40")
	r := c.request(bus.VerbStatus, bus.Command{PodUIDs: []string{podA}}, func(r bus.Reply) bool { return len(r.Pods) == 1 && r.Pods[0].Launcher != nil })
	s := r.Pods[0].Ranks[0]
	if s.Rank != 4 || s.WorldSize != 8 || s.Attempt != 2 || s.Pid != p.PID() || s.Step != 2 || s.Section != "step" || s.MedianStepS != 0.01 ||
		s.P99StepS != 0.01 || s.SaveS != 0.2 || !s.Connected || s.ProcState == "" || s.Exit != "running" || !s.CanSave || s.Strategy != "ddp" || s.ResumedStep == nil || *s.ResumedStep != 40 {
		t.Errorf("status %+v", s)
	}
	if l := r.Pods[0].Launcher; l.JobUID != jobUID || l.NProc != 1 {
		t.Errorf("launcher %+v", l)
	}
	if g := r.Pods[0].GPUs; len(g) != 1 || g[0] != "GPU-fake-4" {
		t.Errorf("gpus %v", g)
	}
	p.Kill()
	r = c.request(bus.VerbStatus, bus.Command{}, func(r bus.Reply) bool { return !r.Pods[0].Ranks[0].Connected })
	if s := r.Pods[0].Ranks[0]; s.Step != 2 || s.Rank != 4 {
		t.Errorf("a dead rank's status %+v", s)
	}
	if r := c.request(bus.VerbStatus, bus.Command{PodUIDs: []string{podB}}, func(bus.Reply) bool { return true }); len(r.Pods) != 0 {
		t.Errorf("pods not named: %+v", r.Pods)
	}
}

func (c *cluster) put(a bus.Attempt, rev uint64) uint64 {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	a.Job = event.Job{UID: jobUID}
	rev, err := c.bus.Attempts().Put(ctx, jobUID, a, rev)
	if err != nil {
		c.t.Fatal(err)
	}
	return rev
}

func launcher(t *testing.T, root, pod string) *hooktest.Process {
	t.Helper()
	return hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, pod), Launcher: true, State: "waiting", JobUID: jobUID, NProc: 1})
}

func told(t *testing.T, p *hooktest.Process, want hook.Message) {
	t.Helper()
	got, err := hook.Decode([]byte(p.Told("told", soon)))
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if err != nil || fmt.Sprintf("%T%s", got, a) != fmt.Sprintf("%T%s", want, b) {
		t.Fatalf("told %T%s, want %T%s (%v)", got, a, want, b, err)
	}
}

func TestALauncherFollowsItsJobsRecordFromAloneToAnAttempt(t *testing.T) {
	c := newCluster(t)
	_, stop := c.pilot()
	a := launcher(t, c.root, podA)
	told(t, a, hook.Alone{})
	rec := bus.Attempt{Attempt: 1, NProc: 1, WorldSize: 2, Members: []bus.Member{{NodeRank: 0, Node: node, PodUID: podA}, {NodeRank: 1, Node: "node-2"}}}
	rev := c.put(rec, 0)
	told(t, a, hook.Stop{Attempt: 1})
	// A late pod of the same job: it is in no place yet.
	b := launcher(t, c.root, podB)
	told(t, b, hook.Wait{})
	rec.Members[1] = bus.Member{NodeRank: 1, Node: node, PodUID: podB}
	rev = c.put(rec, rev)
	told(t, b, hook.Stop{Attempt: 1})
	rec.MasterAddr, rec.MasterPort = "10.0.0.7", 29517
	c.put(rec, rev)
	start := hook.Start{Attempt: 1, NNodes: 2, NProc: 1, WorldSize: 2, MasterAddr: "10.0.0.7", MasterPort: 29517}
	told(t, a, start)
	start.NodeRank = 1
	told(t, b, start)
	b.Tell("drop") // a renewed connection has heard nothing
	told(t, b, start)
	// A replaced agent ends at the same place, and a doubled message changes nothing.
	stop()
	c.pilot()
	told(t, b, start)
}

func TestWithoutNATSALauncherIsAloneAfterAMomentAndFollowsWhenItComes(t *testing.T) {
	root := t.TempDir()
	a := launcher(t, root, podA)
	startPilot(t, root, "nats://127.0.0.1:1") // nobody there
	began := time.Now()
	told(t, a, hook.Alone{})
	if d := time.Since(began); d < loneGrace-100*time.Millisecond {
		t.Errorf("alone after %v: the bus had no time to answer", d)
	}
}

func TestAPodsPlaceComesFromItsPathAndNeverFromItsClaim(t *testing.T) {
	member := bus.Attempt{Attempt: 4, NProc: 2, WorldSize: 2, MasterAddr: "m", MasterPort: 1, Members: []bus.Member{{NodeRank: 0, PodUID: podA}}}
	stopping := member
	stopping.MasterAddr = ""
	vacant := bus.Attempt{Attempt: 4, Members: []bus.Member{{NodeRank: 0}}}
	start := hook.Start{Attempt: 4, NNodes: 1, NProc: 2, WorldSize: 2, MasterAddr: "m", MasterPort: 1}
	for name, c := range map[string]struct {
		attempts   map[string]bus.Attempt
		pod, claim string
		want       hook.Message
	}{
		"no record":                                {nil, podA, jobUID, hook.Alone{}},
		"a member, with a master":                  {map[string]bus.Attempt{jobUID: member}, podA, jobUID, start},
		"a member, without a master":               {map[string]bus.Attempt{jobUID: stopping}, podA, jobUID, hook.Stop{Attempt: 4}},
		"a member that claims another job":         {map[string]bus.Attempt{jobUID: member}, podA, "job-2", start},
		"a member that claims nothing":             {map[string]bus.Attempt{jobUID: member}, podA, "", start},
		"no member, but it claims the job":         {map[string]bus.Attempt{jobUID: member}, podB, jobUID, hook.Wait{}},
		"no member, of another job":                {map[string]bus.Attempt{jobUID: member}, podB, "job-2", hook.Alone{}},
		"a place without a pod is nobody's":        {map[string]bus.Attempt{jobUID: vacant}, podB, jobUID, hook.Wait{}},
		"a place without a pod, and a claimant of": {map[string]bus.Attempt{"": vacant}, podB, "", hook.Alone{}},
	} {
		if got := decide(c.attempts, c.pod, c.claim); got != c.want {
			t.Errorf("%s: %#v, want %#v", name, got, c.want)
		}
	}
}

func TestCommandsThatNameNothingAreErrors(t *testing.T) {
	p, err := newPilot(componenttest.NewNopTelemetrySettings(), &Config{KubeletRoot: t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for verb, cmd := range map[string]bus.Command{
		bus.VerbArm: {Req: "x"}, bus.VerbGo: {PodUIDs: []string{podA}}, bus.VerbManifest: {Req: "x", PodUIDs: []string{podA}},
		bus.VerbAbort: {},
	} {
		if r, err := p.verbs()[verb](context.Background(), cmd); err == nil {
			t.Errorf("%s of %+v: %+v", verb, cmd, r)
		}
	}
}

func TestTheConfigurationNamesEveryFaultAtOnce(t *testing.T) {
	err := (&Config{KubeletRoot: "here"}).Validate()
	if err == nil || len(err.(interface{ Unwrap() []error }).Unwrap()) != 7 {
		t.Errorf("faults: %v", err)
	}
	if got := NewFactory().Type(); got != Type {
		t.Errorf("type %v", got)
	}
}
