package offline

import (
	"fmt"
	"strings"
	"testing"
)

func TestASilentSeriesIsAbsentWhileOthersGoOn(t *testing.T) {
	var long, wide, alone strings.Builder
	long.WriteString("timestamp,rank,v\n")
	wide.WriteString("timestamp,a,b\n")
	alone.WriteString("timestamp,run,v\n")
	for i := range 200 {
		gone := i >= 100 && i < 150
		for r := range 3 {
			if r != 1 || !gone {
				fmt.Fprintf(&long, "%d,%d,%d\n", i, r, 50+i%3)
			}
		}
		b := fmt.Sprint(20 + i%3)
		if gone {
			b = ""
		}
		fmt.Fprintf(&wide, "%d,%d,%s\n", i, 50+i%3, b)
	}
	for run := range 3 { // one after another, each shorter, and all of them silent for a while
		for i := range 200 - 50*run {
			if i < 60 || i > 90 {
				fmt.Fprintf(&alone, "%d,%d,%d\n", 1000*run+i, run, 50+i%3)
			}
		}
	}
	for name, in := range map[string]string{"1": long.String(), "b": wide.String(), "": alone.String()} {
		rows, found := detect(t, in, func(o *Options) {
			switch name {
			case "1":
				o.SeriesBy = "rank"
			case "":
				o.SeriesBy = "run"
			}
		})
		if name == "" {
			if len(found) != 0 {
				t.Errorf("runs one after another: %+v", found)
			}
			continue
		}
		if len(found) != 1 || found[0].Series != name || found[0].What != "absent" || found[0].State != "cleared" || found[0].Seconds != 51 ||
			found[0].Onset != when(99e9) || found[0].Opened.Before(when(102e9)) || found[0].Opened.After(when(104e9)) {
			t.Errorf("series %s: %+v", name, found)
		}
		if name == "b" && (rows[121][9] != "1" || rows[160][9] != "0") {
			t.Errorf("alarm of an empty cell: %v and after it %v", rows[121], rows[160])
		}
	}
}

func TestAStepThatHangsWhileOthersGoOnIsOneStall(t *testing.T) {
	var long strings.Builder
	long.WriteString("timestamp,rank,seconds\n")
	for i := range 200 {
		for r := range 3 {
			switch v := 1 + float64(i%3)/50; {
			case r == 1 && i >= 100 && i < 130:
			case r == 1 && i == 130:
				fmt.Fprintf(&long, "%d,%d,31\n", i, r)
			default:
				fmt.Fprintf(&long, "%d,%d,%g\n", i, r, v)
			}
		}
	}
	var told strings.Builder
	_, found := detect(t, long.String(), func(o *Options) { o.SeriesBy, o.Backtest = "rank", &told })
	if len(found) != 1 || found[0].Series != "1" || found[0].What != "stall" || found[0].Onset != when(99e9) {
		t.Errorf("findings %+v", found)
	}
	if !strings.Contains(told.String(), "cleared     1: absent: a value again after 31s, which it took: a stall") {
		t.Errorf("told:\n%s", told.String())
	}
}
