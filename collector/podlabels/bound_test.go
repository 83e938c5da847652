package podlabels

import (
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
)

// told is a batch of n series of ranks from the number first on, as whoever reaches the agent's socket may tell.
func told(first, n int, histograms bool) pmetric.Metrics {
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("told")
	for i := range n {
		if histograms {
			if m.Type() == pmetric.MetricTypeEmpty {
				m.SetEmptyHistogram()
			}
			m.Histogram().DataPoints().AppendEmpty().Attributes().PutStr("rank", fmt.Sprint(first+i))
			continue
		}
		if m.Type() == pmetric.MetricTypeEmpty {
			m.SetEmptyGauge()
		}
		m.Gauge().DataPoints().AppendEmpty().Attributes().PutStr("rank", fmt.Sprint(first+i))
	}
	return md
}

// passed counts the points that go out.
func (r *rig) passed(t *testing.T, md pmetric.Metrics) (n int) {
	t.Helper()
	r.sink.Reset()
	if err := r.ConsumeMetrics(t.Context(), md); err != nil {
		t.Fatal(err)
	}
	for _, out := range r.sink.AllMetrics() {
		n += out.DataPointCount()
	}
	return n
}

func TestTenThousandRanksWorthOfLabelsAreTakenAndNoMore(t *testing.T) {
	for _, histograms := range []bool{false, true} {
		r := newRig(t, "a")
		r.interval = 10 * time.Second
		n := 0
		for first := 0; first < 3*maxOthers; first += 1000 {
			n += r.passed(t, told(first, 1000, histograms))
		}
		if n != maxOthers {
			t.Errorf("histograms %v: %d series passed, want %d", histograms, n, maxOthers)
		}
		if r.passed(t, batch()) < 2 {
			t.Error("they crowd out the GPUs' series")
		}
		r.after(11 * time.Second)
		if n := r.passed(t, told(0, 1000, histograms)); n != 1000 {
			t.Errorf("histograms %v: of a thousand series that had passed %d pass again", histograms, n)
		}
		r.after(otherFor + time.Second)
		if n := r.passed(t, told(10*maxOthers, 1000, histograms)); n != 1000 {
			t.Errorf("histograms %v: once the others had ended %d of a thousand new series pass", histograms, n)
		}
	}
}

// A GPU's name can be made up as well.
func TestSeriesOfMadeUpGPUsAreBounded(t *testing.T) {
	r := newRig(t, "a")
	r.interval = 10 * time.Second
	n := 0
	for first := range 2 * maxSeries / 1000 {
		md := pmetric.NewMetrics()
		m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("hw.power")
		ps := m.SetEmptyGauge().DataPoints()
		for i := range 1000 {
			ps.AppendEmpty().Attributes().PutStr("hw.id", fmt.Sprint("GPU-", 1000*first+i))
		}
		n += r.passed(t, md)
	}
	if n > maxSeries {
		t.Errorf("%d series passed, at most %d should", n, maxSeries)
	}
}

// So can the GPU that a rank says it uses.
func TestRanksOfMadeUpGPUsAreBounded(t *testing.T) {
	r := newRig(t, "a")
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(rankMetric)
	ps := m.SetEmptyGauge().DataPoints()
	for i := range maxSeries + 100 {
		a := ps.AppendEmpty().Attributes()
		a.PutStr("hw.id", fmt.Sprint("GPU-", i))
		a.PutInt("pitcrew.rank", int64(i))
		a.PutStr("k8s.pod.uid", "u")
	}
	r.passed(t, md)
	if len(r.ranks) != maxSeries {
		t.Errorf("%d GPUs' ranks are remembered, want %d", len(r.ranks), maxSeries)
	}
	ps.At(0).Attributes().PutInt("pitcrew.rank", 7)
	if r.passed(t, md); r.ranks["GPU-0"].number != 7 {
		t.Errorf("a GPU that is known has rank %d still", r.ranks["GPU-0"].number)
	}
}
