package anomaly

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/detector/series"
	"github.com/pitcrew/pitcrew/event"
)

func FuzzLabelsOfAnySizeAreBounded(f *testing.F) {
	f.Add("GPU-1", "u-1", "step", int64(0), int64(0), int64(1), 1.0)
	f.Add("", "", "", int64(-1), int64(-1), int64(math.MaxInt64), math.NaN())
	f.Add(strings.Repeat("x", 300), "\\x00\\xff", "\"}", int64(math.MaxInt64), int64(math.MinInt64), int64(math.MinInt64), math.Inf(-1))
	f.Fuzz(func(t *testing.T, gpu, pod, value string, rank, attempt, at int64, v float64) {
		e, err := New(Options{Cluster: "c", Node: "n1", BootID: "b", MaxSeries: 128})
		if err != nil {
			t.Fatal(err)
		}
		now := t0
		for i := range 60 {
			now = now.Add(time.Second)
			for j := range Catalogue {
				m := Lookup(Catalogue[j].Metric)
				l := Labels{GPU: gpu, PodUID: pod, Value: value, Rank: rank + int64(i/20), Attempt: attempt + int64(i/30)}
				e.Put(m, l, now.UnixNano(), v*float64(i%7))
				if i == 30 {
					e.Put(m, l, at, v)
				}
			}
			for _, x := range e.End(now) {
				if _, err := event.Encode(x.Event); err != nil {
					t.Fatalf("%s: %v", x.Key, err)
				}
			}
		}
		if c := e.Counts(); c.Series > 128 || c.Entities > 128 {
			t.Fatalf("counts %+v", c)
		}
		if _, err := e.Restore(e.Snapshot()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestEveryMetricOfTheCatalogueIsOneThatAReceiverDeclares(t *testing.T) {
	declared := map[string]string{} // name → its block
	for _, r := range []string{"torchreceiver", "dcgmreceiver", "fabricreceiver"} {
		raw, err := os.ReadFile(filepath.Join("../../receivers", r, "metadata.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		name := ""
		for line := range strings.Lines(string(raw)) {
			if m := regexp.MustCompile(`^  ([a-z][a-z0-9_.]+):`).FindStringSubmatch(line); m != nil {
				name = m[1]
			}
			declared[name] += line
		}
	}
	for _, s := range Catalogue {
		block, ok := declared[s.Metric]
		switch {
		case !ok:
			t.Errorf("%s: no receiver declares it", s.Metric)
		case s.Attr != "" && !strings.Contains(block, s.Attr):
			t.Errorf("%s: has no attribute %s", s.Metric, s.Attr)
		case s.Attr != "" && !strings.Contains(strings.Join([]string{block, declared[s.Attr], declared["pitcrew.phase"]}, ""), s.Value):
			t.Errorf("%s: %s is never %q", s.Metric, s.Attr, s.Value)
		case len(others(block, s.Attr)) > 0:
			t.Errorf("%s: %q tell series of one GPU or rank apart, and the catalogue does not know them", s.Metric, others(block, s.Attr))
		case s.Name != "" && !regexp.MustCompile(`unit: "?`+regexp.QuoteMeta(s.Unit)+`"?\n`).MatchString(block):
			t.Errorf("%s: its unit is not %q", s.Metric, s.Unit)
		}
	}
}

// others are the attributes of a metric that are neither the entity's own nor the one given. A rank counts either samples or tokens.
func others(block, own string) (out []string) {
	list := regexp.MustCompile(`attributes: \[([^]]*)\]`).FindStringSubmatch(block)
	if list == nil {
		return nil
	}
	known := []string{
		"hw.id", "hw.pci", "hw.type", "hw.parent", "pitcrew.mig", "pitcrew.mig.profile", "k8s.pod.uid", "pitcrew.rank", "pitcrew.local_rank",
		"pitcrew.world_size", "pitcrew.attempt", "pitcrew.role", "pitcrew.unit", "hw.name", "pitcrew.fabric.layer", own,
	}
	for a := range strings.SplitSeq(list[1], ",") {
		if a = strings.TrimSpace(a); !slices.Contains(known, a) {
			out = append(out, a)
		}
	}
	return out
}

func TestNamesAreUniqueAndPatternsAskOnlyForFamiliesThatCanSpeak(t *testing.T) {
	families, certain, names := map[Family]bool{}, map[Family]bool{}, map[string]bool{}
	for _, s := range Catalogue {
		if s.Name == "" {
			continue
		}
		if names[s.Name] {
			t.Errorf("%s is there twice", s.Name)
		}
		names[s.Name] = true
		families[s.Family] = families[s.Family] || !s.Info
		certain[s.Family] = certain[s.Family] || s.Certain != 0
	}
	if len(Catalogue) > rowsMost {
		t.Errorf("%d rows; there is room for %d", len(Catalogue), rowsMost)
	}
	for _, p := range patterns {
		if names[p.Name] {
			t.Errorf("%s is a signal and a pattern", p.Name)
		}
		for _, c := range p.clauses {
			for _, n := range c.needs {
				if !families[n.family] || n.certain && !certain[n.family] {
					t.Errorf("%s asks for %v, which never speaks", p.Name, n)
				}
			}
		}
	}
}

func TestTheEquivalentQueriesAreOnesThatPrometheusParses(t *testing.T) {
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range Catalogue {
		s := &Catalogue[i]
		en := &entity{key: entityKey{s.About, "id \"\\\n\x01é", 3}}
		tr := &track{ent: en, row: row(i), every: 1}
		queries := []string{e.selector(tr, s), e.selector(tr, s) + " > 1"}
		for _, w := range []series.What{series.Spike, series.Drift, series.Stall, series.Flatline} {
			queries = append(queries, e.promql(tr, s, &series.Finding{What: w, Value: 2, Expected: 1, Lower: 0.5, Upper: 1.5}))
		}
		for _, q := range queries {
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(q); err != nil {
				t.Errorf("%s: %s: %v", s.Name, q, err)
			}
		}
	}
}
