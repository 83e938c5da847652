package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/rules/ruletest"
)

// mutant is a condition that differs from a record's in one place.
type mutant struct {
	condition
	what string
}

// neighbors of an operator: what a slip of the hand would write.
var neighbors = map[parser.ItemType][]parser.ItemType{
	parser.GTR: {parser.GTE, parser.LSS}, parser.GTE: {parser.GTR, parser.LSS},
	parser.LSS: {parser.LTE, parser.GTR}, parser.LTE: {parser.LSS, parser.GTR},
	parser.EQLC: {parser.NEQ, parser.GTR}, parser.NEQ: {parser.EQLC},
	parser.LAND: {parser.LUNLESS}, parser.LUNLESS: {parser.LAND},
}

// moved gives other values for a number: small whole ones move by one, others by a tenth.
func moved(v float64) []float64 {
	switch {
	case v == 0:
		return []float64{2, -1}
	case v == float64(int(v)) && v < 20:
		return []float64{v + 1, v - 1}
	}
	return []float64{v * 1.1, v * 0.9}
}

// mutants of a record: each number, range, offset and operator of its expression, for and keep_firing_for.
func (r *Record) mutants(t testing.TB) (out []mutant) {
	t.Helper()
	c := r.condition()
	expr, err := ruletest.PromQL.ParseExpr(c.expr)
	if err != nil {
		t.Fatalf("%s:%d: %s: %v", r.File, r.Line, r.Alert, err)
	}
	in := func(what string) { out = append(out, mutant{condition{expr.String(), c.hold, c.keep}, what}) }
	spans := func(name string, d *time.Duration) {
		if was := *d; was != 0 {
			for _, *d = range []time.Duration{was * 2, was / 2} {
				in(fmt.Sprintf("%s %s → %s", name, Duration(was), Duration(*d)))
			}
			*d = was
		}
	}
	parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
		switch n := n.(type) {
		case *parser.NumberLiteral:
			was := n.Val
			for _, n.Val = range moved(was) {
				in(strconv.FormatFloat(was, 'g', -1, 64) + " → " + strconv.FormatFloat(n.Val, 'g', 6, 64))
			}
			n.Val = was
		case *parser.BinaryExpr:
			was := n.Op
			for _, n.Op = range neighbors[was] {
				in(was.String() + " → " + n.Op.String())
			}
			n.Op = was
		case *parser.MatrixSelector:
			// TestNoAlertOrRecordingMissesTheFirstEventOfANewSeries holds this range to the others of its form.
			if call, ok := path[len(path)-1].(*parser.Call); !ok || call.Func.Name != "present_over_time" {
				spans("range", &n.Range)
			}
		case *parser.SubqueryExpr:
			spans("range", &n.Range)
		case *parser.VectorSelector:
			spans("offset", &n.OriginalOffset)
		}
		return nil
	})
	step := time.Duration(r.Test.Step)
	for _, d := range []time.Duration{c.hold + max(c.hold, step), c.hold / 2} {
		if d != c.hold {
			out = append(out, mutant{condition{c.expr, d, c.keep}, fmt.Sprintf("for %s → %s", Duration(c.hold), Duration(d))})
		}
	}
	for _, d := range []time.Duration{c.keep + max(c.keep, step), c.keep / 2} {
		if d != c.keep {
			out = append(out, mutant{condition{c.expr, c.hold, d}, fmt.Sprintf("keep_firing_for %s → %s", Duration(c.keep), Duration(d))})
		}
	}
	return out
}

// killed reports whether the record's test would fail with this condition in its place.
func (r *Record) killed(t testing.TB, c condition, lines []timeline) bool {
	t.Helper()
	step := time.Duration(r.Test.Step)
	for _, l := range lines {
		if !l.holds(firing(t, alertingRule(t, r, c, labels.EmptyLabels()), atOnce(t, l.stored, c.expr, step), step, l.end, nil), step) {
			return true
		}
	}
	return false
}

func TestEachMutantOfAnAlertFailsItsTest(t *testing.T) {
	var mu sync.Mutex
	report, total, alive := []string{}, 0, 0
	t.Run("all", func(t *testing.T) {
		for _, r := range tested(t) {
			t.Run(r.Alert, func(t *testing.T) {
				t.Parallel()
				lines := r.timelines(t)
				if r.killed(t, r.condition(), lines) {
					t.Fatalf("%s:%d: fails as it is", r.File, r.Line)
				}
				line, dead := "", 0
				all := r.mutants(t)
				for _, m := range all {
					if r.killed(t, m.condition, lines) {
						dead++
						line += "; " + m.what
						continue
					}
					t.Errorf("%s:%d: %s survives: no test notices it", r.File, r.Line, m.what)
				}
				mu.Lock()
				defer mu.Unlock()
				report, total, alive = append(report, fmt.Sprintf("%s: killed %d of %d%s", r.Alert, dead, len(all), line)), total+len(all), alive+len(all)-dead
			})
		}
	})
	slices.Sort(report)
	for _, l := range report {
		t.Log(l)
	}
	t.Logf("%d records, %d mutants, %d killed, %d alive", len(report), total, total-alive, alive)
	if total < 8*len(report) { // a mutation run that mutates little proves little
		t.Errorf("only %d mutants of %d records", total, len(report))
	}
}
