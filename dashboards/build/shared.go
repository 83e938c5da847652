package build

import (
	"fmt"
	"slices"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// Runbooks is where the pages of alerts are, and Incidents the page or board that lists incidents. The chart replaces both.
const (
	Runbooks  = "https://github.com/pitcrew/pitcrew/blob/main/docs/runbooks/"
	Incidents = "/d/pitcrew-incidents"
)

// Queries of the variables. Each depends on those before it.
var variableQueries = map[variable]struct {
	label, metric, by string
	one               bool // exactly one value
}{
	varCluster:   {"Cluster", `cluster:pitcrew_gpus:count`, "cluster", false},
	varNode:      {"Node", `node:pitcrew_gpu_temperature_celsius:max{` + ofCluster + `}`, "node", false},
	varGPU:       {"GPU", `DCGM_FI_DEV_GPU_TEMP{` + ofCluster + `,Hostname=~"$node"}`, "gpu", false},
	varNamespace: {"Namespace", `namespace:pitcrew_gpus_held:count{` + ofCluster + `}`, "namespace", false},
	varTenant:    {"Namespace", `namespace:pitcrew_gpus_held:count{` + ofCluster + `}`, "namespace", true},
	varJob:       {"Job", `job:pitcrew_gpus_held:sum{` + ofCluster + `,namespace=~"$namespace"}`, "job_name", false},
}

func (b *board) variables() []dashboard.VariableModel {
	fresh := func(kind dashboard.VariableType, name, label string) dashboard.VariableModel {
		return dashboard.VariableModel{Type: kind, Name: name, Label: of(label), SkipUrlSync: of(false)}
	}
	data := fresh(dashboard.VariableTypeDatasource, "datasource", "Data source")
	data.Query = &dashboard.StringOrMap{String: of("prometheus")}
	out := []dashboard.VariableModel{data}
	for _, name := range b.vars {
		q := variableQueries[name]
		call := fmt.Sprintf("label_values(%s, %s)", q.metric, q.by)
		id := string(name)
		if name == varTenant {
			id = string(varNamespace)
		}
		v := fresh(dashboard.VariableTypeQuery, id, q.label)
		v.Query, v.Definition = &dashboard.StringOrMap{Map: map[string]any{"query": call, "refId": "Variable-" + id, "qryType": 1}}, of(call)
		v.Datasource, v.Refresh, v.Sort = source(), of(dashboard.VariableRefreshOnTimeRangeChanged), of(dashboard.VariableSortNaturalAsc)
		if !q.one {
			v.Multi, v.IncludeAll, v.AllValue = of(true), of(true), of(".*")
			v.Current = &dashboard.VariableOption{Selected: of(true), Text: dashboard.StringOrArrayOfString{ArrayOfString: []string{"All"}}, Value: dashboard.StringOrArrayOfString{ArrayOfString: []string{"$__all"}}}
		}
		out = append(out, v)
	}
	logs := fresh(dashboard.VariableTypeDatasource, "loki", "Logs")
	logs.Query, logs.Description = &dashboard.StringOrMap{String: of("loki")}, of("The Loki that links to logs open. Without one they open Explore on the default data source.")
	out = append(out, logs)
	for _, c := range [][2]string{{"runbooks", Runbooks}, {"incidents", Incidents}} {
		v := fresh(dashboard.VariableTypeConstant, c[0], c[0])
		v.Query, v.Hide = &dashboard.StringOrMap{String: of(c[1])}, of(dashboard.VariableHideHideVariable)
		out = append(out, v)
	}
	return out
}

// annotations mark on every board when incidents were open, how they closed, and when critical alerts fired.
func annotations() []dashboard.AnnotationQuery {
	one := func(name, color, expr, title, text string) dashboard.AnnotationQuery {
		return dashboard.AnnotationQuery{
			Name: name, Datasource: source(), Enable: true, IconColor: color, Expr: of(selectors.Replace(expr)),
			TitleFormat: of(title), TextFormat: of(text), Step: of("60s"), UseValueForTime: of(false),
		}
	}
	return []dashboard.AnnotationQuery{
		one("Open incidents", warn, `max by (cluster) (pitcrew_incidents_open{@c}) > 0`, "Incidents open", "${incidents:raw} lists them"),
		one("Closed incidents", notes, `sum by (outcome) (increase(pitcrew_incidents_closed_total{@c}[$__rate_interval])) > 0`, "Incident closed: {{outcome}}", "${incidents:raw} lists them"),
		one("Critical alerts", bad, `count by (alertname) (ALERTS{@c,alertstate="firing",severity="critical",area!=""})`, "{{alertname}}", "${runbooks:raw}{{alertname}}.md"),
	}
}

func link(title, kind, url string) dashboard.DashboardLink {
	return dashboard.DashboardLink{Title: title, Type: dashboard.DashboardLinkType(kind), Url: of(url), Tags: []string{}}
}

func urlLink(title, url, tooltip string) dashboard.DashboardLink {
	l := link(title, "link", url)
	l.Icon, l.Tooltip, l.TargetBlank = "external link", tooltip, true
	return l
}

func boardsLink() dashboard.DashboardLink {
	l := link("Boards", "dashboards", "")
	l.Icon, l.Tooltip, l.Tags, l.AsDropdown, l.IncludeVars, l.KeepTime = "dashboard", "All of Pitcrew's dashboards", []string{"pitcrew"}, true, true, true
	return l
}

// link leads from a value to another board, with the value's labels.
func (t *target) link(k kind) dashboard.DashboardLink {
	url := "/d/" + t.uid + "?${datasource:queryparam}&${cluster:queryparam}&${__url_time_range}"
	for _, f := range t.fill {
		url += "&var-" + f[0] + "=" + value(k, f[1])
	}
	return link(t.title, "link", url)
}

// value is how a data link names a label of the value that was clicked.
func value(k kind, label string) string {
	if k == table {
		return "${__data.fields." + label + "}"
	}
	return "${__field.labels." + label + "}"
}

// logs leads from a value that names a node or a pod to its lines in Loki.
func (p *panel) logs() (dashboard.DashboardLink, bool) {
	names := func(label string) bool {
		return slices.Contains(p.columns, label) || slices.ContainsFunc(p.queries, func(q query) bool { return strings.Contains(q.legend, "{{"+label+"}}") })
	}
	var selector string
	switch {
	case names("pod") && names("namespace"):
		selector = `{namespace=\"` + value(p.kind, "namespace") + `\",pod=\"` + value(p.kind, "pod") + `\"}`
	case names("node"):
		selector = `{node_name=\"` + value(p.kind, "node") + `\"}`
	default:
		return dashboard.DashboardLink{}, false
	}
	pane := `{"logs":{"datasource":"${loki}","queries":[{"refId":"A","expr":"` + selector + `"}],"range":{"from":"${__from}","to":"${__to}"}}}`
	return link("Logs", "link", "/explore?schemaVersion=1&panes="+pane), true
}
