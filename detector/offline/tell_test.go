package offline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/detector/series"
)

func TestTheBacktestSaysWhatWhenHowSevereAndWhyInTextAndInJSON(t *testing.T) {
	in := jobFile(2000, true, 1)
	var text, lines bytes.Buffer
	_, found := detect(t, in, func(o *Options) { o.Backtest = &text })
	detect(t, in, func(o *Options) { o.Backtest, o.JSON = &lines, true })
	for _, want := range []string{
		"  warning  opened      step_ms: deviation: high: ", " was expected (self, ", "; began 2023-11-14T22:",
		"  warning  cleared     step_ms: spike: back to usual after ", " times the expected, ", " s lost on each GPU", "1 opening of warning and 0 openings of info; ",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the backtest lacks %q:\n%s", want, text.String())
		}
	}
	var all []said
	for d := json.NewDecoder(&lines); d.More(); {
		var x said
		if err := d.Decode(&x); err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	if len(all) != 2 || all[0].Event != "opened" || all[0].Severity != "warning" || !all[0].Onset.Equal(found[0].Onset) || !all[0].Time.Equal(found[0].Opened) ||
		all[1].Event != "cleared" || all[1].What != found[0].What || all[1].Reason == "" || all[1].Ratio == nil {
		t.Errorf("%+v of %+v", all, found)
	}
	text.Reset()
	detect(t, jobFile(300, false, 1), func(o *Options) { o.Backtest = &text })
	if text.String() != "nothing would have been told\n" {
		t.Errorf("of a quiet run: %q", text.String())
	}
}

func TestTheWarmUpDoesNotChooseTheProfile(t *testing.T) {
	in := steady(400, func(i int, _, v string) string {
		at, phase := 10_000+i, "train"
		if i < 20 {
			at, phase = i*100, "warmup"
		}
		return fmt.Sprintf("%d,%s,%s", at, v, phase)
	})
	if _, notes, err := judge(strings.Replace(in, "timestamp,v", "timestamp,v,phase", 1), nil); err != nil || !strings.Contains(notes, "profile training for 1 (interval 1s") {
		t.Errorf("%v %s", err, notes)
	}
}

func TestTheSummaryCountsFindingsByKind(t *testing.T) {
	_, notes, err := judge(jobFile(2000, true, 1), nil)
	if err != nil || !strings.Contains(notes, "2,000 rows, 1 series; profile training for 1 (interval 5") || !strings.Contains(notes, "1 finding (1 spike)") {
		t.Errorf("%v %s", err, notes)
	}
}

// drawn decodes a picture and says how often each colour is in it.
func drawn(t *testing.T, in string, change func(*Options)) (image.Rectangle, map[[3]uint32]int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.png")
	detect(t, in, func(o *Options) {
		o.Plot = path
		if change != nil {
			change(o)
		}
	})
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[[3]uint32]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			seen[[3]uint32{r >> 8, g >> 8, b >> 8}]++
		}
	}
	return img.Bounds(), seen
}

// onWhite is a colour as it looks on white.
func onWhite(c interface{ RGBA() (r, g, b, a uint32) }) [3]uint32 {
	r, g, b, a := c.RGBA()
	return [3]uint32{(r + 0xffff - a) >> 8, (g + 0xffff - a) >> 8, (b + 0xffff - a) >> 8}
}

// near counts pixels of a colour: rounding may differ by one or two.
func near(seen map[[3]uint32]int, c [3]uint32) (n int) {
	for k, v := range seen {
		far := 0.0
		for i := range k {
			far = max(far, math.Abs(float64(k[i])-float64(c[i])))
		}
		if far <= 2 {
			n += v
		}
	}
	return n
}

func TestAPictureShowsValueBandFindingByKindAndToldChanges(t *testing.T) {
	_, quiet := drawn(t, jobFile(700, false, 1), nil)
	_, faulty := drawn(t, jobFile(2000, true, 1), nil)
	spike := onWhite(kindColours[0].colour)
	if a, b := near(quiet, spike), near(faulty, spike); a != 0 || b < 1000 {
		t.Errorf("spike: %d pixels in a quiet run, %d with one", a, b)
	}
	green := func(seen map[[3]uint32]int) (n int) {
		for k, v := range seen {
			if k[1] > k[0]+20 && k[1] > k[2]+20 {
				n += v
			}
		}
		return n
	}
	if a, b := green(quiet), green(faulty); a != 0 || b < 50 {
		t.Errorf("change of workload: %d pixels without one, %d with one", a, b)
	}
	for name, c := range map[string][3]uint32{"value": onWhite(colourValue), "band": onWhite(colourBand), "phase": onWhite(colourPhase)} {
		if n := near(quiet, c); n < 20 {
			t.Errorf("%s: %d pixels", name, n)
		}
	}
}

func TestPicturesOfOneRowAndOfManySeriesAreDrawn(t *testing.T) {
	size, seen := drawn(t, "timestamp,v\n2026-01-01 00:00:00,5\n", nil)
	if size.Dx() < 1000 || near(seen, onWhite(colourValue)) < 5 {
		t.Errorf("one row: %v, %d pixels of the value", size, near(seen, onWhite(colourValue)))
	}
	var b strings.Builder
	b.WriteString("timestamp,rank,v\n")
	for i := range 20 * (maxCharts + 3) {
		fmt.Fprintf(&b, "%d,%d,%d\n", i/(maxCharts+3), i%(maxCharts+3), i%7)
	}
	many, _ := drawn(t, b.String(), func(o *Options) { o.SeriesBy = "rank" })
	if want := size.Dy() * maxCharts; many.Dy() > want || many.Dy() < want/2 {
		t.Errorf("%d series: %v, one: %v", maxCharts+3, many, size)
	}
}

func TestAPictureOfALongSeriesKeepsItsExtremesInBoundedMemory(t *testing.T) {
	c := chart{on: true}
	s := c.series("x", "x")
	nan := math.NaN()
	for i := range 100 * maxPoints {
		v := float64(i % 5)
		if i == 70_001 {
			v = 99
		}
		s.add(int64(i)*1e9, v, series.Verdict{Lower: nan, Upper: nan}, series.Sample{Told: true, Workload: uint32(i)})
	}
	most := 0.0
	for i, q := range s.pts {
		most = max(most, q.high)
		if i > 0 && q.from <= s.pts[i-1].to {
			t.Fatalf("points %d and %d overlap", i-1, i)
		}
	}
	if len(s.pts) > maxPoints || len(s.pts) < maxPoints/4 || most != 99 || len(s.marks) > maxMarks || s.pts[len(s.pts)-1].to != int64(100*maxPoints-1)*1e9 {
		t.Errorf("%d points, the highest %g, %d marks", len(s.pts), most, len(s.marks))
	}
}

func TestTicksFallOnTimesThatPeopleCountIn(t *testing.T) {
	start := int64(1_700_000_003e9) // 2023-11-14 22:13:23
	for _, c := range []struct {
		axis timeAxis
		want string
	}{
		{timeAxis{start, 60}, "22:13:30 22:13:40 22:13:50 22:14:00 22:14:10 22:14:20"},
		{timeAxis{start, 3600}, "22:20 22:30 22:40 22:50 23:00 23:10"},
		{timeAxis{start, 5 * day}, "11-15 00:00 11-15 12:00 11-16 00:00 11-16 12:00 11-17 00:00 11-17 12:00 11-18 00:00 11-18 12:00 11-19 00:00 11-19 12:00"},
		{timeAxis{0, 60}, "0 10 20 30 40 50 60"},
		{timeAxis{0, 0.5}, "0 0.1 0.2 0.3 0.4 0.5"},
	} {
		var got []string
		for _, tick := range c.axis.Ticks(0, c.axis.span) {
			got = append(got, tick.Label)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%g s from %d: %s", c.axis.span, c.axis.start, got)
		}
	}
}

// broken is a pipe that nobody reads.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestAClosedPipeEndsTheRunWithOneError(t *testing.T) {
	in := jobFile(2000, true, 1)
	for _, change := range []func(*Options){
		func(o *Options) { o.Out, o.Backtest = "", broken{} },
		func(o *Options) { o.Out, o.Backtest, o.JSON = "", broken{}, true },
		func(o *Options) { o.Stdout = broken{} },
	} {
		_, _, err := judge(in, change)
		if err == nil || strings.Count(err.Error(), "closed") != 1 {
			t.Errorf("%v", err)
		}
	}
}
