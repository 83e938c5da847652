package catalog

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/common/model"
	"github.com/prometheus/otlptranslator"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// known is a row of metrics.tsv.
type known struct{ exporter, source string }

// knownMetrics reads rules/metrics.tsv: name, exporter, and where that exporter documents it.
func knownMetrics(t *testing.T) map[string][]known {
	t.Helper()
	raw, err := os.ReadFile("../metrics.tsv")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]known{}
	for i, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		f := strings.Split(line, "\t")
		if strings.HasPrefix(line, "#") || i == 0 {
			continue
		}
		if len(f) != 3 || f[0] == "" || f[2] == "" {
			t.Fatalf("metrics.tsv:%d: name, exporter and source are required: %q", i+1, line)
		}
		if exporters[f[1]] == "" {
			t.Fatalf("metrics.tsv:%d: unknown exporter %q", i+1, f[1])
		}
		out[f[0]] = append(out[f[0]], known{f[1], f[2]})
	}
	return out
}

// emitted is a metric as Prometheus sees it.
type emitted struct {
	exporter string
	labels   []string // that its series can have, without those of the scrape; nil: not known
}

// receiverMetrics gives what the components' metadata lists, by Prometheus' name.
func receiverMetrics(t *testing.T) map[string]emitted {
	t.Helper()
	lists, err := filepath.Glob("../../[rc]*/*/metadata.yaml") // of receivers and of the collector's processors
	if err != nil || len(lists) < 8 {
		t.Fatalf("components' lists: %v, %v", lists, err)
	}
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	spelled := func(names ...string) (out []string) {
		for _, n := range names {
			out = append(out, strings.ReplaceAll(n, ".", "_"))
		}
		return out
	}
	out := map[string]emitted{}
	for _, list := range lists {
		raw, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Resource map[string]any `yaml:"resource_attributes"`
			Metrics  map[string]struct {
				Unit       string
				Sum        *struct{ Monotonic bool }
				Attributes []string
				DCGM       []struct{ Prometheus string }
			}
		}
		if err := yaml.UnmarshalWithOptions(raw, &file, yaml.AllowDuplicateMapKey()); err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		for name, m := range file.Metrics {
			kind := otlptranslator.MetricType(otlptranslator.MetricTypeGauge)
			if m.Sum != nil {
				kind = otlptranslator.MetricTypeNonMonotonicCounter
				if m.Sum.Monotonic {
					kind = otlptranslator.MetricTypeMonotonicCounter
				}
			}
			made, err := namer.Build(otlptranslator.Metric{Name: name, Unit: m.Unit, Type: kind})
			if err != nil {
				t.Fatalf("%s: %s: %v", list, name, err)
			}
			labels := append(spelled(m.Attributes...), "k8s_node_name")
			labels = append(labels, spelled(slices.Collect(maps.Keys(file.Resource))...)...)
			if slices.Contains(m.Attributes, "hw.id") && !slices.Contains(m.Attributes, "k8s.pod.uid") { // named by collector/podlabels
				labels = append(labels, spelled("k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "pitcrew.job.name", "pitcrew.rank")...)
			}
			out[made] = emitted{"agent", labels}
			for _, f := range m.DCGM {
				out[f.Prometheus] = emitted{exporter: "dcgm"}
			}
		}
	}
	return out
}

// An alert on invented labels passes its own test and fails on a cluster: it merges pods, or its text has holes.
func TestTheSeriesOfTestsHaveTheLabelsThatComponentsEmit(t *testing.T) {
	receivers, checked := receiverMetrics(t), 0
	ofScrape := []string{"cluster", "instance", "job", "node", "namespace", "pod", "container", "endpoint"}
	for _, r := range shippedRecords(t) {
		for _, series := range []map[string]string{r.Test.Fires, r.Test.Below} {
			for selector := range series {
				at, err := promQL.ParseMetric(selector)
				if err != nil {
					t.Fatal(err)
				}
				m, ours := receivers[at.Get(labels.MetricName)]
				if !ours || m.labels == nil {
					continue
				}
				checked++
				at.Range(func(l labels.Label) {
					if l.Name != labels.MetricName && !slices.Contains(m.labels, l.Name) && !slices.Contains(ofScrape, l.Name) {
						t.Errorf("%s %s: %s has no label %s", r.ID, r.Alert, at.Get(labels.MetricName), l.Name)
					}
				})
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d series were checked", checked)
	}
}

// sources is all Go code and all metadata of some folders, as one text.
func sources(t *testing.T, folders ...string) string {
	t.Helper()
	var b strings.Builder
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(path string, _ os.DirEntry, err error) error {
			if err != nil || strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "metadata.yaml") {
				return err
			}
			raw, err := os.ReadFile(path)
			b.Write(raw)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestEachKnownMetricOfOursIsEmitted(t *testing.T) {
	receivers := receiverMetrics(t)
	ofHistogram := regexp.MustCompile(`_(bucket|sum|count)$`)
	remediator, collector := sources(t, "remediator"), sources(t, "collector", "receivers")
	ours := 0
	for name, rows := range knownMetrics(t) {
		for _, row := range rows {
			switch row.exporter {
			case "agent", "dcgm":
				ours++
				if receivers[name].exporter != row.exporter {
					t.Errorf("metrics.tsv: no receiver emits %s as %s", name, row.exporter)
				}
			case "remediator":
				ours++
				base := ofHistogram.ReplaceAllString(name, "")
				if !strings.Contains(remediator, `"`+base+`"`) {
					t.Errorf("metrics.tsv: the remediator has no metric %s", base)
				}
			case "collector":
				if strings.HasPrefix(name, "otelcol_") {
					continue // the framework's own
				}
				ours++
				dotted := regexp.MustCompile(`(?m)["\s]` + strings.ReplaceAll(ofHistogram.ReplaceAllString(name, ""), "_", `[._]`) + `[":]`)
				if !dotted.MatchString(collector) {
					t.Errorf("metrics.tsv: no component of the collector has an instrument %s", name)
				}
			}
		}
	}
	if ours < 50 {
		t.Errorf("only %d metrics of ours are known", ours)
	}
}

// asked are the metrics that an expression selects.
func asked(t *testing.T, expr string) (names []string) {
	t.Helper()
	e, err := promQL.ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			name := v.Name
			for _, m := range v.LabelMatchers {
				if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
					name = m.Value
				}
			}
			if name == "" {
				t.Errorf("%s: a selector without a metric's name", expr)
			}
			names = append(names, name)
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names)
}

func TestEachAlertAsksForMetricsThatTheNamedExporterEmits(t *testing.T) {
	table := knownMetrics(t)
	used := map[string]bool{}
	for _, r := range shippedRecords(t) {
		names := asked(t, r.Expr)
		if listed := slices.Sorted(maps.Keys(r.Metrics)); !slices.Equal(names, listed) {
			t.Errorf("%s:%d: %s asks for %v and lists %v", r.File, r.Line, r.Alert, names, listed)
		}
		for name, exporter := range r.Metrics {
			used[name] = true
			if !slices.ContainsFunc(table[name], func(k known) bool { return k.exporter == exporter }) {
				t.Errorf("%s:%d: %s: metrics.tsv does not know %s of %s", r.File, r.Line, r.Alert, name, exporter)
			}
		}
		if r.Test == nil {
			continue
		}
		for _, series := range []map[string]string{r.Test.Fires, r.Test.Below} {
			for name := range series {
				metric, _, _ := strings.Cut(name, "{")
				if r.Metrics[metric] == "" {
					t.Errorf("%s:%d: %s: the test has series of %s, for which the alert does not ask", r.File, r.Line, r.Alert, metric)
				}
			}
		}
	}
	for _, r := range recordings(t) {
		for _, name := range asked(t, r.Expr) {
			used[name] = true
		}
	}
	boards := boardText(t)
	for name := range table {
		if !used[name] && !regexp.MustCompile(`\b`+name+`\b`).MatchString(boards) {
			t.Errorf("metrics.tsv: no alert, recording or board asks for %s; remove the row", name)
		}
	}
}

// boardText is the JSON of all dashboards. dashboards/ is above this package, so that only its files are read here.
func boardText(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../../dashboards/boards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("boards: %v, %v", files, err)
	}
	var b strings.Builder
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(raw)
	}
	return b.String()
}
