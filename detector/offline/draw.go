package offline

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

var (
	colourValue = color.NRGBA{R: 20, G: 66, B: 120, A: 255}
	colourBand  = color.NRGBA{R: 120, G: 160, B: 200, A: 90}
	colourPhase = color.NRGBA{R: 150, G: 150, B: 150, A: 255}
	colourWork  = color.NRGBA{R: 40, G: 130, B: 70, A: 255}
)

type kindColour struct {
	what   string
	colour color.NRGBA
}

// kindColours are in the order of the legend; colours of findings let what is below show.
var kindColours = []kindColour{
	{"spike", color.NRGBA{R: 240, G: 150, B: 30, A: 110}},
	{"shift", color.NRGBA{R: 215, G: 40, B: 40, A: 100}},
	{"drift", color.NRGBA{R: 150, G: 80, B: 190, A: 100}},
	{"stall", color.NRGBA{R: 110, G: 60, B: 20, A: 130}},
	{"flatline", color.NRGBA{R: 90, G: 90, B: 90, A: 110}},
	{"novel", color.NRGBA{R: 230, G: 60, B: 140, A: 100}},
	{whatAbsent, color.NRGBA{R: 225, G: 200, B: 40, A: 130}},
}

const (
	chartWidth   = 28 * vg.Centimeter
	chartHeight  = 8 * vg.Centimeter
	legendHeight = vg.Centimeter
	thinnest     = 0.002 // of the width: no finding is narrower
	brokenAfter  = 10    // middle distances of points: the line has a gap
)

// write draws all series, one below the other, under one legend.
func (p *chart) write(to io.Writer) error {
	height := chartHeight*vg.Length(len(p.list)) + legendHeight
	img := vgimg.New(chartWidth, height)
	dc := draw.New(img)
	p.legend(draw.Crop(dc, vg.Centimeter, 0, height-legendHeight, -2*vg.Millimeter))
	t0, t1, common := p.common()
	var rows [][]*plot.Plot
	for _, s := range p.list {
		pl, err := s.draw(t0, t1, common)
		if err != nil {
			return fmt.Errorf("series %s: %w", s.name, err)
		}
		rows = append(rows, []*plot.Plot{pl})
	}
	if p.all > len(p.list) {
		rows[0][0].Title.Text += fmt.Sprintf(" (the first %d of %d series)", len(p.list), p.all)
	}
	tiles := draw.Tiles{Rows: len(rows), Cols: 1, PadLeft: vg.Millimeter, PadRight: 4 * vg.Millimeter, PadBottom: vg.Millimeter, PadY: 3 * vg.Millimeter}
	for i, at := range plot.Align(rows, tiles, draw.Crop(dc, 0, 0, 0, -legendHeight)) {
		rows[i][0].Draw(at[0])
	}
	_, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(to)
	return err
}

// swatch is a legend's picture of an area.
type swatch struct{ color.Color }

func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.Color, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Min.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Min.Y}})
}

func line(c color.Color, w vg.Length, dashes ...vg.Length) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: w, Dashes: dashes}
}

var (
	styleValue = line(colourValue, vg.Points(0.8))
	stylePhase = line(colourPhase, vg.Points(0.6), vg.Points(1), vg.Points(2))
	styleWork  = line(colourWork, vg.Points(0.9), vg.Points(4), vg.Points(2))
)

// legend names what the pictures have, side by side.
func (p *chart) legend(c draw.Canvas) {
	type entry struct {
		name  string
		thumb plot.Thumbnailer
	}
	entries := []entry{{"value", &plotter.Line{LineStyle: styleValue}}, {"expected band", swatch{colourBand}}}
	for _, k := range kindColours {
		if slices.ContainsFunc(p.list, func(s *chartSeries) bool {
			return slices.ContainsFunc(s.found, func(f chartFinding) bool { return f.what == k.what })
		}) {
			entries = append(entries, entry{k.what, swatch{k.colour}})
		}
	}
	for _, m := range []struct {
		work  bool
		name  string
		style draw.LineStyle
	}{{true, "workload changes", styleWork}, {false, "phase changes", stylePhase}} {
		if slices.ContainsFunc(p.list, func(s *chartSeries) bool {
			return slices.ContainsFunc(s.marks, func(x chartMark) bool { return x.work == m.work })
		}) {
			entries = append(entries, entry{m.name, &plotter.Line{LineStyle: m.style}})
		}
	}
	for _, e := range entries {
		l := plot.NewLegend()
		l.Left, l.Top, l.ThumbnailWidth, l.TextStyle.Font.Size = true, true, 8*vg.Millimeter, vg.Points(9)
		l.Add(e.name, e.thumb)
		l.Draw(c)
		c.Min.X += l.ThumbnailWidth + l.TextStyle.Width(e.name) + 6*vg.Millimeter
	}
}

// extent is the time that a series' picture shows; false: none.
func (s *chartSeries) extent() (from, to int64, ok bool) {
	if len(s.pts) == 0 {
		return 0, 0, false
	}
	from, to = s.pts[0].from, s.pts[len(s.pts)-1].to
	for _, f := range s.found {
		from, to = min(from, f.from), max(to, f.to)
	}
	return from, to, true
}

// common is the time that all pictures show, where they show much the same.
func (p *chart) common() (from, to int64, ok bool) {
	least := int64(math.MaxInt64)
	for _, s := range p.list {
		a, b, has := s.extent()
		if !has {
			continue
		}
		if !ok {
			from, to, ok = a, b, true
		}
		from, to, least = min(from, a), max(to, b), min(least, b-a)
	}
	return from, to, ok && (to-from)/4 <= least
}

// draw makes one series' picture, of the time that is given or of its own.
func (s *chartSeries) draw(t0, t1 int64, given bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = excerpt(s.name), excerpt(s.column)
	if len(s.pts) == 0 {
		p.Title.Text += ": no values"
		return p, nil
	}
	if !given {
		t0, t1, _ = s.extent()
	}
	x := func(t int64) float64 { return float64(t-t0) * 1e-9 }
	p.X.Min, p.X.Max = 0, x(t1)
	if p.X.Max <= p.X.Min {
		p.X.Max = p.X.Min + 1
	}
	axis := timeAxis{start: t0, span: p.X.Max - p.X.Min}
	p.X.Tick.Marker, p.X.Label.Text = axis, axis.label()
	lo, hi, cut := s.scale()
	if cut {
		p.Y.Label.Text += ", cut at the edges"
	}
	for _, part := range s.parts() {
		if err := addPart(p, part, x, lo, hi); err != nil {
			return nil, err
		}
	}
	least := thinnest * (p.X.Max - p.X.Min)
	for _, f := range s.found {
		a, b := x(f.from), x(f.to)
		if b-a < least {
			a, b = (a+b-least)/2, (a+b+least)/2
		}
		i := slices.IndexFunc(kindColours, func(k kindColour) bool { return k.what == f.what })
		if err := addArea(p, plotter.XYs{{X: a, Y: lo}, {X: b, Y: lo}, {X: b, Y: hi}, {X: a, Y: hi}}, kindColours[max(i, 0)].colour); err != nil {
			return nil, err
		}
	}
	for _, m := range s.marks {
		style := stylePhase
		if m.work {
			style = styleWork
		}
		p.Add(&plotter.Line{XYs: plotter.XYs{{X: x(m.t), Y: lo}, {X: x(m.t), Y: hi}}, LineStyle: style})
	}
	for _, part := range s.parts() {
		addValues(p, part, len(s.pts) <= fewPoints, x, lo, hi)
	}
	p.Y.Min, p.Y.Max = lo, hi
	return p, nil
}

// parts are the points between gaps: where there is no value, or none for longer than usual.
func (s *chartSeries) parts() (out [][]chartPoint) {
	var d []int64
	for i := 1; i < len(s.pts); i++ {
		d = append(d, s.pts[i].from-s.pts[i-1].from)
	}
	far := int64(math.MaxInt64)
	if len(d) > 0 {
		slices.Sort(d)
		far = brokenAfter * max(1, d[len(d)/2])
	}
	from := 0
	for i, q := range s.pts {
		void := math.IsNaN(q.low)
		if void || i > from && q.from-s.pts[i-1].to > far {
			if i > from {
				out = append(out, s.pts[from:i])
			}
			from = i
			if void {
				from++
			}
		}
	}
	if from < len(s.pts) {
		out = append(out, s.pts[from:])
	}
	return out
}

// scale is the range of the axis: nearly all of the band, and of the values what lies within as much again on either side.
func (s *chartSeries) scale() (lo, hi float64, cut bool) {
	var upper, lower, all []float64
	for _, q := range s.pts {
		if !math.IsNaN(q.upper) {
			upper, lower = append(upper, q.upper), append(lower, q.lower)
		}
		if !math.IsNaN(q.low) {
			all = append(all, q.low, q.high)
		}
	}
	if len(all) == 0 {
		return 0, 1, false
	}
	slices.Sort(all)
	lo, hi = all[len(all)/100], all[len(all)-1-len(all)/100]
	if len(upper) > 0 {
		slices.Sort(upper)
		slices.Sort(lower)
		lo, hi = lower[len(lower)/50], upper[len(upper)-1-len(upper)/50]
	}
	least, most := all[0], all[len(all)-1]
	room := hi - lo
	top, bottom := hi+room, lo-room
	cut = least < bottom || most > top
	lo, hi = min(lo, max(least, bottom)), max(hi, min(most, top))
	room = 0.05 * (hi - lo)
	if !(room > 0) {
		room = max(1, 0.1*math.Abs(hi))
	}
	return lo - room, hi + room, cut
}

func addArea(p *plot.Plot, xy plotter.XYs, c color.Color) error {
	area, err := plotter.NewPolygon(xy)
	if err != nil {
		return err
	}
	area.Color, area.LineStyle.Width = c, 0
	p.Add(area)
	return nil
}

// addPart draws the band of a part.
func addPart(p *plot.Plot, part []chartPoint, x func(int64) float64, lo, hi float64) error {
	var upper, lower plotter.XYs
	flush := func() error {
		defer func() { upper, lower = nil, nil }()
		if len(upper) < 2 {
			return nil
		}
		slices.Reverse(lower)
		return addArea(p, append(upper, lower...), colourBand)
	}
	for _, q := range part {
		if math.IsNaN(q.upper) {
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		upper = append(upper, plotter.XY{X: x(q.from), Y: clip(q.upper, lo, hi)})
		lower = append(lower, plotter.XY{X: x(q.from), Y: clip(q.lower, lo, hi)})
	}
	return flush()
}

func clip(v, lo, hi float64) float64 { return max(lo, min(hi, v)) }

const (
	fewPoints    = 60 // of a series are drawn as dots, too
	strokePoints = 64 // in one stroke: the rasteriser's time grows with the square of what crosses a row of pixels
)

func addValues(p *plot.Plot, part []chartPoint, few bool, x func(int64) float64, lo, hi float64) {
	var xy plotter.XYs
	for _, q := range part {
		xy = append(xy, plotter.XY{X: x(q.from), Y: clip(q.low, lo, hi)})
		if q.high > q.low {
			xy = append(xy, plotter.XY{X: x(q.to), Y: clip(q.high, lo, hi)})
		}
	}
	for i := 0; i == 0 || i+1 < len(xy); i += strokePoints - 1 {
		p.Add(&plotter.Line{XYs: xy[i:min(i+strokePoints, len(xy))], LineStyle: styleValue})
	}
	if few || len(xy) == 1 {
		p.Add(&plotter.Scatter{XYs: xy, GlyphStyle: draw.GlyphStyle{Color: colourValue, Radius: vg.Points(1.5), Shape: draw.CircleGlyph{}}})
	}
}

// timeAxis marks times of the day, or seconds from the start where a file's clock has none.
type timeAxis struct {
	start int64   // ns
	span  float64 // s
}

const (
	realClock = 10 * 365 * 24 * 3600 // s since 1970: before it, a clock counts from somewhere else
	wantTicks = 10
	day       = 24 * 3600.0
)

// tickSteps are seconds that people count in.
var tickSteps = []float64{
	1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600,
	day, 2 * day, 7 * day, 14 * day, 30 * day, 90 * day, 365 * day, 3650 * day,
}

func (a timeAxis) absolute() bool { return a.start > realClock*1e9 }

func (a timeAxis) step() float64 {
	for _, s := range tickSteps {
		if a.span/s <= wantTicks {
			return s
		}
	}
	return a.span / wantTicks
}

func (a timeAxis) label() string {
	if !a.absolute() {
		return "time from the first row, s"
	}
	t := time.Unix(0, a.start).UTC()
	if a.step() >= day {
		return "UTC, from " + t.Format("2006-01-02 15:04")
	}
	return "UTC, from " + t.Format("2006-01-02 15:04:05")
}

func (a timeAxis) Ticks(least, most float64) (out []plot.Tick) {
	step := a.step()
	off := 0.0
	layout := "15:04:05"
	if a.absolute() {
		off = math.Mod(float64(a.start)*1e-9, step)
		switch {
		case step >= day:
			layout = "2006-01-02"
		case a.span >= day:
			layout = "01-02 15:04"
		case step >= 60:
			layout = "15:04"
		case step < 1:
			layout = "15:04:05.000"
		}
	}
	for n := math.Ceil((least + off) / step); n*step-off <= most; n++ {
		v := n*step - off
		text := fmt.Sprintf("%.6g", math.Round(v/step)*step)
		if a.absolute() {
			text = time.Unix(0, a.start).UTC().Add(time.Duration(math.Round(v * 1e9))).Format(layout)
		}
		out = append(out, plot.Tick{Value: v, Label: text})
	}
	return out
}
