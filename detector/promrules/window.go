package promrules

import (
	"context"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// WindowCounts is what a window holds and what it did not take.
type WindowCounts struct {
	Series   int
	Samples  int
	Refused  int64 // samples of a new series beyond the bound
	Late     int64 // samples that were not later than the last of their series
	Replaced int64 // samples that fell out before their time, since their series came too often
}

// Window keeps the newest samples of bounded many series. It may be used by many goroutines at once.
type Window struct {
	reach     int64 // ms
	maxSeries int
	perSeries int

	mu     sync.RWMutex
	byHash map[uint64][]*windowSeries // label sets of one hash
	byName map[string][]*windowSeries
	counts WindowCounts
}

type windowSeries struct {
	labels  labels.Labels
	samples samples // by time; the part before head is free
	head    int
}

// NewWindow makes a window that reaches back so far and holds at most so many series, and so many samples of each.
func NewWindow(reach time.Duration, maxSeries, perSeries int) *Window {
	return &Window{
		reach: reach.Milliseconds(), maxSeries: maxSeries, perSeries: perSeries,
		byHash: map[uint64][]*windowSeries{}, byName: map[string][]*windowSeries{},
	}
}

// Append takes one sample; l must not be changed afterwards. t is in milliseconds since 1970. A sample that is not later than the
// last of its series, or of a series beyond the bound, is counted and left out: a stuck sender must not push out the others. One that is older than
// the whole window means that its clock was set back, and starts the series anew.
func (w *Window) Append(l labels.Labels, t int64, v float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.series(l)
	if s == nil {
		w.counts.Refused++
		return
	}
	if n := len(s.samples); n > s.head && t <= s.samples[n-1].t {
		if t > s.samples[n-1].t-w.reach {
			w.counts.Late++
			return
		}
		w.counts.Samples -= n - s.head // the clock was set back: what was before is of another time
		s.samples, s.head = s.samples[:0], 0
	}
	if len(s.samples)-s.head >= w.perSeries {
		s.head++
		w.counts.Samples--
		w.counts.Replaced++
	}
	if s.head > 16 && s.head > len(s.samples)/2 {
		s.samples = append(s.samples[:0], s.samples[s.head:]...)
		s.head = 0
	}
	s.samples = append(s.samples, sample{t, v})
	w.counts.Samples++
}

func (w *Window) series(l labels.Labels) *windowSeries {
	h := l.Hash()
	for _, s := range w.byHash[h] {
		if labels.Equal(s.labels, l) {
			return s
		}
	}
	if w.counts.Series >= w.maxSeries {
		return nil
	}
	s := &windowSeries{labels: l}
	w.byHash[h] = append(w.byHash[h], s)
	name := l.Get(model.MetricNameLabel)
	w.byName[name] = append(w.byName[name], s)
	w.counts.Series++
	return s
}

// Sweep drops what lies farther back than the window reaches, and series that have nothing left.
func (w *Window) Sweep(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := now.UnixMilli() - w.reach
	for h, same := range w.byHash {
		for _, s := range same {
			for s.head < len(s.samples) && s.samples[s.head].t < before {
				s.head++
				w.counts.Samples--
			}
		}
		if kept := slices.DeleteFunc(same, (*windowSeries).empty); len(kept) == 0 {
			delete(w.byHash, h)
		} else {
			w.byHash[h] = kept
		}
	}
	w.counts.Series = 0
	for name, all := range w.byName {
		kept := slices.DeleteFunc(all, (*windowSeries).empty)
		if w.byName[name] = kept; len(kept) == 0 {
			delete(w.byName, name)
		}
		w.counts.Series += len(kept)
	}
}

func (s *windowSeries) empty() bool { return s.head == len(s.samples) }

// Counts reports the window's state.
func (w *Window) Counts() WindowCounts {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.counts
}

// Querier gives a view of the samples from mint to maxt, both in milliseconds and included.
func (w *Window) Querier(mint, maxt int64) (storage.Querier, error) {
	return &querier{w: w, mint: mint, maxt: maxt}, nil
}

type querier struct {
	w          *Window
	mint, maxt int64
}

// Select copies what matches: an evaluation sees one state, and samples may arrive meanwhile.
func (q *querier) Select(_ context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	mint, maxt := q.mint, q.maxt
	if hints != nil {
		mint, maxt = max(mint, hints.Start), min(maxt, hints.End)
	}
	var out seriesList
	q.w.each(matchers, func(s *windowSeries) {
		live := s.samples[s.head:]
		from := sort.Search(len(live), func(i int) bool { return live[i].t >= mint })
		to := sort.Search(len(live), func(i int) bool { return live[i].t > maxt })
		if from < to {
			out.all = append(out.all, &storedSeries{labels: s.labels, samples: slices.Clone(live[from:to])})
		}
	})
	slices.SortFunc(out.all, func(a, b *storedSeries) int { return labels.Compare(a.labels, b.labels) })
	return &out
}

// each calls f with the series that match; the window is locked for reading meanwhile.
func (w *Window) each(matchers []*labels.Matcher, f func(*windowSeries)) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	visit := func(all []*windowSeries) {
		for _, s := range all {
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
				f(s)
			}
		}
	}
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			visit(w.byName[m.Value])
			return
		}
	}
	for _, all := range w.byName {
		visit(all)
	}
}

func (q *querier) LabelValues(_ context.Context, name string, _ *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return q.collect(matchers, func(l labels.Labels, add func(string)) {
		if v := l.Get(name); v != "" {
			add(v)
		}
	}), nil, nil
}

func (q *querier) LabelNames(_ context.Context, _ *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return q.collect(matchers, func(l labels.Labels, add func(string)) { l.Range(func(l labels.Label) { add(l.Name) }) }), nil, nil
}

func (q *querier) collect(matchers []*labels.Matcher, from func(labels.Labels, func(string))) []string {
	var out []string
	q.w.each(matchers, func(s *windowSeries) { from(s.labels, func(v string) { out = append(out, v) }) })
	slices.Sort(out)
	return slices.Compact(out)
}

func (*querier) Close() error { return nil }
