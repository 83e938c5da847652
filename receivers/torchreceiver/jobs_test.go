package torchreceiver

import (
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/pitcrew/pitcrew/hook/hooktest"
)

func TestTheRanksOfEachJobAreAResourceOfTheirOwn(t *testing.T) {
	root := t.TempDir()
	metrics := start(t, componenttest.NewNopHost(), root, &logSink{}, nil)
	const other, alone = "0b9f5a1e-2222-4222-8333-444455556666", "0b9f5a1e-3333-4222-8333-444455556666"
	hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, podUID), WorldSize: 2, JobUID: "job-a", Role: "pp1/tp0"})
	hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, other), WorldSize: 2, JobUID: "job-b"})
	hooktest.Start(t, hooktest.Config{Dir: hooktest.Pod(t, root, alone), WorldSize: 1})
	want := map[string]string{podUID: "job-a", other: "job-b", alone: ""}
	for end := time.Now().Add(soon); len(want) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("nothing came of %v", want)
		}
		for _, md := range metrics.AllMetrics() {
			for _, rm := range md.ResourceMetrics().All() {
				job := ""
				if v, ok := rm.Resource().Attributes().Get("pitcrew.job.uid"); ok {
					job = v.Str()
				}
				eachPoint(rm, func(p pmetric.NumberDataPoint) {
					pod, _ := p.Attributes().Get("k8s.pod.uid")
					role, has := p.Attributes().Get("pitcrew.role")
					if w, waits := want[pod.Str()]; waits && w != job {
						t.Errorf("pod %s is in the resource of job %q", pod.Str(), job)
					}
					if has != (job == "job-a") || has && role.Str() != "pp1/tp0" {
						t.Errorf("role %q in job %q", role.AsString(), job)
					}
					delete(want, pod.Str())
				})
			}
		}
	}
}

func eachPoint(rm pmetric.ResourceMetrics, f func(pmetric.NumberDataPoint)) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			ps := pmetric.NewNumberDataPointSlice()
			if m.Type() == pmetric.MetricTypeGauge {
				ps = m.Gauge().DataPoints()
			}
			for _, p := range ps.All() {
				f(p)
			}
		}
	}
}
