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
