package build

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	heatmaps "github.com/grafana/grafana-foundation-sdk/go/heatmap"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	stats "github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/statushistory"
	tables "github.com/grafana/grafana-foundation-sdk/go/table"
	lines "github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// all boards in the order in which they are listed.
var all = []board{fleetBoard, nodeBoard, jobBoard, fabricBoard, xidBoard, incidentBoard, placementBoard, utilizationBoard, selfBoard, tenantBoard}

// JSON gives each board as classic JSON, by the name of its file.
func JSON() (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, b := range all {
		raw, err := json.Marshal(b.build())
		if err != nil {
			return nil, fmt.Errorf("board %s: %w", b.uid, err)
		}
		var tidy any // keys sorted, so that a diff shows what changed and not the SDK's order
		if err := json.Unmarshal(raw, &tidy); err != nil {
			return nil, fmt.Errorf("board %s: %w", b.uid, err)
		}
		if raw, err = json.MarshalIndent(tidy, "", " "); err != nil {
			return nil, fmt.Errorf("board %s: %w", b.uid, err)
		}
		out[b.uid+".json"] = append(raw, '\n')
	}
	return out, nil
}

func of[T any](v T) *T { return &v }

func source() *common.DataSourceRef {
	return &common.DataSourceRef{Type: of("prometheus"), Uid: of("${datasource}")}
}

func (b *board) build() *dashboard.Dashboard {
	d := dashboard.NewDashboard()
	d.Uid, d.Title, d.Description = of(b.uid), of("Pitcrew / "+b.title), of(b.about)
	d.Tags, d.Editable, d.Refresh = []string{"pitcrew"}, of(false), of("1m")
	d.GraphTooltip = of(dashboard.DashboardCursorSyncCrosshair)
	d.Time = &dashboard.DashboardDashboardTime{From: b.from, To: "now"}
	d.Templating.List = b.variables()
	d.Annotations.List = annotations()
	d.Links = []dashboard.DashboardLink{
		boardsLink(),
		urlLink("Incidents", "${incidents:raw}", "Open and closed incidents with their evidence"),
		urlLink("Runbooks", "${runbooks:raw}README.md", "What to do about each alert"),
	}
	var id, x, y, height uint32
	wrap := func(w uint32) {
		if x+w > 24 {
			x, y, height = 0, y+height, 0
		}
	}
	for _, r := range b.rows {
		wrap(24 + 1)
		id++
		head := dashboard.NewRowPanel()
		head.Title, head.Id, head.GridPos = of(r.title), id, &dashboard.GridPos{H: 1, W: 24, X: 0, Y: y}
		d.Panels = append(d.Panels, dashboard.PanelOrRowPanel{RowPanel: head})
		y++
		for _, p := range r.panels {
			size := sizes[p.kind]
			if p.w == 0 {
				p.w = size[0]
			}
			if p.h == 0 {
				p.h = size[1]
			}
			wrap(p.w)
			id++
			made := p.build(id)
			made.GridPos = &dashboard.GridPos{H: p.h, W: p.w, X: x, Y: y}
			d.Panels = append(d.Panels, dashboard.PanelOrRowPanel{Panel: made})
			x, height = x+p.w, max(height, p.h)
		}
	}
	return d
}

// description is the panel's text with its limits in words.
func (p *panel) description() string {
	text := p.about
	for _, s := range p.steps {
		if s.why != "" {
			text += fmt.Sprintf("\n\n%s from %s: %s.", strings.ToUpper(s.color[:1])+s.color[1:], strconv.FormatFloat(s.from, 'g', -1, 64), s.why)
		}
	}
	for i, n := range p.names {
		if i == 0 {
			text += "\n\n"
		} else {
			text += ", "
		}
		text += n.value + " = " + n.text
	}
	return text
}

func (p *panel) build(id uint32) *dashboard.Panel {
	out := dashboard.NewPanel()
	out.Id, out.Type, out.Title, out.Description = of(id), string(p.kind), of(p.title), of(p.description())
	out.Transparent, out.RepeatDirection = nil, nil
	out.Datasource = source()
	out.Interval = of("1m")
	for i, q := range p.queries {
		out.Targets = append(out.Targets, p.dataquery(string(rune('A'+i)), q))
	}
	f := dashboard.NewFieldConfigSource()
	f.Defaults.Unit = of(p.unit)
	f.Defaults.Min = of(0.0)
	if p.max > 0 {
		f.Defaults.Max = of(p.max)
	}
	if p.decimals > 0 || p.whole {
		f.Defaults.Decimals = of(float64(p.decimals))
	}
	if p.empty != "" {
		f.Defaults.NoValue = of(p.empty)
	}
	f.Defaults.Thresholds = p.thresholds()
	f.Defaults.Mappings = p.mappings()
	mode := dashboard.FieldColorModeIdPaletteClassic
	if p.kind != timeseries && p.kind != heatmap {
		mode = dashboard.FieldColorModeIdThresholds
	}
	f.Defaults.Color = &dashboard.FieldColor{Mode: mode}
	f.Defaults.Custom = p.custom()
	if p.to != nil {
		f.Defaults.Links = append(f.Defaults.Links, p.to.link(p.kind))
	}
	if l, ok := p.logs(); ok {
		f.Defaults.Links = append(f.Defaults.Links, l)
	}
	if slices.Contains(p.columns, "alertname") {
		f.Defaults.Links = append(f.Defaults.Links, urlLink("Runbook of ${__data.fields.alertname}", "${runbooks:raw}${__data.fields.alertname}.md", ""))
	}
	for _, name := range p.runbooks {
		out.Links = append(out.Links, urlLink("Runbook "+name, "${runbooks:raw}"+name+".md", ""))
	}
	out.FieldConfig = f
	out.Options = p.options()
	if p.kind == table {
		out.Transformations = p.tidy()
	}
	return out
}

func (p *panel) dataquery(ref string, q query) variants.Dataquery {
	out := prometheus.NewDataquery()
	out.RefId, out.Expr, out.LegendFormat, out.EditorMode = of(ref), selectors.Replace(q.expr), of(q.legend), of(prometheus.QueryEditorModeCode)
	out.Datasource = source()
	now := p.kind == stat || p.kind == table || p.kind == barGauge
	out.Instant, out.Range = of(now), of(!now)
	if p.kind == table {
		out.Format = of(prometheus.PromQueryFormatTable)
	}
	return *out
}

func (p *panel) thresholds() *dashboard.ThresholdsConfig {
	out := dashboard.NewThresholdsConfig()
	out.Mode = dashboard.ThresholdsModeAbsolute
	first := p.base
	switch {
	case first == "" && len(p.steps) > 0:
		first = good
	case first == "":
		first = quiet
	}
	out.Steps = append(out.Steps, dashboard.Threshold{Color: first})
	for _, s := range p.steps {
		out.Steps = append(out.Steps, dashboard.Threshold{Value: of(s.from), Color: s.color})
	}
	return out
}

func (p *panel) mappings() []dashboard.ValueMapping {
	if len(p.names) == 0 {
		return nil
	}
	m := dashboard.NewValueMap()
	for i, n := range p.names {
		m.Options[n.value] = dashboard.ValueMappingResult{Text: of(n.text), Color: of(n.color), Index: of(int32(i))}
	}
	return []dashboard.ValueMapping{{ValueMap: m}}
}

// custom is the part of the field options that the plugin defines.
func (p *panel) custom() any {
	switch p.kind {
	case timeseries:
		c := map[string]any{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": false}
		if p.stacked {
			c["stacking"], c["fillOpacity"] = map[string]any{"mode": "normal", "group": "A"}, 60
		}
		if len(p.steps) > 0 {
			c["thresholdsStyle"] = map[string]any{"mode": "dashed"}
		}
		return c
	case statusHistory, stateTimeline:
		return map[string]any{"fillOpacity": 80, "lineWidth": 0}
	case table:
		return map[string]any{"align": "auto", "filterable": true, "inspect": false}
	}
	return nil
}

func (p *panel) options() any {
	reduce := *common.NewReduceDataOptions()
	reduce.Calcs = []string{"lastNotNull"}
	legend := common.VizLegendOptions{DisplayMode: common.LegendDisplayModeTable, Placement: common.LegendPlacementBottom, ShowLegend: true, Calcs: []string{"lastNotNull", "max"}}
	tooltip := common.VizTooltipOptions{Mode: common.TooltipDisplayModeMulti, Sort: common.SortOrderDescending}
	switch p.kind {
	case stat:
		o := stats.NewOptions()
		o.ReduceOptions, o.GraphMode, o.Orientation = reduce, common.BigValueGraphModeNone, common.VizOrientationAuto
		return o
	case timeseries:
		o := lines.NewOptions()
		o.Legend, o.Tooltip = legend, tooltip
		return o
	case statusHistory:
		o := statushistory.NewOptions()
		o.ShowValue = common.VisibilityModeNever
		o.Legend, o.Tooltip = common.VizLegendOptions{DisplayMode: common.LegendDisplayModeList, Placement: common.LegendPlacementBottom, Calcs: []string{}}, tooltip
		return o
	case stateTimeline:
		o := statetimeline.NewOptions()
		o.ShowValue = common.VisibilityModeNever
		o.Legend, o.Tooltip = common.VizLegendOptions{DisplayMode: common.LegendDisplayModeList, Placement: common.LegendPlacementBottom, Calcs: []string{}}, tooltip
		return o
	case heatmap:
		o := heatmaps.NewOptions()
		o.Calculate = of(true)
		return o
	case table:
		o := tables.NewOptions()
		o.Footer = nil
		return o
	case barGauge:
		o := bargauge.NewOptions()
		o.ReduceOptions, o.DisplayMode, o.Orientation = reduce, common.BarGaugeDisplayModeBasic, common.VizOrientationHorizontal
		return o
	}
	panic("no options for " + p.kind)
}

// headings are what a table calls labels. Links still find a column by its label.
var headings = map[string]string{
	"hw_id": "device", "gpu": "GPU", "job_name": "job", "Hostname": "node", "k8s_node_name": "node",
	"alertname": "alert", "pitcrew_sxid_class": "class",
}

// tidy names and orders a table's columns.
func (p *panel) tidy() []dashboard.DataTransformerConfig {
	order, names, gone := map[string]any{}, map[string]any{"Value": p.value}, map[string]any{"Time": true}
	for label, head := range headings {
		if slices.Contains(p.columns, label) {
			names[label] = head
		}
	}
	for i, c := range p.columns {
		order[c] = i
	}
	order["Value"] = len(p.columns)
	if p.value == "" {
		gone["Value"] = true
	}
	return []dashboard.DataTransformerConfig{{Id: "organize", Options: map[string]any{"excludeByName": gone, "indexByName": order, "renameByName": names}}}
}
