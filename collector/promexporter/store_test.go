package promexporter

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// rig is an endpoint without a socket, on a clock of the test.
type rig struct {
	*endpoint
	t   *testing.T
	now time.Time
}

func newRig(t *testing.T, set func(*Config)) *rig {
	cfg := createDefaultConfig().(*Config)
	cfg.NetAddr.Endpoint, cfg.MetricExpiration, cfg.WithoutScopeInfo = "127.0.0.1:0", 30*time.Second, true
	if set != nil {
		set(cfg)
	}
	r := &rig{endpoint: newEndpoint(cfg, exportertest.NewNopSettings(Type)), t: t, now: time.Unix(1000, 0)}
	r.store.now = func() time.Time { return r.now }
	return r
}

// point is one value of a batch.
type point struct {
	metric string
	id     string
	v      float64
	ended  bool
	at     time.Time
	sum    pmetric.AggregationTemporality // 0: a gauge
	since  time.Time
}

func (r *rig) take(points ...point) {
	r.t.Helper()
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for _, x := range points {
		m := sm.Metrics().AppendEmpty()
		m.SetName(x.metric)
		m.SetDescription("help of " + x.metric)
		var ps pmetric.NumberDataPointSlice
		if x.sum != 0 {
			s := m.SetEmptySum()
			s.SetIsMonotonic(true)
			s.SetAggregationTemporality(x.sum)
			ps = s.DataPoints()
		} else {
			ps = m.SetEmptyGauge().DataPoints()
		}
		p := ps.AppendEmpty()
		p.Attributes().PutStr("id", x.id)
		p.SetDoubleValue(x.v)
		p.SetFlags(p.Flags().WithNoRecordedValue(x.ended))
		if x.at.IsZero() {
			x.at = r.now
		}
		p.SetTimestamp(pcommon.NewTimestampFromTime(x.at))
		if !x.since.IsZero() {
			p.SetStartTimestamp(pcommon.NewTimestampFromTime(x.since))
		}
	}
	md.MarkReadOnly() // the detector reads it as well
	if err := r.store.consume(r.t.Context(), md); err != nil {
		r.t.Fatal(err)
	}
}

// lines are the page without its comments.
func (r *rig) lines() (out []string) {
	for l := range strings.Lines(string(r.page(text))) {
		if !strings.HasPrefix(l, "#") {
			out = append(out, strings.TrimSpace(l))
		}
	}
	return out
}

func (r *rig) want(lines ...string) {
	r.t.Helper()
	if got := r.lines(); strings.Join(got, "\n") != strings.Join(lines, "\n") {
		r.t.Errorf("served\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

func TestASeriesWhoseSourceStoppedDisappears(t *testing.T) {
	r := newRig(t, nil)
	r.take(point{metric: "a", id: "1", v: 1}, point{metric: "a", id: "2", v: 2}, point{metric: "b", id: "1", v: 3})
	r.now = r.now.Add(20 * time.Second)
	r.take(point{metric: "a", id: "2", v: 2}) // the same value is a value
	r.now = r.now.Add(11 * time.Second)
	r.want(`a{id="2"} 2`)
	if page := string(r.page(text)); strings.Contains(page, "# HELP b") {
		t.Errorf("a family without series is named:\n%s", page)
	}
	r.now = r.now.Add(time.Minute)
	r.want()
	if n := len(r.store.series) + len(r.store.families) + len(r.store.order); n != 0 {
		t.Errorf("%d series and families are kept of what is over", n)
	}
	r.take(point{metric: "b", id: "1", v: 4})
	r.want(`b{id="1"} 4`)
}

func TestASeriesThatEndsIsGoneAtOnce(t *testing.T) {
	r := newRig(t, nil)
	r.take(point{metric: "a", id: "1", v: 1}, point{metric: "a", id: "2", v: 2})
	r.take(point{metric: "a", id: "1", ended: true}, point{metric: "a", id: "3", ended: true}, point{metric: "a", id: "2", v: 5})
	r.want(`a{id="2"} 5`)
	r.take(point{metric: "a", id: "1", v: 7})
	r.want(`a{id="1"} 7`, `a{id="2"} 5`)
}

func TestAnUnchangedPageIsPackedOnce(t *testing.T) {
	r := newRig(t, nil)
	r.take(point{metric: "a", id: "1", v: 1}, point{metric: "b", id: "1", v: 1})
	first := r.gzip(text)
	r.now = r.now.Add(10 * time.Second)
	r.take(point{metric: "a", id: "1", v: 1}, point{metric: "b", id: "1", v: 1})
	if second := r.gzip(text); &second[0] != &first[0] {
		t.Error("a page on which nothing changed was packed again")
	}
	b := r.store.families["b"]
	was := &b.encoded[text].text[0]
	version := b.encoded[text].version
	r.take(point{metric: "a", id: "1", v: 2}, point{metric: "b", id: "1", v: 1})
	if third := r.gzip(text); &third[0] == &first[0] {
		t.Error("a page that changed was served as it was")
	}
	if b.encoded[text].version != version || &b.encoded[text].text[0] != was {
		t.Error("a family in which nothing changed was encoded again")
	}
	r.want(`a{id="1"} 2`, `b{id="1"} 1`)
}

func TestALateValueIsNotServed(t *testing.T) {
	r := newRig(t, nil)
	r.take(point{metric: "a", id: "1", v: 1})
	r.take(point{metric: "a", id: "1", v: 2, at: r.now.Add(-time.Second)})
	r.want(`a{id="1"} 1`)
}

func TestADeltaIsServedAsWhatItAddsUpTo(t *testing.T) {
	r := newRig(t, nil)
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	for i, v := range []float64{3, 4, 5} {
		r.take(point{metric: "n", id: "1", v: v, sum: pmetric.AggregationTemporalityDelta, since: at(i), at: at(i + 1)})
	}
	r.want(`n_total{id="1"} 12`)
}

func TestOneNameIsOneType(t *testing.T) {
	r := newRig(t, nil)
	r.take(point{metric: "x_total", id: "gauge", v: 1})
	r.take(point{metric: "x", id: "counter", v: 2, sum: pmetric.AggregationTemporalityCumulative})
	r.want(`x_total{id="gauge"} 1`)
	r.now = r.now.Add(time.Minute) // the first is over, and the name is free
	r.want()
	r.take(point{metric: "x", id: "counter", v: 2, sum: pmetric.AggregationTemporalityCumulative})
	r.want(`x_total{id="counter"} 2`)
}

func TestFamiliesThatAreNotServedAreNotKept(t *testing.T) {
	for set, want := range map[string][]string{
		AllFamilies:     {`DCGM_FI_DEV_GPU_TEMP{id="1"} 40`, `pitcrew_gpu_status{id="1"} 1`},
		DCGMFamilies:    {`DCGM_FI_DEV_GPU_TEMP{id="1"} 40`},
		PitcrewFamilies: {`pitcrew_gpu_status{id="1"} 1`},
	} {
		r := newRig(t, func(c *Config) { c.Families = set })
		r.take(point{metric: "DCGM_FI_DEV_GPU_TEMP", id: "1", v: 40}, point{metric: "pitcrew.gpu.status", id: "1", v: 1})
		r.want(want...)
		if len(r.store.series) != len(want) {
			t.Errorf("%s: %d series are kept, %d served", set, len(r.store.series), len(want))
		}
	}
}

func TestTwoSourcesOfOneSeriesAreOneLine(t *testing.T) {
	r := newRig(t, nil)
	r.take(point{metric: "a.b", id: "1", v: 1}, point{metric: "a_b", id: "1", v: 2})
	r.want(`a_b{id="1"} 2`)
}

func TestABadSettingIsNamedWithItsRemedy(t *testing.T) {
	for want, set := range map[string]func(*Config){
		`families: unknown "dgcm": set all, dcgm, pitcrew`: func(c *Config) { c.Families = "dgcm" },
		"metric_expiration: must be positive, got 0s":      func(c *Config) { c.MetricExpiration = 0 },
		"endpoint: empty: set host:port":                   func(c *Config) { c.NetAddr.Endpoint = " " },
	} {
		cfg := createDefaultConfig().(*Config)
		cfg.NetAddr.Endpoint = "127.0.0.1:0"
		set(cfg)
		if err := cfg.Validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestScrapersAndSourcesDoNotWaitForAScraperThatDoesNotRead(t *testing.T) {
	own := serve(t, NewFactory(), func(c component.Config) { c.(*Config).WithoutScopeInfo = true })
	for range 4 { // clients that ask and read nothing
		stalled(t, own.url)
	}
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 50 {
				md := pmetric.NewMetrics()
				sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
				for k := range 200 {
					m := sm.Metrics().AppendEmpty()
					m.SetName(fmt.Sprintf("m%d", k))
					p := m.SetEmptyGauge().DataPoints().AppendEmpty()
					p.SetIntValue(int64(i))
					p.Attributes().PutStr("long", strings.Repeat("x", 2000))
					p.Attributes().PutInt("source", int64(n))
				}
				if err := own.ConsumeMetrics(context.Background(), md); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for i := range 10 {
				encoding := []string{"gzip", "identity"}[i%2]
				page, _ := own.scrape(t, "Accept-Encoding", encoding)
				if strings.Contains(page, "m0{") && !strings.HasSuffix(page, "\n") {
					t.Error("a page is cut")
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a scraper that does not read holds up the others")
	}
}
