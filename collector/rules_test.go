//go:build gateway

package collector

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/bus/bustest"
)

func TestAnAlertRuleOfTheGatewayIsAnEventOnTheBus(t *testing.T) {
	s := bustest.Server(t)
	surround(t, t.TempDir(), s.URL())
	t.Setenv("PITCREW_NODE", "gw-0")
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte("groups: [{name: g, interval: 1s, rules: [{alert: SlowSave, expr: pitcrew_train_checkpoint_duration_seconds > 60}]}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(RulesEnv, file)
	defer run(t, Gateway)()
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.node.name", "n2")
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("pitcrew.train.checkpoint.duration")
	m.SetUnit("s")
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(90)
	p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	dial(t, os.Getenv("PITCREW_OTLP")).send(md)

	got := firstEvent(t, s.URL())
	if d := got.Event.Data; got.Gateway != "gw-0" || d.Cause.Signal() != "rule/SlowSave" || d.Target.Node != "n2" || *d.Evidence.Value != 90 {
		t.Errorf("from gateway %q: %+v", got.Gateway, d)
	}
}
