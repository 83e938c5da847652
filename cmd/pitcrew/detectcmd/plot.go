package detectcmd

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"os"

	"github.com/pitcrew/pitcrew/detector/series"
)

// chart collects what a picture shows: value, band and findings of each series.
type chart struct {
	on   bool
	list []*chartSeries
}

type chartSeries struct {
	name string
	on   bool
	pts  []chartPoint
}

type chartPoint struct {
	t               int64
	v, lower, upper float64
	alarm           bool
}

// maxCharts of one picture, and maxPoints of one series: beyond it, points are thinned.
const (
	maxCharts = 12
	maxPoints = 20_000
)

func (p *chart) series(name string) *chartSeries {
	s := &chartSeries{name: name, on: p.on && len(p.list) < maxCharts}
	if s.on {
		p.list = append(p.list, s)
	}
	return s
}

func (s *chartSeries) add(t int64, v float64, x series.Verdict) {
	if s.on {
		s.pts = append(s.pts, chartPoint{t, v, x.Lower, x.Upper, x.Alarm})
	}
}

var (
	colourValue = color.RGBA{R: 31, G: 87, B: 141, A: 255}
	colourBand  = color.RGBA{R: 190, G: 205, B: 220, A: 255}
	colourAlarm = color.RGBA{R: 242, G: 170, B: 160, A: 255}
)

func (p *chart) write(path string) error {
	if len(p.list) == 0 {
		return fmt.Errorf("%s: nothing to draw", path)
	}
	width, height := 28*vg.Centimeter, 8*vg.Centimeter
	img := vgimg.New(width, height*vg.Length(len(p.list)))
	dc := draw.New(img)
	for i, s := range p.list {
		pl, err := s.draw()
		if err != nil {
			return err
		}
		top := dc.Max.Y - height*vg.Length(i)
		pl.Draw(draw.Canvas{Canvas: dc.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: dc.Min.X, Y: top - height}, Max: vg.Point{X: dc.Max.X, Y: top}}})
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// draw makes one series' picture. The axis shows what is usual: up to four times the middle of the upper bounds.
func (s *chartSeries) draw() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = s.name, "seconds"
	if len(s.pts) == 0 {
		return p, nil
	}
	t0 := s.pts[0].t
	x := func(q chartPoint) float64 { return float64(q.t-t0) * 1e-9 }
	var value, upper, lower plotter.XYs
	lo, hi := math.Inf(1), math.Inf(-1)
	step := 1 + len(s.pts)/maxPoints
	for i, q := range s.pts {
		if !math.IsNaN(q.upper) {
			lo, hi = math.Min(lo, q.lower), math.Max(hi, q.upper)
		}
		if i%step != 0 && !q.alarm {
			continue
		}
		if !math.IsNaN(q.v) && !math.IsInf(q.v, 0) {
			value = append(value, plotter.XY{X: x(q), Y: q.v})
		}
		if !math.IsNaN(q.upper) {
			upper, lower = append(upper, plotter.XY{X: x(q), Y: q.upper}), append(lower, plotter.XY{X: x(q), Y: q.lower})
		}
	}
	if hi > lo {
		lo, hi = lo-(hi-lo)/2, hi+(hi-lo)
	} else {
		lo, hi = p.Y.Min, p.Y.Max
	}
	for i := 0; i < len(s.pts); i++ {
		if !s.pts[i].alarm {
			continue
		}
		j := i
		for j+1 < len(s.pts) && s.pts[j+1].alarm {
			j++
		}
		a, b := x(s.pts[i]), x(s.pts[j])
		box, err := plotter.NewPolygon(plotter.XYs{{X: a, Y: lo}, {X: b, Y: lo}, {X: b, Y: hi}, {X: a, Y: hi}})
		if err != nil {
			return nil, err
		}
		box.Color, box.LineStyle.Color = colourAlarm, colourAlarm
		p.Add(box)
		i = j
	}
	for _, band := range []plotter.XYs{upper, lower} {
		if len(band) == 0 {
			continue
		}
		l, err := plotter.NewLine(band)
		if err != nil {
			return nil, err
		}
		l.Color = colourBand
		p.Add(l)
	}
	for i := range value {
		value[i].Y = math.Max(lo, math.Min(hi, value[i].Y))
	}
	if len(value) > 0 {
		l, err := plotter.NewLine(value)
		if err != nil {
			return nil, err
		}
		l.Color, l.Width = colourValue, vg.Points(0.6)
		p.Add(l)
	}
	p.Y.Min, p.Y.Max = lo, hi
	return p, nil
}
