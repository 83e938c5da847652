package collector

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
)

// sender sends OTLP metrics as an agent does.
type sender struct {
	pmetricotlp.GRPCClient
	t *testing.T
}

func dial(t *testing.T, addr string) sender {
	t.Helper()
	c, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return sender{pmetricotlp.NewGRPCClient(c), t}
}

func (s sender) send(md pmetric.Metrics) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md), grpc.WaitForReady(true)); err != nil {
		s.t.Fatal(err)
	}
}

// steps are the points of steps first to last of one rank of a job of four, one rank a node.
func steps(job string, rank int, first, last int64, compute func() float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.node.name", fmt.Sprint("n", rank))
	rm.Resource().Attributes().PutStr("pitcrew.job.uid", job)
	sm := rm.ScopeMetrics().AppendEmpty()
	for step := first; step <= last; step++ {
		c := compute()
		for name, v := range map[string]float64{
			"pitcrew.train.step": float64(step), "pitcrew.train.step.duration": 0.3, "pitcrew.train.compute.duration": c, "pitcrew.train.communication.wait": 0.3 - c,
		} {
			m := sm.Metrics().AppendEmpty()
			m.SetName(name)
			p := m.SetEmptyGauge().DataPoints().AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(time.Unix(1_800_000_000, 0).Add(time.Duration(step) * 300 * time.Millisecond)))
			p.SetDoubleValue(v)
			if err := p.Attributes().FromRaw(map[string]any{"k8s.pod.uid": job + fmt.Sprint("-", rank), "pitcrew.rank": rank, "pitcrew.world_size": 4}); err != nil {
				panic(err)
			}
		}
	}
	return md
}

// firstEvent waits for the first event on the bus.
func firstEvent(t *testing.T, url string) (got *bus.Delivery) {
	t.Helper()
	b := bustest.Connect(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := b.Events(ctx, "test", func(_ context.Context, d bus.Delivery) error {
		got = &d
		cancel()
		return nil
	}, func(subject string, err error) { t.Errorf("%s: %v", subject, err) })
	if err != nil || got == nil {
		t.Fatalf("no event: %v", err)
	}
	return got
}

func TestAGatewayNamesTheRankThatFellBehindOnTheBus(t *testing.T) {
	s := bustest.Server(t)
	surround(t, t.TempDir(), s.URL())
	t.Setenv("PITCREW_NODE", "gw-0")
	defer run(t, Gateway)()
	to, rng := dial(t, os.Getenv("PITCREW_OTLP")), rand.New(rand.NewPCG(1, 2))
	for step := int64(1); step <= 120; step += 10 {
		for rank := range 4 {
			to.send(steps("job-1", rank, step, step+9, func() float64 {
				c := 0.1 * math.Exp(0.01*rng.NormFloat64())
				if rank == 2 && step > 80 {
					c *= 1.5
				}
				return c
			}))
		}
	}
	got := firstEvent(t, s.URL())
	d := got.Event.Data
	if got.Gateway != "gw-0" || d.Cause.Signal() != "rank/straggler" || *d.Target.Rank != 2 || d.Target.Node != "n2" || d.Target.Job.UID != "job-1" {
		t.Errorf("from gateway %q: %+v", got.Gateway, d)
	}
}

func TestAnAgentSendsItsRanksStepsToAGatewayOnlyWhereOneIsNamed(t *testing.T) {
	surround(t, t.TempDir(), "nats://127.0.0.1:1")
	for gateway, want := range map[string]int{"": 1, "127.0.0.1:1": 2} {
		t.Setenv(GatewayEnv, gateway)
		set, err := Settings(Agent)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(set.ConfigProviderSettings.ResolverSettings.URIs); n != want {
			t.Errorf("gateway %q: %d configurations, want %d", gateway, n, want)
		}
		run(t, Agent)() // a gateway that is away keeps no agent from starting or ending
	}
}

func TestAsNodesBuildARouterAndRulesSayHowToGetThem(t *testing.T) {
	if len(onDemand().exporters) > 0 {
		t.Skip("this build has them")
	}
	surround(t, t.TempDir(), "nats://127.0.0.1:1")
	for mode, rules := range map[string]string{"router": "", "router validate": "", "gateway": "/etc/pitcrew/rules.yaml", "gateway validate": "/etc/pitcrew/rules.yaml"} {
		t.Setenv(RulesEnv, rules)
		c, err := Command("test")
		if err != nil {
			t.Fatal(err)
		}
		c.SetArgs(strings.Fields(mode))
		c.SilenceErrors = true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "make gateway") {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestAsNodesBuildWithoutTheReceiverSaysHowToScrape(t *testing.T) {
	if len(scrapers()) > 0 {
		t.Skip("this build has it")
	}
	surround(t, t.TempDir(), "nats://127.0.0.1:1")
	t.Setenv(ScrapeEnv, "[127.0.0.1:8082]")
	for _, args := range []string{"agent", "agent validate", "validate"} {
		c, err := Command("test")
		if err != nil {
			t.Fatal(err)
		}
		c.SetArgs(strings.Fields(args))
		c.SilenceErrors = true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "make accelerators") {
			t.Errorf("%s: %v", args, err)
		}
	}
}
