package promrules

import (
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// sample is one float value. Native histograms are not kept.
type sample struct {
	t int64 // ms since 1970
	v float64
}

func (s *sample) T() int64                    { return s.t }
func (*sample) ST() int64                     { return 0 }
func (s *sample) F() float64                  { return s.v }
func (*sample) H() *histogram.Histogram       { return nil }
func (*sample) FH() *histogram.FloatHistogram { return nil }
func (*sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s *sample) Copy() chunks.Sample         { c := *s; return &c }

type samples []sample

// Get gives a pointer, which as an interface costs no allocation.
func (s samples) Get(i int) chunks.Sample { return &s[i] }
func (s samples) Len() int                { return len(s) }

// storedSeries is a copy of a part of a series, as the query engine reads it.
type storedSeries struct {
	labels  labels.Labels
	samples samples
}

func (s *storedSeries) Labels() labels.Labels { return s.labels }

func (s *storedSeries) Iterator(chunkenc.Iterator) chunkenc.Iterator {
	return storage.NewListSeriesIterator(s.samples)
}

type seriesList struct {
	all []*storedSeries
	n   int
}

func (l *seriesList) Next() bool                      { l.n++; return l.n <= len(l.all) }
func (l *seriesList) At() storage.Series              { return l.all[l.n-1] }
func (*seriesList) Err() error                        { return nil }
func (*seriesList) Warnings() annotations.Annotations { return nil }
