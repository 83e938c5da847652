package e2e

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/sandbox"
)

// What AMD's exporter says of an accelerator reaches the node's agent as a Prometheus receiver hands it on. The exporter names the pod; the
// kubelet's device ids say nothing of this accelerator.
func TestAnAcceleratorThatItsMakersExporterCallsUnhealthyHealsItsJob(t *testing.T) {
	r := newRig(t)
	j := r.training(sandbox.LauncherPitcrew)
	b := r.before(j)
	pod := b.pods["1"]
	n, err := r.Box().Node(pod.Spec.NodeName)
	r.must(err)
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.Dir(), "run", "otlp.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	r.must(err)
	defer conn.Close()
	const serial = "692351000002"
	says := func(health float64) {
		t.Helper()
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("gpu_health")
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
		p.SetDoubleValue(health)
		for k, v := range map[string]string{"gpu_id": "3", "serial_number": serial, "namespace": pod.Namespace, "pod": pod.Name, "container": "main"} {
			p.Attributes().PutStr(k, v)
		}
		_, err := pmetricotlp.NewGRPCClient(conn).Export(r.ctx, pmetricotlp.NewExportRequestFromMetrics(md))
		r.must(err)
	}
	defer func() { // whoever comes next may use the node, and be given this one's place
		says(1)
		r.awaitCleared(n.Name, "gpu/unhealthy gpu/AMD-"+serial)
	}()
	says(1)
	says(0)
	i := r.follow(j, sandbox.Injected{Node: n.Name, At: b.at})
	r.healed(j, b, i)
	r.lostNothing(i)
	if f := i.Faults[0]; f.Signal != "gpu/unhealthy" || f.GPU != "AMD-"+serial || f.Event.Data.Target.Pod != pod.Name || i.Plan.Rule != "gpu-counters" {
		t.Errorf("rule %s for %s of %s on %+v", i.Plan.Rule, f.Signal, f.GPU, f.Event.Data.Target)
	}
}

// awaitCleared waits until a node's agent says that a condition holds no longer.
func (r *rig) awaitCleared(node, key string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 15*time.Second)
	defer cancel()
	cleared := false
	err := r.Bus().Conditions(ctx, nil, func(c bus.Condition) {
		if c.Node == node && c.Key == key {
			if cleared = !c.Active; cleared {
				cancel()
			}
		}
	})
	r.must(err)
	if !cleared {
		r.Errorf("%s still holds on %s", key, node)
	}
}
