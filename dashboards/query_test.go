package dashboards

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
)

// boardFile is what the tests read of a board's JSON.
type boardFile struct {
	UID, Title    string
	SchemaVersion int
	Time          struct{ From string }
	Panels        []panelFile
	Links         []linkFile
	Templating    struct{ List []variableFile }
	Annotations   struct {
		List []struct{ Name, Expr string }
	}
}

type panelFile struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ UID string }
	Targets                  []targetFile
	FieldConfig              struct {
		Defaults struct {
			Unit, NoValue string
			Links         []linkFile
		}
	}
	Links   []linkFile
	Options struct {
		Legend struct {
			ShowLegend bool
		}
	}
}

type targetFile struct {
	Expr, LegendFormat string
	Instant            bool
	Datasource         struct{ UID string }
}

type linkFile struct{ Title, URL string }

type variableFile struct {
	Name, Type, Definition string
	IncludeAll             bool
	AllValue               string
}

func decoded(t testing.TB, raw []byte) (b boardFile) {
	t.Helper()
	if err := json.Unmarshal(raw, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func shipped(t testing.TB) []Board {
	t.Helper()
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 10 {
		t.Fatalf("%d boards, want 10", len(all))
	}
	return all
}

// chosen are the values of a board's variables, as Grafana fills them in.
var chosen = strings.NewReplacer("$cluster", ".*", "$node", ".*", "$gpu", ".*", "$namespace", ".*", "$job", ".*", "$__rate_interval", "8m", "$__range", "6h")

// chosenOfTenant are those of the tenant's board.
var chosenOfTenant = strings.NewReplacer("$cluster", ".*", "$namespace", "serve|train", "$job", ".*", "$__rate_interval", "8m")

func (b *boardFile) fill(expr string) string {
	if b.UID == "pitcrew-tenant" {
		return chosenOfTenant.Replace(expr)
	}
	return chosen.Replace(expr)
}

// Queries that return nothing over the week, and why. A row that is not needed fails the test.
var mayBeEmpty = map[string]string{}

var labelValues = regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`)

func TestEachQueryOfABoardReturnsDataOverASyntheticWeek(t *testing.T) {
	s := filledWeek(t)
	queries, needed := 0, map[string]bool{}
	check := func(what, expr string, span, step time.Duration, wanted ...string) {
		queries++
		m, err := s.Range(expr, end.Add(-span), end, step)
		if err != nil {
			t.Errorf("%s: %s: %v", what, expr, err)
			return
		}
		if len(m) == 0 {
			if mayBeEmpty[what] == "" {
				t.Errorf("%s: no data: %s", what, expr)
			}
			needed[what] = true
			return
		}
		for _, label := range wanted {
			for _, x := range m {
				if x.Metric.Get(label) == "" {
					t.Errorf("%s: a legend or column names %s, which %s has not", what, label, x.Metric)
					break
				}
			}
		}
	}
	for _, raw := range shipped(t) {
		b := decoded(t, raw.JSON)
		span, err := time.ParseDuration(strings.TrimPrefix(strings.ReplaceAll(b.Time.From, "7d", "168h"), "now-"))
		if err != nil {
			t.Fatalf("%s: %v", b.UID, err)
		}
		for _, p := range b.Panels {
			for _, q := range p.Targets {
				var wanted []string
				for _, m := range inLegend.FindAllStringSubmatch(q.LegendFormat, -1) {
					wanted = append(wanted, m[1])
				}
				for _, l := range p.FieldConfig.Defaults.Links {
					for _, m := range inLink.FindAllStringSubmatch(l.URL, -1) {
						wanted = append(wanted, m[1])
					}
				}
				check(b.UID+": "+p.Title, b.fill(q.Expr), span, span/120, wanted...)
			}
		}
		for _, v := range b.Templating.List {
			if v.Type == "query" {
				m := labelValues.FindStringSubmatch(v.Definition)
				if m == nil {
					t.Errorf("%s: variable %s asks %q", b.UID, v.Name, v.Definition)
					continue
				}
				check(b.UID+": variable "+v.Name, "group by ("+m[2]+") ("+b.fill(m[1])+")", time.Hour, time.Minute, m[2])
			}
		}
		for _, a := range b.Annotations.List {
			check(b.UID+": annotation "+a.Name, b.fill(a.Expr), 168*time.Hour, 2*scrape)
		}
	}
	for what := range mayBeEmpty {
		if !needed[what] {
			t.Errorf("%s returns data, remove its row", what)
		}
	}
	if queries < 200 {
		t.Errorf("only %d queries", queries)
	}
	t.Logf("%d queries", queries)
}

var (
	inLegend = regexp.MustCompile(`\{\{([a-zA-Z_]+)\}\}`)
	inLink   = regexp.MustCompile(`\$\{__(?:data\.fields|field\.labels)\.([a-zA-Z_]+)\}`)
)

func TestTheTenantsBoardAsksForOneNamespaceOnly(t *testing.T) {
	b, err := Find("tenant")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range decoded(t, b.JSON).Panels {
		for _, q := range p.Targets {
			if strings.Count(q.Expr, `namespace=~"$namespace"`) != strings.Count(q.Expr, `cluster=~"$cluster"`) {
				t.Errorf("%s: a selector without the namespace: %s", p.Title, q.Expr)
			}
		}
	}
	for _, v := range decoded(t, b.JSON).Templating.List {
		if v.Name == "namespace" && v.IncludeAll {
			t.Error("the tenant's board lets a reader choose all namespaces")
		}
	}
}
