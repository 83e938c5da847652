package promrules

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

func TestTheWindowIsBounded(t *testing.T) {
	w := NewWindow(time.Minute, 100, 10)
	for i := range 1000 {
		l := labels.FromStrings("__name__", "m", "i", fmt.Sprint(i))
		for s := range 50 {
			w.Append(l, int64(s*1000), 1)
		}
	}
	c := w.Counts()
	if c.Series != 100 || c.Samples != 1000 || c.Refused != 900*50 || c.Replaced != 100*40 {
		t.Errorf("counts %+v", c)
	}
	w.Sweep(time.UnixMilli(49_000).Add(2 * time.Minute))
	if c := w.Counts(); c.Series != 0 || c.Samples != 0 || len(w.byName)+len(w.byHash) != 0 {
		t.Errorf("after all is old: %+v", c)
	}
	w.Append(labels.FromStrings("__name__", "m", "i", "later"), 200_000, 1)
	if c := w.Counts(); c.Series != 1 {
		t.Errorf("no room for a new series after the sweep: %+v", c)
	}
}

func TestALateOrDoubleSampleChangesNothing(t *testing.T) {
	w := NewWindow(time.Minute, 10, 10)
	l := labels.FromStrings("__name__", "m")
	for _, at := range []int64{1000, 2000, 2000, 1500, 3000} {
		w.Append(l, at, float64(at))
	}
	q, _ := w.Querier(0, 10_000)
	set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	var got []int64
	for set.Next() {
		it := set.At().Iterator(nil)
		for it.Next() != 0 {
			at, _ := it.At()
			got = append(got, at)
		}
	}
	if fmt.Sprint(got) != "[1000 2000 3000]" || w.Counts().Late != 2 {
		t.Errorf("samples at %v, counts %+v", got, w.Counts())
	}
}

func TestMatchersOfEveryKindSelect(t *testing.T) {
	w := NewWindow(time.Minute, 10, 10)
	w.Append(labels.FromStrings("__name__", "m", "gpu", "0"), 1, 0)
	w.Append(labels.FromStrings("__name__", "m", "gpu", "1"), 1, math.NaN())
	w.Append(labels.FromStrings("__name__", "n", "gpu", "1"), 1, math.Inf(1))
	for _, c := range []struct {
		kind        labels.MatchType
		name, value string
		want        int
	}{
		{labels.MatchEqual, "__name__", "m", 2},
		{labels.MatchRegexp, "__name__", "m|n", 3},
		{labels.MatchEqual, "gpu", "1", 2},
		{labels.MatchNotEqual, "gpu", "1", 1},
		{labels.MatchEqual, "absent", "", 3},
		{labels.MatchNotRegexp, "__name__", "m.*", 1},
	} {
		q, _ := w.Querier(0, 10)
		set, n := q.Select(context.Background(), false, nil, labels.MustNewMatcher(c.kind, c.name, c.value)), 0
		for set.Next() {
			n++
		}
		if n != c.want {
			t.Errorf("%s %v %s: %d series, want %d", c.name, c.kind, c.value, n, c.want)
		}
	}
}

// FuzzRuleFile: any text is refused with an error or runs within its bounds.
func FuzzRuleFile(f *testing.F) {
	f.Add([]byte(hot))
	f.Add([]byte("groups: [{name: g, rules: [{alert: A, expr: 'sum by (node) (rate(a[1m])) > 0', labels: {x: '{{ $value }}'}}]}]"))
	f.Add([]byte("groups: [{name: g, limit: -1, interval: 1ms, rules: [{record: r, expr: 'a'}, {alert: B, expr: 'r[5m:1s]'}]}]"))
	f.Add([]byte("groups: &a [*a]"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(dir, "f.yaml")
		if os.WriteFile(file, text, 0o600) != nil {
			t.Skip()
		}
		r, err := New(Options{Files: []string{file}, Interval: time.Second, MaxSeries: 100, PerSeries: 10})
		if err != nil {
			return
		}
		defer r.Close()
		for i := range 3 {
			now := start.Add(time.Duration(i) * time.Minute)
			r.Append(labels.FromStrings("__name__", "a", "node", "n"), now.UnixMilli(), float64(i))
			r.Evaluate(context.Background(), now)
		}
		if _, w := r.Counts(); w.Series > 100 {
			t.Errorf("%d series", w.Series)
		}
	})
}

// BenchmarkEvaluate: 20 rules over 1,000 GPUs, a sample of each every 15 s for 15 minutes.
func BenchmarkEvaluate(b *testing.B) {
	rules := "groups:\n- name: g\n  rules:\n"
	for i := range 20 {
		rules += fmt.Sprintf("  - {alert: A%d, expr: 'avg_over_time(m%d[5m]) > 100 + 10 * stddev_over_time(m%d[10m])'}\n", i, i%4, i%4)
	}
	file := filepath.Join(b.TempDir(), "r.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		b.Fatal(err)
	}
	r, err := New(Options{Files: []string{file}})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for m := range 4 {
		for g := range 1000 {
			l := labels.FromStrings("__name__", fmt.Sprint("m", m), "node", "n", "gpu", fmt.Sprint(g))
			for s := range 60 {
				r.Append(l, start.Add(time.Duration(s)*15*time.Second).UnixMilli(), float64(s%7))
			}
		}
	}
	now := start.Add(15 * time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		for _, g := range r.groups {
			g.last = time.Time{}
		}
		r.Evaluate(context.Background(), now)
	}
}
