package offline

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// steady is rows of a quiet series, one a second.
func steady(n int, row func(i int, t, v string) string) string {
	rng := rand.New(rand.NewPCG(9, 9))
	var b strings.Builder
	b.WriteString("timestamp,v\n")
	for i := range n {
		t, v := fmt.Sprint(1.7e9+float64(i)), fmt.Sprintf("%.3f", 50+rng.NormFloat64())
		if r := row(i, t, v); r != "" {
			b.WriteString(r + "\n")
		}
	}
	return b.String()
}

// judge runs over a text and gives what is written, and the error.
func judge(in string, change func(*Options)) (out, notes string, err error) {
	var o, n bytes.Buffer
	opt := Options{In: "-", Out: "-", Step: "step", Stdin: strings.NewReader(in), Stdout: &o, Notes: &n}
	if change != nil {
		change(&opt)
	}
	err = Run(context.Background(), opt)
	return o.String(), n.String(), err
}

func TestEachKindOfBadRowIsRepeatedCountedAndNamedWithItsFirstLine(t *testing.T) {
	odd := map[int]func(ts, v string) string{
		50:  func(ts, _ string) string { return ts + "," },
		60:  func(ts, _ string) string { return ts + ",n/a" },
		70:  func(ts, _ string) string { return ts + ",fast" },
		80:  func(ts, _ string) string { return ts + ",NaN" },
		90:  func(ts, _ string) string { return ts + ",-inf" },
		100: func(_, v string) string { return "yesterday," + v },
		110: func(_, v string) string { return "," + v },
		120: func(_, v string) string { return "1.700000119e+09," + v },
		130: func(_, v string) string { return "1.70000002e+09," + v },
		140: func(ts, v string) string { return ts + "," + v + ",7" },
		150: func(ts, _ string) string { return ts },
		160: func(_, v string) string { return "9e300," + v },
		170: func(ts, v string) string { return ts + "," + v + "," }, // nothing is lost by an empty cell more
	}
	in := steady(300, func(i int, ts, v string) string {
		if f := odd[i]; f != nil {
			return f(ts, v)
		}
		return ts + "," + v
	})
	out, notes, err := judge(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"300 rows, 1 series; profile training for 1 (interval 1s, below a minute); no findings; ",
		`3 unreadable timestamps (line 102: "yesterday")`, `1 row with more cells than the header (line 142: "7")`, `3 empty values (line 52)`,
		`1 value that is no number (line 72: "fast")`, `2 NaN or infinities (line 82: "NaN")`, `1 repeated timestamp (line 122: "1.700000119e+09")`,
		`1 timestamp before an earlier row's (line 132: "1.70000002e+09")`, `1 row with fewer cells than the header (line 152)`,
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("the summary lacks %s:\n%s", want, notes)
		}
	}
	r := csv.NewReader(strings.NewReader(out))
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil || len(rows) != 301 {
		t.Fatalf("%d rows of 300, %v", len(rows)-1, err)
	}
	lines := strings.Split(strings.TrimSpace(in), "\n")
	for i := range odd {
		got := rows[i+1]
		if i == 170 {
			if got[4] == "" {
				t.Errorf("row %d is not judged: %v", i, got)
			}
			continue
		}
		if !strings.HasPrefix(strings.Join(got, ","), strings.Split(lines[i+1], ",")[0]) || got[2] != "0.000000" || got[3] != "0" || got[4] != "" {
			t.Errorf("row %d, %q, became %v; want it repeated, with score 0, alarm 0 and nothing expected", i, lines[i+1], got)
		}
	}
	if got := rows[141]; len(got) != 8 || got[7] != "7" {
		t.Errorf("the cell too many is not kept at the end: %v", got)
	}
	if _, _, err := judge(in, func(o *Options) { o.Strict = true }); err == nil || !strings.Contains(err.Error(), "3 unreadable timestamps (line 102") {
		t.Errorf("--strict: %v", err)
	}
	good := steady(300, func(_ int, ts, v string) string { return ts + "," + v })
	if _, notes, err := judge(good, func(o *Options) { o.Strict = true }); err != nil || strings.Contains(notes, "not judged") {
		t.Errorf("--strict on a sound file: %v %s", err, notes)
	}
}

func TestAnOpenFindingStaysOpenInRowsThatCannotBeJudged(t *testing.T) {
	in := steady(400, func(i int, ts, v string) string {
		if i >= 300 {
			v = "80"
		}
		switch i {
		case 305:
			return "soon," + v
		case 306:
			return ts + ",?"
		}
		return ts + "," + v
	})
	out, _, err := judge(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{304, 305, 306, 307} {
		if f := strings.Split(strings.Split(out, "\n")[i+1], ","); f[3] != "1" {
			t.Errorf("row %d: %v, want alarm 1", i, f)
		}
	}
}

func TestAFileInWhichNothingCanBeJudgedIsAnErrorThatNamesTheRemedy(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"header only":         {"timestamp,v\n", "no rows below the header"},
		"no time":             {"time,v\n1,2\n", "no column timestamp among time, v: --timestamp names"},
		"no numbers":          {"timestamp,host\n1,n1\n", "--value names the column to judge"},
		"only text":           {"timestamp,v\n1,\n2,x\n3,y\n", `2 values that are no numbers, the first in line 3 ("x"): write numbers`},
		"only bad times":      {"timestamp,v\n01/02/2026,1\n01/03/2026,2\n", `2 unreadable timestamps, the first in line 2 ("01/02/2026"): RFC 3339`},
		"semicolons":          {"timestamp;v\n1;2\n", "columns are parted by commas"},
		"a column twice":      {"timestamp,v,v\n1,2,3\n", `columns 2 and 3 are both named "v"`},
		"an output":           {"timestamp,v,anomaly_score\n1,2,0\n", "this is an output of pitcrew detect"},
		"a column of ours":    {"timestamp,v,alarm\n1,2,x\n", "a column alarm, which the output adds"},
		"a quote":             {"timestamp,v\n1,a\"b\n", "line 2, column 4"},
		"an unclosed quote":   {"timestamp,v\n1,\"" + strings.Repeat("2\n", maxRow), "is a quote not closed?"},
		"a value not there":   {"timestamp,v\n1,2\n", "no column w, which --value names"},
		"a label in --series": {"timestamp,v\n1,2\n", "no column host, which --series-by names"},
	} {
		_, _, err := judge(c.in, func(o *Options) {
			switch name {
			case "a value not there":
				o.Values = []string{"w"}
			case "a label in --series":
				o.SeriesBy = "host"
			}
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestColumnsAreChosenByTheirFirstValueOrByName(t *testing.T) {
	in := "time,host,id,v\n1,n1,7,2\n2,n1,7,3\n"
	out, notes, err := judge(in, func(o *Options) { o.Timestamp = "time" })
	if err != nil || !strings.HasPrefix(out, "time,host,id,v,id_anomaly_score,") || !strings.Contains(notes, `not judged: host (first "n1")`) {
		t.Errorf("%v\n%s%s", err, out, notes)
	}
	out, _, err = judge(in, func(o *Options) { o.Timestamp, o.Values = "time", []string{"v"} })
	if err != nil || !strings.HasPrefix(out, "time,host,id,v,anomaly_score,alarm,expected,lower,upper\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAMarkOfTheByteOrderAndATimeZoneAreRead(t *testing.T) {
	in := "\ufefftimestamp,v\n2026-01-01 00:00:00+00:00,1\n2026-01-01T01:00:01+01:00,2\n1767225602000,3\n1767225603,4\n"
	out, notes, err := judge(in, nil)
	if err != nil || !strings.HasPrefix(out, "timestamp,v,anomaly_score,") || strings.Contains(notes, "not judged") {
		t.Errorf("%v\n%s%s", err, out, notes)
	}
}

func TestASeriesIsUnknownForAsManyValuesAsTheHelpSays(t *testing.T) {
	for every, n := range map[int]int{1: learnTraining, 300: learnFacility} {
		in := steady(n+2, func(i int, _, v string) string { return fmt.Sprintf("%d,%s", 1_700_000_000+i*every, v) })
		out, _, err := judge(in, nil)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if err != nil || !strings.HasSuffix(lines[n], "0.000000,0,,,") || strings.HasSuffix(lines[n+2], ",,,") {
			t.Errorf("every %d s: %v; value %d is %s, value %d is %s", every, err, n, lines[n], n+2, lines[n+2])
		}
		short := strings.Join(strings.SplitAfter(in, "\n")[:n-1], "")
		if _, notes, err := judge(short, nil); err != nil || !strings.Contains(notes, "too short to judge anything") || !strings.Contains(notes, "100 % of") {
			t.Errorf("every %d s, %d values: %v %s", every, n-2, err, notes)
		}
	}
}

func TestSeriesBeyondTheBoundAreRepeatedAndCounted(t *testing.T) {
	var b strings.Builder
	b.WriteString("timestamp,id,v\n")
	for i := range maxSeries + 10 {
		fmt.Fprintf(&b, "%d,id%d,1\n", i, i)
	}
	fmt.Fprintf(&b, "%d,%s,1\n", maxSeries, strings.Repeat("x", maxName+1))
	out, notes, err := judge(b.String(), func(o *Options) { o.SeriesBy = "id" })
	if err != nil || strings.Count(out, "\n") != maxSeries+12 || !strings.Contains(notes, fmt.Sprintf("11 values of series too many (line %d", maxSeries+2)) {
		t.Errorf("%v: %d lines, %s", err, strings.Count(out, "\n"), notes)
	}
}

// slowly gives what is asked for in small pieces, and ends as told.
type slowly struct {
	left string
	end  func() error
}

func (s *slowly) Read(p []byte) (int, error) {
	if s.left == "" {
		return 0, s.end()
	}
	n := copy(p[:min(len(p), 100)], s.left)
	s.left = s.left[n:]
	return n, nil
}

func TestAStreamShowsItsRowsBeforeItEndsAndAnInterruptionEndsTheWait(t *testing.T) {
	in := steady(100, func(_ int, ts, v string) string { return ts + "," + v })
	r, w := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	never := make(chan struct{})
	defer close(never)
	go func() {
		ended <- Run(ctx, Options{In: "-", Out: "-", Stdout: w, Stdin: &slowly{left: in, end: func() error { <-never; return io.EOF }}})
		w.Close()
	}()
	got := make([]byte, 0, 1<<16)
	for bytes.Count(got, []byte("\n")) < 101 {
		n, err := r.Read(got[len(got):cap(got)])
		if got = got[:len(got)+n]; err != nil {
			t.Fatal(err)
		}
	}
	stop()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still waiting for input")
	}
}

func TestNothingOfAFailedRunIsLeftAndWhatWasThereIsWhole(t *testing.T) {
	good := steady(300, func(_ int, ts, v string) string { return ts + "," + v })
	bad := good + "1,\"2\n"
	dir := t.TempDir()
	in := filepath.Join(dir, "in.csv")
	o := Options{In: in, Out: filepath.Join(dir, "out.csv"), Findings: filepath.Join(dir, "f.jsonl"), Plot: filepath.Join(dir, "p.png")}
	for name, run := range map[string]func() error{
		"a bad file": func() error { return Run(context.Background(), o) },
		"Ctrl-C": func() error {
			ctx, stop := context.WithCancel(context.Background())
			o := o
			o.In, o.Stdin = "-", &slowly{left: good, end: func() error { stop(); return nil }}
			return Run(ctx, o)
		},
		"--strict": func() error {
			o := o
			o.In, o.Stdin, o.Strict = "-", strings.NewReader(good+"x,1\n"), true
			return Run(context.Background(), o)
		},
		"no folder for one": func() error {
			o := o
			o.In, o.Stdin, o.Plot = "-", strings.NewReader(good), filepath.Join(in, "p.png")
			return Run(context.Background(), o)
		},
	} {
		for path, text := range map[string]string{in: bad, o.Out: "old out", o.Findings: "old findings", o.Plot: "old plot"} {
			if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		if err := run(); err == nil {
			t.Errorf("%s: no error", name)
		}
		for path, text := range map[string]string{o.Out: "old out", o.Findings: "old findings", o.Plot: "old plot"} {
			if b, err := os.ReadFile(path); err != nil || string(b) != text {
				t.Errorf("%s: %s is %q, %v", name, filepath.Base(path), b, err)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) != 4 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
	if err := os.WriteFile(in, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.csv")
	if err := os.Symlink(o.Out, link); err != nil {
		t.Fatal(err)
	}
	o.Out = link
	if err := Run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	at, err := os.Lstat(link)
	info, err2 := os.Stat(link)
	if err != nil || err2 != nil || at.Mode()&os.ModeSymlink == 0 || info.Size() < int64(len(good)) || info.Mode().Perm() != 0o640 {
		t.Errorf("the link: %v %v, the file behind it: %v %v", at, err, info, err2)
	}
}

func TestTwoTextsDoNotShareStandardOutput(t *testing.T) {
	for _, change := range []func(*Options){
		func(o *Options) { o.Backtest = io.Discard },
		func(o *Options) { o.Findings = "-" },
		func(o *Options) { o.Plot = "-" },
		func(o *Options) { o.Out = "" },
	} {
		if _, _, err := judge("timestamp,v\n1,2\n", change); err == nil {
			t.Error("no error")
		}
	}
}

func TestAPictureOfAnotherKindThanIsWrittenIsRefusedByItsName(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"x.jpg", "x.svg", "x", "png", "x.png.pdf"} {
		path := filepath.Join(dir, name)
		if _, _, err := judge("timestamp,v\n1,2\n", func(o *Options) { o.Plot = path }); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), ".png") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is written", name)
		}
	}
}
