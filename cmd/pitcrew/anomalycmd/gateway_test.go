package anomalycmd

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/collector"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// running is a real gateway in this process, with a folder that outlives it.
type running struct {
	t    *testing.T
	name string
	dir  string
	to   pmetricotlp.GRPCClient
	stop func()
}

// run starts the gateway as `pitcrew-collector gateway` does.
func (g *running) run(nats string) {
	g.t.Helper()
	free := func() string { return freeport.Loopback(g.t) }
	otlp := free()
	for k, v := range map[string]string{
		"PITCREW_NODE": g.name, "PITCREW_CLUSTER": "c", "PITCREW_NATS": nats, "PITCREW_SELF": free(), "PITCREW_HEALTH": free(), "PITCREW_PROMETHEUS": free(),
		"PITCREW_OTLP": otlp, "PITCREW_LOG_LEVEL": "error", "PITCREW_OVERLAY": "", "PITCREW_RULE_FILES": "", "PITCREW_SPOOL": "",
		"PITCREW_CLASSES_FILE": filepath.Join(g.dir, "classes"), "PITCREW_JOBS_FILE": filepath.Join(g.dir, "jobs"),
	} {
		g.t.Setenv(k, v)
	}
	if err := collector.Prepare(collector.Gateway); err != nil {
		g.t.Fatal(err)
	}
	set, err := collector.Settings(collector.Gateway)
	if err != nil {
		g.t.Fatal(err)
	}
	set.DisableGracefulShutdown = true
	col, err := otelcol.NewCollector(set)
	if err != nil {
		g.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- col.Run(context.Background()) }()
	for col.GetState() != otelcol.StateRunning {
		select {
		case err := <-ended:
			g.t.Fatalf("gateway %s ended: %v", g.name, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	c, err := grpc.NewClient(otlp, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		g.t.Fatal(err)
	}
	g.to = pmetricotlp.NewGRPCClient(c)
	g.stop = sync.OnceFunc(func() {
		_ = c.Close()
		col.Shutdown()
		if err := <-ended; err != nil {
			g.t.Errorf("gateway %s: %v", g.name, err)
		}
	})
	g.t.Cleanup(g.stop)
}

// training is a job of four ranks, one a node, of which a router brings everything to one gateway.
type training struct {
	g    *running
	job  string
	step int64
	rng  *rand.Rand
	slow float64 // rank 2
}

// began is when the jobs did, by the nodes' clocks.
var began = time.Now().Add(-5 * time.Minute)

// steps makes so many, of a third of a second each by the nodes' clocks.
func (j *training) steps(n int) {
	j.g.t.Helper()
	for range n {
		j.step++
		md := pmetric.NewMetrics()
		for rank := range 4 {
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr("k8s.node.name", fmt.Sprint("n", rank))
			rm.Resource().Attributes().PutStr("pitcrew.job.uid", j.job)
			sm := rm.ScopeMetrics().AppendEmpty()
			c := 0.1 * math.Exp(0.01*j.rng.NormFloat64())
			if rank == 2 {
				c *= j.slow
			}
			for name, v := range map[string]float64{"pitcrew.train.step": float64(j.step), "pitcrew.train.step.duration": 0.3, "pitcrew.train.compute.duration": c} {
				m := sm.Metrics().AppendEmpty()
				m.SetName(name)
				p := m.SetEmptyGauge().DataPoints().AppendEmpty()
				p.SetTimestamp(pcommon.NewTimestampFromTime(began.Add(time.Duration(j.step) * 300 * time.Millisecond)))
				p.SetDoubleValue(v)
				p.Attributes().PutStr("k8s.pod.uid", fmt.Sprint(j.job, "-", rank))
				p.Attributes().PutInt("pitcrew.rank", int64(rank))
				p.Attributes().PutInt("pitcrew.world_size", 4)
			}
		}
		ctx, cancel := context.WithTimeout(j.g.t.Context(), 10*time.Second)
		_, err := j.g.to.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md), grpc.WaitForReady(true))
		cancel()
		if err != nil {
			j.g.t.Fatal(err)
		}
	}
}

// pages collects what the gateways say on the bus, as whoever pages people reads it.
func pages(d *desk) (heard func() []string) {
	var mu sync.Mutex
	var all []string
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.bus.Events(ctx, "pages", func(_ context.Context, x bus.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			w := x.Event.Data.Cause.Signal() + " " + x.Event.Data.Target.Job.UID
			if x.Event.Type == event.Recovery {
				w = "-" + w
			}
			all = append(all, w)
			return nil
		}, func(subject string, err error) { d.t.Errorf("%s: %v", subject, err) })
	}()
	d.t.Cleanup(func() { cancel(); <-done })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// listed are the findings as -o json has them.
func (d *desk) listed() (fs []finding) {
	d.t.Helper()
	var got struct{ Findings []finding }
	if err := json.Unmarshal([]byte(d.must("list", "-o", "json")), &got); err != nil {
		d.t.Fatal(err)
	}
	return got.Findings
}

// until waits for something to be so.
func (d *desk) until(what string, so func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("never: %s; the list is\n%s", what, d.must("list"))
		}
	}
}

func TestWhatIsSaidOfAGatewaysFindingReachesTheOneThatHasTheJobAndOutlivesIt(t *testing.T) {
	d := newDesk(t)
	heard := pages(d)
	gws := []*running{{t: t, name: "gw-0", dir: t.TempDir()}, {t: t, name: "gw-1", dir: t.TempDir()}}
	jobs := make([]*training, 2)
	for i, g := range gws {
		g.run(d.url)
		jobs[i] = &training{g: g, job: fmt.Sprint("job-", i), rng: rand.New(rand.NewPCG(1, 2)), slow: 1}
		jobs[i].steps(80)
		jobs[i].slow = 1.5
		jobs[i].steps(40)
	}
	keys := make([]string, 2)
	for i := range keys {
		keys[i] = fmt.Sprintf("rank/straggler job/job-%d/rank/2/attempt/0", i)
	}
	d.until("both are listed", func() bool {
		fs := d.listed()
		return len(fs) == 2 && fs[0].Key != fs[1].Key && slices.Contains(keys, fs[0].Key) && fs[0].Node == "n2" && fs[0].Lost > 0 && fs[0].Source == gateway
	})
	byKey := func(key string) *finding {
		fs := d.listed()
		if i := slices.IndexFunc(fs, func(f finding) bool { return f.Key == key }); i >= 0 {
			return &fs[i]
		}
		return nil
	}
	// Of one job: the gateway that has it answers, the other ignores it.
	if out := d.must("ack", keys[0], "--reason", "known"); !strings.HasSuffix(out, "done\n") {
		t.Errorf("ack:\n%s", out)
	}
	if f, o := byKey(keys[0]), byKey(keys[1]); len(f.Told) != 1 || !strings.HasSuffix(f.Told[0], ": known") || f.Gateway != "gw-0" || len(o.Told) != 0 || len(o.Said) != 0 {
		t.Errorf("acknowledged %+v, the other %+v", f, o)
	}
	d.must("mute", "rank/*", "--for", "1h")
	if f, o := byKey(keys[0]), byKey(keys[1]); !f.Muted || !o.Muted || len(f.Told) != 2 || len(o.Told) != 1 {
		t.Errorf("muted %+v, %+v", f, o)
	}
	// A new gateway goes on: nothing is said again, what was heard holds, and what is muted is not said.
	jobs[0].steps(20)
	gws[0].stop()
	gws[0].run(d.url)
	jobs[0].steps(20)
	d.until("the new gateway lists it", func() bool {
		f := byKey(keys[0])
		return f != nil && len(f.Told) == 2 && f.Muted
	})
	if got := heard(); len(got) != 2 {
		t.Errorf("paged %q", got)
	}
	if out := d.must("unmute", "rank/*"); !strings.HasSuffix(out, "done\n") {
		t.Errorf("unmute:\n%s", out)
	}
	// Accepted: over without a recovery, also for the gateway after it.
	d.must("accept", keys[0])
	if f := byKey(keys[0]); f != nil {
		t.Errorf("still listed: %+v", f)
	}
	gws[0].stop()
	gws[0].run(d.url)
	jobs[0].steps(60)
	if f := byKey(keys[0]); f != nil {
		t.Errorf("listed again: %+v", f)
	}
	jobs[1].slow = 1
	jobs[1].steps(60)
	d.until("the end is said", func() bool { return len(heard()) == 3 })
	if got := heard(); got[2] != "-rank/straggler job-1" {
		t.Errorf("paged %q", got)
	}
	// Nobody there: what is said is kept, and the command says so.
	jobs[1].slow = 1.6
	jobs[1].steps(60)
	d.until("it is slow again", func() bool { return byKey(keys[1]) != nil })
	gws[1].stop()
	if _, err := d.say("ack", keys[1], "--wait", "500ms"); err == nil || !strings.Contains(err.Error(), "gateway gw-1") {
		t.Errorf("without its gateway: %v", err)
	}
	gws[1].run(d.url)
	d.until("the new gateway has heard it", func() bool { f := byKey(keys[1]); return f != nil && len(f.Told) == 1 })
}
