package dashboards

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

var (
	openMetrics = flag.String("openmetrics", "", "write the last part of the synthetic week to this file, so that it ends now, for promtool tsdb create-blocks-from openmetrics")
	openFor     = flag.Duration("openmetrics-for", 48*time.Hour, "how much of it")
)

// With it, boards are looked at on a Prometheus: docs/dashboards.md.
func TestTheWeekIsWrittenForAPrometheus(t *testing.T) {
	if *openMetrics == "" {
		t.Skip("-openmetrics names no file")
	}
	s := filledWeek(t)
	file, err := os.Create(*openMetrics)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := bufio.NewWriter(file)
	shift := time.Now().Truncate(time.Minute).Sub(end)
	for _, name := range s.Names() {
		fmt.Fprintf(w, "# TYPE %s unknown\n", name)
		for all := s.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, name)); all.Next(); {
			x := all.At()
			var set []string
			x.Labels().Range(func(l labels.Label) {
				if l.Name != labels.MetricName {
					set = append(set, fmt.Sprintf("%s=%q", l.Name, l.Value))
				}
			})
			it := x.Iterator(nil)
			for it.Next() == chunkenc.ValFloat {
				if at, v := it.At(); at >= end.Add(-*openFor).UnixMilli() {
					fmt.Fprintf(w, "%s{%s} %g %.3f\n", name, strings.Join(set, ","), v, float64(at+shift.Milliseconds())/1000)
				}
			}
		}
	}
	fmt.Fprintln(w, "# EOF")
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}
