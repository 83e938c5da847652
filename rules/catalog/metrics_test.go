package catalog

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/rules/metrics"
	"github.com/pitcrew/pitcrew/rules/ruletest"
)

const root = "../.."

func knownMetrics(t *testing.T) map[string][]metrics.Known {
	t.Helper()
	table, err := metrics.Table(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, rows := range table {
		for _, row := range rows {
			if exporters[row.Exporter] == "" {
				t.Fatalf("metrics.tsv: %s: unknown exporter %q", name, row.Exporter)
			}
		}
	}
	return table
}

func emittedMetrics(t *testing.T) map[string]metrics.Emitted {
	t.Helper()
	out, err := metrics.Components(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// An alert on invented labels passes its own test and fails on a cluster: it merges pods, or its text has holes.
func TestTheSeriesOfTestsHaveTheLabelsThatComponentsEmit(t *testing.T) {
	receivers, checked := emittedMetrics(t), 0
	ofScrape := []string{"cluster", "instance", "job", "node", "namespace", "pod", "container", "endpoint"}
	for _, r := range tested(t) {
		for _, series := range r.Test.Timelines() {
			for selector := range series.Series {
				at, err := ruletest.PromQL.ParseMetric(selector)
				if err != nil {
					t.Fatal(err)
				}
				m, ours := receivers[at.Get(labels.MetricName)]
				if !ours {
					continue
				}
				checked++
				at.Range(func(l labels.Label) {
					if l.Name != labels.MetricName && !slices.Contains(m.Labels, l.Name) && !slices.Contains(ofScrape, l.Name) {
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
	receivers := emittedMetrics(t)
	ofHistogram := regexp.MustCompile(`_(bucket|sum|count)$`)
	remediator, collector := sources(t, "remediator"), sources(t, "collector", "receivers")
	ours := 0
	for name, rows := range knownMetrics(t) {
		for _, row := range rows {
			switch row.Exporter {
			case "agent", "dcgm":
				ours++
				if receivers[name].Exporter != row.Exporter {
					t.Errorf("metrics.tsv: no receiver emits %s as %s", name, row.Exporter)
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
	e, err := ruletest.PromQL.ParseExpr(expr)
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
			if !slices.ContainsFunc(table[name], func(k metrics.Known) bool { return k.Exporter == exporter }) {
				t.Errorf("%s:%d: %s: metrics.tsv does not know %s of %s", r.File, r.Line, r.Alert, name, exporter)
			}
		}
		if r.Test == nil {
			continue
		}
		for _, series := range r.Test.Timelines() {
			for name := range series.Series {
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
