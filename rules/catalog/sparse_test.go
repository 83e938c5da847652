package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
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
// (x unless present_over_time(x[15m] offset 15m)) or increase(x[15m]): a series that was not there in the 15 minutes before has counted from
// zero since. Looked at for a moment only, it would be missing where one scrape failed.
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
		call := path[len(path)-1].(*parser.Call)
		if call.Func.Name == "present_over_time" { // held to the rest of its form below
			return nil
		}
		uses = true
		x := m.VectorSelector.String()
		span := Duration(m.Range).String()
		want := fmt.Sprintf("(%[1]s unless present_over_time(%[1]s[%[2]s] offset %[2]s)) or increase(%[1]s[%[2]s])", x, span)
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

// A total is no first event because one scrape failed, or a few did.
func TestAFailedScrapeIsNoFirstEvent(t *testing.T) {
	for _, gap := range []string{"stale", "stale stale stale", "_x3"} {
		checked := 0
		for _, r := range shippedRecords(t) {
			if r.Test == nil || r.Test.First == nil {
				continue
			}
			checked++
			step := time.Duration(r.Test.Step)
			series := map[string]string{}
			for name := range r.Test.First.Series {
				series[name] = "50x200 " + gap + " 50x150"
			}
			s, err := store(step, series)
			if err != nil {
				t.Fatal(err)
			}
			c := r.condition()
			for _, at := range firing(t, alertingRule(t, &r, c, labels.EmptyLabels()), atOnce(t, s, c.expr, step), step, s.end, nil) {
				if at >= 190*step { // the series is new before
					t.Errorf("%s: fires at %s after a gap of %q", r.Alert, at, gap)
					break
				}
			}
		}
		if checked < 7 {
			t.Errorf("only %d alerts were checked", checked)
		}
	}
}

// The ring of the kernel log has turned over before the agent starts on nearly every node that was up for long.
func TestLinesLostBeforeAnAgentsFirstStartRaiseNoAlert(t *testing.T) {
	for _, r := range shippedRecords(t) {
		if r.Alert != "PitcrewKernelLinesLost" {
			continue
		}
		step, c := time.Duration(r.Test.Step), r.condition()
		for reason, want := range map[string]bool{"before_start": false, "overrun": true} {
			s, err := store(step, map[string]string{`pitcrew_kernel_lines_lost{instance="n7:8888",reason="` + reason + `"}`: "_x20 51234x60"})
			if err != nil {
				t.Fatal(err)
			}
			if fires := len(firing(t, alertingRule(t, &r, c, labels.EmptyLabels()), atOnce(t, s, c.expr, step), step, s.end, nil)) > 0; fires != want {
				t.Errorf("reason %s: fires %v", reason, fires)
			}
		}
		return
	}
	t.Error("there is no such alert")
}
