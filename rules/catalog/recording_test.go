package catalog

import (
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/rules/ruletest"
)

func recordings(t testing.TB) []Recording {
	t.Helper()
	all, err := Recordings()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// evaluate gives the results of an expression over the test's series, by their labels. Labels that are empty are absent.
func (r *Recording) evaluate(t testing.TB, expr string) (map[string]float64, error) {
	t.Helper()
	s, err := store(time.Duration(r.Test.Step), r.Test.Series)
	if err != nil {
		t.Fatalf("%s: %v", r.Name, err)
	}
	v, err := s.Instant(expr, epoch.Add(time.Duration(r.Test.At)))
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, x := range v {
		out[labels.NewBuilder(x.Metric).Del(labels.MetricName).Labels().String()] = x.F
	}
	return out, nil
}

// wrong tells in what the results differ from what the test wants; empty if in nothing.
func (r *Recording) wrong(t testing.TB, got map[string]float64) string {
	t.Helper()
	var bad []string
	for text, want := range r.Test.Want {
		lset, err := ruletest.PromQL.ParseMetric(text)
		if err != nil {
			t.Fatalf("%s: want %s: %v", r.Name, text, err)
		}
		v, ok := got[lset.String()]
		if !ok || math.Abs(v-want) > 1e-6*math.Max(1, math.Abs(want)) {
			bad = append(bad, lset.String()+" is wrong")
		}
	}
	if len(got) != len(r.Test.Want) {
		bad = append(bad, "the number of results is wrong")
	}
	return strings.Join(bad, "; ")
}

func TestEachRecordingComputesWhatItsTestWants(t *testing.T) {
	all := recordings(t)
	if len(all) < 30 {
		t.Errorf("only %d recordings", len(all))
	}
	for _, r := range all {
		got, err := r.evaluate(t, r.Expr)
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
		} else if bad := r.wrong(t, got); bad != "" {
			t.Errorf("%s: %s: got %v, want %v", r.Name, bad, got, r.Test.Want)
		}
	}
}

// Swapped are aggregations that a slip of the hand confuses.
var swapped = map[parser.ItemType][]parser.ItemType{
	parser.SUM: {parser.MAX}, parser.AVG: {parser.SUM, parser.MAX}, parser.MAX: {parser.SUM, parser.MIN}, parser.MIN: {parser.MAX},
	parser.COUNT: {parser.GROUP},
}

func TestASwappedAggregationFailsItsTest(t *testing.T) {
	mutants := 0
	for _, r := range recordings(t) {
		expr, err := ruletest.PromQL.ParseExpr(r.Expr)
		if err != nil {
			t.Fatalf("%s: %v", r.Name, err)
		}
		outermost := true
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			a, ok := n.(*parser.AggregateExpr)
			if !ok || !outermost {
				return nil
			}
			outermost = false
			was := a.Op
			if was == parser.MAX && (strings.HasPrefix(r.Name, "rank:") || r.Name == "node:pitcrew_gpus_free:sum") {
				return nil // takes one of several copies of the same value
			}
			for _, a.Op = range swapped[was] {
				mutants++
				if got, err := r.evaluate(t, expr.String()); err == nil && r.wrong(t, got) == "" {
					t.Errorf("%s: %s in place of %s is not noticed", r.Name, a.Op, was)
				}
			}
			a.Op = was
			return nil
		})
	}
	if mutants < 30 {
		t.Errorf("only %d mutants", mutants)
	}
}

func TestARecordingAsksForKnownMetricsOverRangesOfFourScrapes(t *testing.T) {
	const scrape = 30 * time.Second // dcgm-exporter's, the slowest
	known := knownMetrics(t)
	ours := map[string]bool{}
	for _, r := range recordings(t) {
		ours[r.Name] = true
	}
	for _, r := range recordings(t) {
		for _, name := range asked(t, r.Expr) {
			if known[name] == nil && !ours[name] {
				t.Errorf("%s: %s is neither in metrics.tsv nor recorded", r.Name, name)
			}
		}
		expr, err := ruletest.PromQL.ParseExpr(r.Expr)
		if err != nil {
			t.Fatalf("%s: %v", r.Name, err)
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if m, ok := n.(*parser.MatrixSelector); ok && m.Range < 4*scrape {
				t.Errorf("%s: a range of %s is less than four scrapes", r.Name, m.Range)
			}
			return nil
		})
	}
}

func TestAWrongRecordingIsRefusedByName(t *testing.T) {
	const good = "interval: 1m\nrecords:\n- record: a:b:c\n  expr: up\n  about: x\n  test: {series: {'up{}': '1x9'}, want: {'{}': 1}}\n"
	for name, c := range map[string]struct{ text, want string }{
		"unknown field": {strings.Replace(good, "about", "abuot", 1), "abuot"},
		"no test":       {good[:strings.Index(good, "  test")], "a:b:c: a recording needs a test"},
		"no interval":   {strings.Replace(good, "interval: 1m\n", "", 1), "interval must be positive"},
		"bad name":      {strings.Replace(good, "a:b:c", "abc", 1), `got "abc"`},
		"twice":         {good + strings.SplitN(good, "records:\n", 2)[1], "a:b:c is also in"},
	} {
		_, err := LoadRecordings(fstest.MapFS{"recordings/x.yaml": {Data: []byte(c.text)}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := LoadRecordings(fstest.MapFS{"recordings/x.yaml": {Data: []byte(good)}}); err != nil {
		t.Error(err)
	}
}

func TestThePageOfDashboardsListsTheRecordings(t *testing.T) {
	const page, begin, end = "../../docs/dashboards.md", "<!-- recordings -->\n", "<!-- end of recordings -->\n"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(raw), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s: the marks of the table are gone", page)
	}
	want := head + begin + RecordingTable(recordings(t)) + end + tail
	if want == string(raw) {
		return
	}
	if !*update {
		t.Errorf("%s has drifted from the recordings; run make golden", page)
	} else if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
