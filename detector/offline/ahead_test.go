package offline

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// clocked is a file of two ranks, one second a step, of which rank 1 is slower from step 200 on; at gives the time of a row, and "" leaves it out.
func clocked(at func(i, rank int) string) string {
	var b strings.Builder
	b.WriteString("timestamp,rank,v\n")
	for i := range 300 {
		for rank := range 2 {
			v := 50 + float64(i*(rank+3)%7)/10
			if rank == 1 && i >= 200 && i < 230 {
				v *= 1.6
			}
			if t := at(i, rank); t != "" {
				fmt.Fprintf(&b, "%s,%d,%g\n", t, rank, v)
			}
		}
	}
	return b.String()
}

func byRank(o *Options) { o.SeriesBy = "rank" }

func TestOneTimestampFromTheFutureIsNamedAndPassedOver(t *testing.T) {
	second := func(i int) string { return fmt.Sprint(1_700_000_000 + i) }
	for name, c := range map[string]struct {
		at   int
		line string
	}{"in the middle": {150, "line 303"}, "within a fault": {203, "line 409"}, "in the first row": {0, "line 3"}, "in the second": {1, "line 5"}} {
		t.Run(name, func(t *testing.T) {
			wrong := clocked(func(i, rank int) string {
				if i == c.at && rank == 1 {
					return "1800000000"
				}
				return second(i)
			})
			without := clocked(func(i, rank int) string {
				if i == c.at && rank == 1 {
					return ""
				}
				return second(i)
			})
			rows, found := detect(t, wrong, byRank)
			wantRows, want := detect(t, without, byRank)
			if len(want) != 1 || !reflect.DeepEqual(found, want) {
				t.Errorf("findings %+v, without the row %+v", found, want)
			}
			n := slices.IndexFunc(rows, func(r []string) bool { return r[0] == "1800000000" })
			if n < 0 || rows[n][3] != "0.000000" || rows[n][5] != "" {
				t.Fatalf("row %d: %v", n, rows)
			}
			if alike := slices.Delete(slices.Clone(rows), n, n+1); !reflect.DeepEqual(alike, wantRows) {
				t.Error("other rows are judged differently")
			}
			_, notes, err := judge(wrong, byRank)
			if err != nil || !strings.Contains(notes, "1 timestamp far ahead of the rows after it ("+c.line+`: "1800000000")`) || strings.Contains(notes, "before an earlier") {
				t.Errorf("%v: %s", err, notes)
			}
		})
	}
}

func TestAGapIsTakenInWithTheRowAfterIt(t *testing.T) {
	gap := func(from int) func(i, rank int) string {
		return func(i, rank int) string {
			if i >= from {
				i += 3 * 3600
			}
			return fmt.Sprint(1_700_000_000 + i)
		}
	}
	strict := func(o *Options) { byRank(o); o.Strict = true }
	for _, from := range []int{100, 215, 299} {
		if _, notes, err := judge(clocked(gap(from)), strict); err != nil {
			t.Errorf("%v: %s", err, notes)
		}
	}
	rows, found := detect(t, clocked(gap(100)), byRank)
	if len(found) != 1 || found[0].Series != "1" || found[0].Value == nil {
		t.Errorf("findings %+v", found)
	}
	if r := rows[2*104]; r[5] == "" {
		t.Errorf("the second row after the gap is not judged: %v", r)
	}
	// Twice the same wrong time bears itself out.
	twice := clocked(func(i, rank int) string {
		if i == 150 || i == 151 {
			i = 1 << 26
		}
		return fmt.Sprint(1_700_000_000 + i)
	})
	if _, notes, _ := judge(twice, byRank); !strings.Contains(notes, "296 timestamps before an earlier row's") || !strings.Contains(notes, "2 repeated timestamps") {
		t.Error(notes)
	}
}
