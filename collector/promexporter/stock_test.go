package promexporter

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusexporter"

	"github.com/pitcrew/pitcrew/receivers/dcgmreceiver"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// running is an exporter that serves.
type running struct {
	exporter.Metrics
	url string
}

// serve starts one of the two exporters with the settings that both know.
func serve(t testing.TB, f exporter.Factory, set func(component.Config)) running {
	t.Helper()
	cfg, at := f.CreateDefaultConfig(), freeport.Loopback(t)
	switch c := cfg.(type) {
	case *Config:
		c.NetAddr.Endpoint = at
	case *prometheusexporter.Config:
		c.NetAddr.Endpoint = at
	}
	set(cfg)
	e, err := f.CreateMetrics(t.Context(), exportertest.NewNopSettings(f.Type()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return running{e, "http://" + at + "/metrics"}
}

// take gives the exporter a batch of its own: the stock exporter writes on what it is given.
func (r running) take(t testing.TB, md pmetric.Metrics) {
	t.Helper()
	own := pmetric.NewMetrics()
	md.CopyTo(own)
	if err := r.ConsumeMetrics(t.Context(), own); err != nil {
		t.Fatal(err)
	}
}

// scrape gives the page and its content type, as a scraper with these headers gets it.
func (r running) scrape(t testing.TB, header ...string) (string, http.Header) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	var a *http.Response
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if a, err = http.DefaultTransport.RoundTrip(q); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	defer a.Body.Close()
	body := io.Reader(a.Body)
	if a.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(a.Body); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw), a.Header
}

// sorted orders the lines of each family: the stock exporter orders series by their labels' values, this one by their text.
func sorted(page string) string {
	var out []string
	var lines []string
	flush := func() {
		if len(lines) > 0 && !strings.Contains(lines[0], "_bucket{") && !strings.Contains(strings.Join(lines, "\n"), "_sum") {
			slices.Sort(lines)
		}
		out, lines = append(out, lines...), nil
	}
	for l := range strings.Lines(page) {
		if strings.HasPrefix(l, "#") {
			flush()
			out = append(out, l)
		} else {
			lines = append(lines, l)
		}
	}
	flush()
	return strings.Join(out, "")
}

// everyKind is a batch with each type, unit, label and value that is written in a way of its own.
func everyKind(at time.Time) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for r, attrs := range []map[string]any{
		{"k8s.node.name": "n1", "k8s.cluster.name": "c"},
		{"service.name": "trainer", "service.namespace": "ml", "service.instance.id": "rank-0", "k8s.node.name": "n1"},
		{},
	} {
		rm := md.ResourceMetrics().AppendEmpty()
		if err := rm.Resource().Attributes().FromRaw(attrs); err != nil {
			panic(err)
		}
		sm := rm.ScopeMetrics().AppendEmpty()
		sm.Scope().SetName(fmt.Sprintf("scope-%d", r))
		sm.Scope().SetVersion("1.2")
		sm.Scope().Attributes().PutStr("team", "gpu")
		metric := func(name, unit, help string) pmetric.Metric {
			m := sm.Metrics().AppendEmpty()
			m.SetName(fmt.Sprintf("%s.r%d", name, r))
			m.SetUnit(unit)
			m.SetDescription(help)
			return m
		}
		stamp := pcommon.NewTimestampFromTime(at)
		for i, v := range []float64{0, 1, -1, math.Copysign(0, -1), 0.1, 1e21, 1e-9, 12345678, math.NaN(), math.Inf(1), math.Inf(-1)} {
			p := metric(fmt.Sprintf("some.gauge.v%d", i), "", "What\\it\nis \"here\"").SetEmptyGauge().DataPoints().AppendEmpty()
			p.SetDoubleValue(v)
			p.SetTimestamp(stamp)
			p.Attributes().PutStr("text", "a\\b\n\"c\"é")
			p.Attributes().PutInt("a.number", 7)
			p.Attributes().PutBool("yes-or-no", true)
		}
		for _, unit := range []string{"1", "s", "By", "Hz", "Cel", "W", "J", "{gpu}", "MBy/s", "By/s", "%"} {
			g := metric("of.unit."+strings.Trim(strings.ReplaceAll(unit, "/", "-"), "{}%"), unit, "Gauge of a unit").SetEmptyGauge().DataPoints()
			c := metric("count.of."+strings.Trim(strings.ReplaceAll(unit, "/", "-"), "{}%"), unit, "Counter of a unit").SetEmptySum()
			c.SetIsMonotonic(true)
			c.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			u := metric("level.of."+strings.Trim(strings.ReplaceAll(unit, "/", "-"), "{}%"), unit, "Sum that falls").SetEmptySum()
			u.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			for n := range 3 {
				for _, ps := range []pmetric.NumberDataPointSlice{g, c.DataPoints(), u.DataPoints()} {
					p := ps.AppendEmpty()
					p.SetIntValue(int64(n * 1000))
					p.SetTimestamp(stamp)
					p.SetStartTimestamp(stamp)
					p.Attributes().PutInt("n", int64(n))
				}
			}
		}
		unknown := metric("of.unknown.type", "", "As it was scraped")
		unknown.Metadata().PutStr("prometheus.type", "unknown")
		up := unknown.SetEmptyGauge().DataPoints().AppendEmpty()
		up.SetIntValue(3)
		up.SetTimestamp(stamp)
		h := metric("took", "s", "Histogram").SetEmptyHistogram()
		h.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		hp := h.DataPoints().AppendEmpty()
		hp.ExplicitBounds().FromRaw([]float64{0.1, 1, 10})
		hp.BucketCounts().FromRaw([]uint64{1, 2, 3, 4})
		hp.SetCount(10)
		hp.SetSum(42.5)
		hp.Attributes().PutStr("phase", "backward")
		sp := metric("quantiles", "s", "Summary").SetEmptySummary().DataPoints().AppendEmpty()
		sp.SetCount(4)
		sp.SetSum(8)
		for _, q := range []float64{0.5, 0.99, 1} {
			qv := sp.QuantileValues().AppendEmpty()
			qv.SetQuantile(q)
			qv.SetValue(q * 3)
		}
	}
	return md
}

// replayed are batches of the DCGM receiver, with a value of each field of each GPU.
func replayed(t testing.TB, gpus, batches int) []pmetric.Metrics {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.json")
	rec := map[string]any{}
	var devices, values []map[string]any
	for g := range gpus {
		devices = append(devices, map[string]any{"ID": g, "UUID": fmt.Sprintf("GPU-%d", g), "PCI": fmt.Sprintf("00000000:%02X:00.0", g), "Model": "NVIDIA H100 80GB HBM3", "Answer": true})
		for _, f := range dcgmreceiver.Fields {
			v := map[string]any{"gpu": g, "field": f.ID, "int": int(f.ID) + g}
			if f.Level == dcgmreceiver.LinkLevel {
				for link := range 4 {
					values = append(values, map[string]any{"gpu": g, "field": f.ID, "int": 1, "link": link})
				}
				continue
			}
			if f.Scale != 1 || f.ID > 1000 {
				delete(v, "int")
				v["float"] = float64(f.ID)/7 + float64(g)
			}
			values = append(values, v)
		}
	}
	rec["devices"], rec["values"] = devices, values
	raw, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	f, sink := dcgmreceiver.NewFactory(), &consumertest.MetricsSink{}
	cfg := f.CreateDefaultConfig().(*dcgmreceiver.Config)
	cfg.Mode, cfg.File, cfg.Node, cfg.Cluster = dcgmreceiver.ModeReplay, file, "n1", "c"
	cfg.Interval, cfg.DCGMNamesInterval = 100*time.Millisecond, 0
	r, err := f.CreateMetrics(t.Context(), receivertest.NewNopSettings(f.Type()), cfg, sink)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); len(sink.AllMetrics()) < batches; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d batches of %s", len(sink.AllMetrics()), file)
		}
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	return sink.AllMetrics()[:batches]
}

func TestThePageIsTheStockExportersByteForByte(t *testing.T) {
	now := time.Now()
	batches := map[string][]pmetric.Metrics{
		"every kind of value": {everyKind(now), everyKind(now.Add(time.Second))},
		"DCGM receiver":       replayed(t, 2, 3),
	}
	for name, options := range map[string]struct{ resource, service, scope, stamps, suffixes bool }{
		"as an agent's":       {resource: true, scope: false, suffixes: true},
		"as a gateway's":      {resource: true, scope: true, suffixes: true},
		"without resource":    {suffixes: true},
		"without the service": {resource: true, service: true, suffixes: true},
		"with timestamps":     {resource: true, stamps: true, suffixes: true},
		"without suffixes":    {resource: true},
	} {
		for what, all := range batches {
			t.Run(name+", "+what, func(t *testing.T) {
				old := serve(t, prometheusexporter.NewFactory(), func(c component.Config) {
					o := c.(*prometheusexporter.Config)
					o.ResourceToTelemetrySettings.Enabled, o.ResourceToTelemetrySettings.ExcludeServiceAttributes = options.resource, options.service
					o.WithoutScopeInfo, o.SendTimestamps = !options.scope, options.stamps
					o.TranslationStrategy = "UnderscoreEscapingWithoutSuffixes"
					if options.suffixes {
						o.TranslationStrategy = "UnderscoreEscapingWithSuffixes"
					}
				})
				own := serve(t, NewFactory(), func(c component.Config) {
					o := c.(*Config)
					o.ResourceToTelemetry = ResourceSettings{options.resource, options.service}
					o.WithoutScopeInfo, o.SendTimestamps, o.AddMetricSuffixes = !options.scope, options.stamps, options.suffixes
				})
				for i, md := range all {
					old.take(t, md)
					own.take(t, md)
					for _, header := range [][]string{{"Accept-Encoding", "identity"}, {"Accept-Encoding", "gzip"}} {
						want, wantHeader := old.scrape(t, header...)
						got, gotHeader := own.scrape(t, header...)
						if want, got := sorted(want), sorted(got); got != want {
							t.Fatalf("batch %d:\n%s", i, difference(want, got))
						}
						for _, h := range []string{"Content-Type", "Content-Encoding"} {
							if gotHeader.Get(h) != wantHeader.Get(h) {
								t.Errorf("%s is %q, the stock exporter's is %q", h, gotHeader.Get(h), wantHeader.Get(h))
							}
						}
					}
				}
			})
		}
	}
}

// difference shows the first lines that differ.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d of %d and %d:\nstock %s\nown   %s", i, len(w), len(g), w[i], g[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

func TestOpenMetricsIsTheStockExporters(t *testing.T) {
	old := serve(t, prometheusexporter.NewFactory(), func(c component.Config) {
		o := c.(*prometheusexporter.Config)
		o.EnableOpenMetrics, o.WithoutScopeInfo, o.ResourceToTelemetrySettings.Enabled = true, true, true
	})
	own := serve(t, NewFactory(), func(c component.Config) {
		o := c.(*Config)
		o.EnableOpenMetrics, o.WithoutScopeInfo, o.ResourceToTelemetry.Enabled = true, true, true
	})
	md := everyKind(time.Now())
	old.take(t, md)
	own.take(t, md)
	for _, accept := range []string{
		"application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=0.0.1,text/plain;q=0.5", "text/plain", "", "*/*",
		"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
	} {
		want, wantHeader := old.scrape(t, "Accept", accept)
		got, gotHeader := own.scrape(t, "Accept", accept)
		if want, got := sorted(want), sorted(got); got != want {
			t.Errorf("Accept %q: %s", accept, difference(want, got))
		}
		if gotHeader.Get("Content-Type") != wantHeader.Get("Content-Type") {
			t.Errorf("Accept %q: %q, the stock exporter's is %q", accept, gotHeader.Get("Content-Type"), wantHeader.Get("Content-Type"))
		}
	}
}

func TestAScraperOfProtobufGetsText(t *testing.T) {
	own := serve(t, NewFactory(), func(component.Config) {})
	own.take(t, everyKind(time.Now()))
	page, h := own.scrape(t, "Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,text/plain;q=0.3")
	if !strings.HasPrefix(h.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("Content-Type %q", h.Get("Content-Type"))
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(page)); err != nil {
		t.Error(err)
	}
}

// stalled connects a client that asks for the page and never reads it.
func stalled(t testing.TB, url string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for range 200 { // pipelined: more than the sockets' buffers hold
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
}
