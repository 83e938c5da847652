package page

import (
	"fmt"
	"math"
	"strings"

	"github.com/pitcrew/pitcrew/event"
)

// plot is the evidence of a fault, drawn: what was seen over time, and the band in which it was expected.
type plot struct {
	Line          string // points of a polyline
	Dots          []dot
	BandY, BandH  float64
	HasBand       bool
	ExpectedY     float64
	HasExpected   bool
	OnsetX        float64
	HasOnset      bool
	High, Low     string // labels of the axis
	From, To      string
	Text          string // the same in words
	Width, Height float64
}

type dot struct {
	X, Y  float64
	Out   bool // outside the band
	Title string
}

const (
	plotW, plotH = 640.0, 160.0
	plotPad      = 10.0
)

func finite(v *float64) bool { return v != nil && !math.IsNaN(*v) && !math.IsInf(*v, 0) }

// newPlot draws the evidence of an event. It returns nil if the evidence has no number.
func newPlot(e event.Evidence) *plot {
	samples := make([]event.Sample, 0, len(e.Samples))
	for _, s := range e.Samples {
		if finite(&s.V) && finite(&s.S) {
			samples = append(samples, s)
		}
	}
	if len(samples) == 0 && finite(e.Value) {
		samples = append(samples, event.Sample{V: *e.Value})
	}
	if len(samples) == 0 || !finite(e.Expected) && !finite(e.Lower) && !finite(e.Upper) && len(samples) < 2 {
		return nil
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	see := func(v float64) { lo, hi = min(lo, v), max(hi, v) }
	first, last := samples[0].S, samples[0].S
	for _, s := range samples {
		see(s.V)
		first, last = min(first, s.S), max(last, s.S)
	}
	for _, v := range []*float64{e.Expected, e.Lower, e.Upper} {
		if finite(v) {
			see(*v)
		}
	}
	room := (hi - lo) * 0.08
	if room == 0 {
		room = max(math.Abs(hi)*0.1, 1)
	}
	lo, hi = lo-room, hi+room
	p := &plot{Width: plotW, Height: plotH, High: axis(hi, e.Unit), Low: axis(lo, e.Unit)}
	y := func(v float64) float64 { return plotPad + (hi-v)/(hi-lo)*(plotH-2*plotPad) }
	x := func(s float64) float64 {
		if last == first {
			return plotW / 2
		}
		return plotPad + (s-first)/(last-first)*(plotW-2*plotPad)
	}
	low, high := lo, hi
	if finite(e.Lower) {
		low, p.HasBand = *e.Lower, true
	}
	if finite(e.Upper) {
		high, p.HasBand = *e.Upper, true
	}
	if low > high {
		p.HasBand = false
	}
	if p.HasBand {
		p.BandY, p.BandH = y(high), max(1, y(low)-y(high))
	}
	if p.HasExpected = finite(e.Expected); p.HasExpected {
		p.ExpectedY = y(*e.Expected)
	}
	if first < 0 && last > 0 {
		p.OnsetX, p.HasOnset = x(0), true
	}
	if last > first {
		p.From, p.To = signed(first), signed(last)
	}
	var line strings.Builder
	for _, s := range samples {
		d := dot{X: x(s.S), Y: y(s.V), Out: p.HasBand && (s.V < low || s.V > high), Title: axis(s.V, e.Unit)}
		if last > first {
			d.Title += " at " + signed(s.S)
		}
		p.Dots = append(p.Dots, d)
		fmt.Fprintf(&line, "%.1f,%.1f ", d.X, d.Y)
	}
	if len(samples) > 1 {
		p.Line = strings.TrimSpace(line.String())
	}
	p.Text = sentence(e)
	return p
}

func axis(v float64, unit string) string {
	out := fmt.Sprintf("%.4g", v)
	if unit != "" && unit != "1" {
		out += " " + unit
	}
	return out
}

func signed(s float64) string {
	if s < 0 {
		return "−" + seconds(-s)
	}
	return "+" + seconds(s)
}

// sentence says in a sentence what was expected and what was seen.
func sentence(e event.Evidence) string {
	var parts []string
	if finite(e.Value) {
		parts = append(parts, "saw "+axis(*e.Value, e.Unit))
	}
	for _, b := range []struct {
		is string
		v  *float64
	}{{"expected", e.Expected}, {"at least", e.Lower}, {"at most", e.Upper}} {
		if finite(b.v) {
			parts = append(parts, b.is+" "+axis(*b.v, e.Unit))
		}
	}
	if !finite(e.Expected) && !finite(e.Lower) && !finite(e.Upper) { // a code, and not a measurement
		return ""
	}
	out := strings.Join(parts, ", ")
	if e.Signal != "" {
		out = e.Signal + ": " + out
	}
	if e.WindowS > 0 {
		out += ", over " + seconds(e.WindowS)
	}
	if e.Baseline != "" {
		out += ", compared with " + e.Baseline
	}
	return out
}
