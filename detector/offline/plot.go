package offline

import (
	"math"

	"github.com/pitcrew/pitcrew/detector/series"
)

// chart collects what a picture shows: value, band, findings and told changes of each series, in bounded memory.
type chart struct {
	on   bool
	list []*chartSeries
	all  int // series of the file
}

type chartSeries struct {
	name, column string
	on           bool
	pts          []chartPoint
	each         int // samples in a point
	last         int // samples in the last point
	found        []chartFinding
	marks        []chartMark
	phase        uint8
	work         uint32
	seen         bool
}

// chartPoint is a stretch of samples: the range of its values and of the band. NaN: there are none.
type chartPoint struct {
	from, to     int64 // ns
	low, high    float64
	lower, upper float64
}

type chartFinding struct {
	from, to int64
	what     string
}

// chartMark is a change that was told.
type chartMark struct {
	t    int64
	work bool // of the workload; else of the phase
}

// maxCharts of one picture. Of a series at most maxPoints, after which two become one, and so many findings and marks.
const (
	maxCharts = 12
	maxPoints = 2048
	maxMarks  = 400
)

func (p *chart) series(name, column string) *chartSeries {
	s := &chartSeries{name: name, column: column, on: p.on && len(p.list) < maxCharts, each: 1}
	p.all++
	if s.on {
		p.list = append(p.list, s)
	}
	return s
}

func (s *chartSeries) add(t int64, v float64, x series.Verdict, told series.Sample) {
	if !s.on {
		return
	}
	if s.seen && len(s.marks) < maxMarks && told.Told {
		if told.Workload != s.work {
			s.marks = append(s.marks, chartMark{t, true})
		} else if told.Phase != s.phase {
			s.marks = append(s.marks, chartMark{t, false})
		}
	}
	s.phase, s.work, s.seen = told.Phase, told.Workload, true
	if math.IsInf(v, 0) {
		v = math.NaN()
	}
	q := chartPoint{t, t, v, v, x.Lower, x.Upper}
	if !x.Known {
		q.lower, q.upper = math.NaN(), math.NaN()
	}
	if n := len(s.pts); n > 0 && s.last < s.each && !math.IsNaN(v) {
		s.pts[n-1] = s.pts[n-1].with(q)
		s.last++
		return
	}
	if len(s.pts) == maxPoints {
		for i := range maxPoints / 2 {
			s.pts[i] = s.pts[2*i].with(s.pts[2*i+1])
		}
		s.pts, s.each = s.pts[:maxPoints/2], 2*s.each
	}
	s.pts, s.last = append(s.pts, q), 1
}

// with joins two neighbours.
func (q chartPoint) with(r chartPoint) chartPoint {
	return chartPoint{q.from, r.to, lesser(q.low, r.low), -lesser(-q.high, -r.high), lesser(q.lower, r.lower), -lesser(-q.upper, -r.upper)}
}

// lesser of two numbers, of which either may be unknown.
func lesser(a, b float64) float64 {
	switch {
	case math.IsNaN(a):
		return b
	case math.IsNaN(b):
		return a
	}
	return min(a, b)
}

func (s *chartSeries) finding(from, to int64, what string) {
	if s.on && len(s.found) < maxMarks {
		s.found = append(s.found, chartFinding{from, to, what})
	}
}
