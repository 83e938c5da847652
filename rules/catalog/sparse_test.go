package catalog

import (
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/rules/ruletest"
)

// A vector of counters has no series until its first event, and increase() of that series does not count it.
func TestTheTableMarksEachCounterOfOursThatAppearsWithItsFirstEvent(t *testing.T) {
	emitted, checked := emittedMetrics(t), 0
	vectors := map[string]bool{}
	for _, m := range regexp.MustCompile(`New(?:Counter|Histogram)Vec\(prometheus\.\w+Opts\{Name: "(\w+)"`).FindAllStringSubmatch(sources(t, "remediator"), -1) {
		for _, suffix := range []string{"", "_count", "_sum", "_bucket"} {
			vectors[m[1]+suffix] = true
		}
	}
	vectors["pitcrew_events_noted_total"] = true      // noted.Collect exports the reasons that occurred
	delete(vectors, "pitcrew_incidents_closed_total") // newMetrics creates each outcome at 0; its own test checks that
	for name, rows := range knownMetrics(t) {
		for _, row := range rows {
			want := vectors[name]
			switch row.Exporter {
			case "collector":
				want = emitted[name].Sparse
			case "remediator":
			default:
				continue
			}
			checked++
			if row.Sparse != want {
				t.Errorf("metrics.tsv: %s: sparse is %v, want %v", name, row.Sparse, want)
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d metrics were checked", checked)
	}
}

// missesFirst gives the calls in an expression that miss the first event of a sparse counter. The right form is
// (x unless x offset 15m) or increase(x[15m]): a series that was not there 15 minutes ago has counted from zero since.
func missesFirst(t *testing.T, text string, sparse map[string]bool) (uses bool, bad []string) {
	t.Helper()
	expr, err := ruletest.PromQL.ParseExpr(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		m, ok := n.(*parser.MatrixSelector)
		if !ok || !sparse[m.VectorSelector.(*parser.VectorSelector).Name] {
			return nil
		}
		uses = true
		x := m.VectorSelector.String()
		call := path[len(path)-1].(*parser.Call)
		span := Duration(m.Range).String()
		want := "(" + x + " unless " + x + " offset " + span + ") or increase(" + x + "[" + span + "])"
		ok = slices.ContainsFunc(path, func(n parser.Node) bool {
			b, or := n.(*parser.BinaryExpr)
			return or && b.Op == parser.LOR && b.String() == want
		})
		if !ok {
			bad = append(bad, call.String()+": write "+want)
		}
		return nil
	})
	return uses, bad
}

func TestNoAlertOrRecordingMissesTheFirstEventOfANewSeries(t *testing.T) {
	sparse := map[string]bool{}
	for name, rows := range knownMetrics(t) {
		for _, row := range rows {
			sparse[name] = sparse[name] || row.Sparse
		}
	}
	alerts := 0
	for _, r := range shippedRecords(t) {
		uses, bad := missesFirst(t, r.Expr, sparse)
		for _, b := range bad {
			t.Errorf("%s:%d: %s: %s", r.File, r.Line, r.Alert, b)
		}
		if !uses {
			continue
		}
		alerts++
		if r.Test != nil && r.Test.First == nil {
			t.Errorf("%s:%d: %s: its test needs first: series that appear with the first event", r.File, r.Line, r.Alert)
		}
		if r.Gateway != "" { // its window is empty after a restart: each total would look like a first event, and a policy may act on it
			t.Errorf("%s:%d: %s: a gateway cannot tell a new series from one before its restart", r.File, r.Line, r.Alert)
		}
	}
	if alerts < 7 {
		t.Errorf("only %d alerts count sparse counters", alerts)
	}
	for _, r := range recordings(t) {
		if _, bad := missesFirst(t, r.Expr, sparse); len(bad) > 0 {
			t.Errorf("%s: %v", r.Name, bad)
		}
	}
}
