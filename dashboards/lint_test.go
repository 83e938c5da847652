package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/rules/metrics"
	"github.com/pitcrew/pitcrew/rules/ruletest"
)

const (
	maxPanels = 24
	slowest   = 30 * time.Second // scrape interval of dcgm-exporter
	maxSeries = 50               // that a legend may name
)

// current are the panel plugins that Grafana has and does not deprecate. graph, singlestat, table-old and the Angular ones are not among them.
var current = []string{"stat", "timeseries", "table", "heatmap", "state-timeline", "status-history", "bargauge", "text", "logs", "barchart", "histogram"}

// few are labels with few values, by which a legend stays short.
var few = []string{"outcome", "state", "reason", "policy", "result", "where", "status", "severity", "area", "alertname", "pitcrew_phase", "pitcrew_unit", "pitcrew_violation", "pitcrew_throttle_reason",
	"pitcrew_gpu_health_system", "network_io_direction", "error_type", "pitcrew_fabric_signal", "modelName", "job_name"}

// wide are exporters with a series for each GPU, port, pod or rank: a board reads their metrics for chosen nodes or namespaces alone.
var wide = []string{"agent", "dcgm", "collector", "kube-state-metrics", "node_exporter", "kubelet", "vllm", "triton"}

// exporterOf reads rules/metrics.tsv, the list of metrics that exist.
func exporterOf(t testing.TB) map[string]string {
	t.Helper()
	table, err := metrics.Table("..")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, rows := range table {
		out[name] = rows[len(rows)-1].Exporter
	}
	recorded, err := os.ReadFile("../rules/prometheus/recording.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^  - record: (\S+)$`).FindAllStringSubmatch(string(recorded), -1) {
		out[m[1]] = "recording"
	}
	return out
}

var plugged = func() bool { plugins.RegisterDefaultPlugins(); return true }()

// lint lists what is wrong with a board.
func lint(t testing.TB, raw []byte) (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	strict := dashboard.Dashboard{}
	if err := strict.UnmarshalJSONStrict(raw); err != nil && err.Error() != "" { // an empty list of faults is an error too
		bad("strict decoding: %v", err)
	}
	b := decoded(t, raw)
	known := exporterOf(t)
	uids := map[string]bool{}
	for _, x := range shipped(t) {
		uids[x.UID] = true
	}
	panels, ids := 0, map[int]bool{}
	var placed []panelFile
	for _, p := range b.Panels {
		if ids[p.ID] {
			bad("%s: id %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, o := range placed {
			if p.GridPos.X < o.GridPos.X+o.GridPos.W && o.GridPos.X < p.GridPos.X+p.GridPos.W && p.GridPos.Y < o.GridPos.Y+o.GridPos.H && o.GridPos.Y < p.GridPos.Y+p.GridPos.H {
				bad("%s lies over %s", p.Title, o.Title)
			}
		}
		placed = append(placed, p)
		if p.Type == "row" {
			continue
		}
		panels++
		if !slices.Contains(current, p.Type) {
			bad("%s: deprecated or unknown panel %s", p.Title, p.Type)
		}
		if p.Title == "" || p.Description == "" {
			bad("%q: no title or description", p.Title)
		}
		if p.FieldConfig.Defaults.Unit == "" {
			bad("%s: no unit", p.Title)
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			bad("%s: no query, or not of the chosen data source", p.Title)
		}
		for _, q := range p.Targets {
			for _, f := range lintQuery(q.Expr, known, p.Type == "timeseries" && p.Options.Legend.ShowLegend) {
				bad("%s: %s: %s", p.Title, f, q.Expr)
			}
		}
		for _, l := range slices.Concat(p.Links, p.FieldConfig.Defaults.Links) {
			for _, f := range lintLink(l.URL, uids) {
				bad("%s: %s", p.Title, f)
			}
		}
	}
	if panels > maxPanels {
		bad("%d panels, at most %d", panels, maxPanels)
	}
	if !slices.ContainsFunc(b.Annotations.List, func(a struct{ Name, Expr string }) bool {
		return strings.Contains(a.Expr, "pitcrew_incidents_open")
	}) {
		bad("no annotations of incidents")
	}
	for _, a := range b.Annotations.List {
		for _, f := range lintQuery(a.Expr, known, false) {
			bad("annotation %s: %s", a.Name, f)
		}
	}
	for _, v := range b.Templating.List {
		if v.IncludeAll && v.AllValue == "" {
			bad("variable %s: All without a value lists every value in the query", v.Name)
		}
	}
	return faults
}

func lintQuery(text string, known map[string]string, legend bool) (faults []string) {
	expr, err := ruletest.PromQL.ParseExpr(strings.NewReplacer("$__rate_interval", "8m", "$__range", "6h").Replace(text))
	if err != nil {
		return []string{err.Error()}
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			var by []string
			for _, m := range n.LabelMatchers {
				by = append(by, m.Name+m.Type.String()+m.Value)
			}
			has := func(s string) bool { return slices.Contains(by, s) }
			if !has("cluster=~$cluster") {
				faults = append(faults, n.Name+" without the cluster")
			}
			exporter := known[n.Name]
			switch {
			case exporter == "":
				faults = append(faults, "unknown metric "+n.Name)
			case slices.Contains(wide, exporter) && !slices.ContainsFunc(by, func(s string) bool {
				return strings.HasSuffix(s, "=~$node") || strings.HasSuffix(s, "=~$namespace") || strings.HasPrefix(s, "daemonset=")
			}):
				faults = append(faults, "expensive: every series of "+n.Name+"; record it")
			}
		case *parser.MatrixSelector:
			if n.Range < 4*slowest {
				faults = append(faults, fmt.Sprintf("a range of %s is less than four scrapes", n.Range))
			}
			if !strings.Contains(text, "$__rate_interval") {
				faults = append(faults, "a range other than $__rate_interval")
			}
		case *parser.SubqueryExpr:
			faults = append(faults, "expensive: a subquery; record it")
		}
		return nil
	})
	if legend && !bounded(expr) {
		faults = append(faults, fmt.Sprintf("unbounded legend: use topk of at most %d or group by one of %v", maxSeries, few))
	}
	return faults
}

// bounded says whether the number of results is limited by what the expression is.
func bounded(e parser.Expr) bool {
	switch e := e.(type) {
	case *parser.AggregateExpr:
		if e.Op == parser.TOPK || e.Op == parser.BOTTOMK {
			n, ok := e.Param.(*parser.NumberLiteral)
			return ok && n.Val <= maxSeries
		}
		return !e.Without && !slices.ContainsFunc(e.Grouping, func(l string) bool { return !slices.Contains(few, l) })
	case *parser.NumberLiteral:
		return false
	case *parser.BinaryExpr:
		return bounded(e.LHS) || bounded(e.RHS)
	case *parser.ParenExpr:
		return bounded(e.Expr)
	case *parser.Call:
		return slices.ContainsFunc(e.Args, func(a parser.Expr) bool { return bounded(a) && a.Type() == parser.ValueTypeVector })
	}
	return false
}

var (
	toBoard   = regexp.MustCompile(`^/d/([a-z-]+)`)
	toRunbook = regexp.MustCompile(`^\$\{runbooks:raw\}([A-Za-z0-9]+)\.md$`)
)

func lintLink(url string, uids map[string]bool) []string {
	if m := toBoard.FindStringSubmatch(url); m != nil && !uids[m[1]] {
		return []string{"a link leads to the board " + m[1] + ", which is not there"}
	}
	if m := toRunbook.FindStringSubmatch(url); m != nil {
		if _, err := os.Stat(filepath.Join("../docs/runbooks", m[1]+".md")); err != nil {
			return []string{"a link leads to the runbook " + m[1] + ", which is not there"}
		}
	}
	return nil
}

func TestTheBoardsPassTheLinter(t *testing.T) {
	for _, b := range shipped(t) {
		for _, f := range lint(t, b.JSON) {
			t.Errorf("%s: %s", b.UID, f)
		}
	}
}

// Each check is seen to fail once.
func TestTheLinterFindsEachFault(t *testing.T) {
	b, err := Find("fleet")
	if err != nil {
		t.Fatal(err)
	}
	swap := func(old, by string) []byte {
		if !bytes.Contains(b.JSON, []byte(old)) {
			t.Fatalf("the board has no %s", old)
		}
		return bytes.Replace(b.JSON, []byte(old), []byte(by), 1)
	}
	var many map[string]any
	if err := json.Unmarshal(b.JSON, &many); err != nil {
		t.Fatal(err)
	}
	list := many["panels"].([]any)
	many["panels"] = slices.Concat(list, list, list)
	tooMany, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	const power = `sum(cluster:pitcrew_gpu_power_watts:sum{cluster=~\"$cluster\"})`
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"unit":            {swap(`"unit": "watt"`, `"unit": ""`), "no unit"},
		"description":     {swap(`"description": "Power of all GPUs."`, `"description": ""`), "no title or description"},
		"too many":        {tooMany, "panels, at most 24"},
		"id":              {tooMany, "is taken"},
		"overlap":         {tooMany, "lies over"},
		"cluster":         {swap(power, `sum(cluster:pitcrew_gpu_power_watts:sum)`), "without the cluster"},
		"unknown metric":  {swap(power, `sum(pitcrew_gpu_pwoer{cluster=~\"$cluster\"})`), "unknown metric pitcrew_gpu_pwoer"},
		"expensive":       {swap(power, `sum(DCGM_FI_DEV_POWER_USAGE{cluster=~\"$cluster\"})`), "expensive: every series"},
		"subquery":        {swap(power, `max_over_time(sum(cluster:pitcrew_gpu_power_watts:sum{cluster=~\"$cluster\"})[1h:1m])`), "expensive: a subquery"},
		"short rate":      {swap(power, `sum(rate(pitcrew_lost_steps_total{cluster=~\"$cluster\"}[1m]))`), "less than four scrapes"},
		"own range":       {swap(power, `sum(rate(pitcrew_lost_steps_total{cluster=~\"$cluster\"}[1h]))`), "a range other than"},
		"legend":          {swap(power, `cluster:pitcrew_gpu_power_watts:sum{cluster=~\"$cluster\"}`), "unbounded legend"},
		"long topk":       {swap(power, `topk(500, cluster:pitcrew_gpu_power_watts:sum{cluster=~\"$cluster\"})`), "unbounded legend"},
		"PromQL":          {swap(power, `sum(`), "parse error"},
		"deprecated":      {swap(`"type": "heatmap"`, `"type": "graph"`), "deprecated or unknown panel graph"},
		"unknown field":   {swap(`"graphTooltip"`, `"graphTolltip"`), "strict decoding"},
		"data source":     {bytes.ReplaceAll(b.JSON, []byte(`"uid": "${datasource}"`), []byte(`"uid": "prom"`)), "not of the chosen data source"},
		"lost board":      {swap(`/d/pitcrew-node?`, `/d/pitcrew-nodes?`), "the board pitcrew-nodes, which is not there"},
		"lost runbook":    {swap(`${runbooks:raw}GPUMissing.md`, `${runbooks:raw}GPUMisisng.md`), "the runbook GPUMisisng, which is not there"},
		"no annotations":  {bytes.ReplaceAll(b.JSON, []byte("pitcrew_incidents_open"), []byte("pitcrew_incidents_acting")), "no annotations of incidents"},
		"All without one": {swap(`"allValue": ".*"`, `"allValue": ""`), "All without a value"},
	} {
		if got := strings.Join(lint(t, c.raw), "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%s: the linter does not report %q: %s", name, c.want, got)
		}
	}
}
