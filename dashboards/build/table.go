package build

import "strings"

// board is one dashboard.
type board struct {
	uid, title, about string
	from              string // default time range, as now-6h
	vars              []variable
	rows              []row
}

// row is a titled group of panels that fill the board from left to right.
type row struct {
	title  string
	panels []panel
}

// kind is the id of Grafana's panel plugin.
type kind string

const (
	stat          kind = "stat"
	timeseries    kind = "timeseries"
	statusHistory kind = "status-history"
	stateTimeline kind = "state-timeline"
	heatmap       kind = "heatmap"
	table         kind = "table"
	barGauge      kind = "bargauge"
)

// Sizes of the grid, by kind, where a panel states none.
var sizes = map[kind][2]uint32{
	stat: {4, 4}, timeseries: {12, 8}, statusHistory: {24, 9}, stateTimeline: {12, 8}, heatmap: {12, 8}, table: {12, 8}, barGauge: {12, 8},
}

// panel is a row of a board's table.
type panel struct {
	title, about string
	kind         kind
	unit         string
	w, h         uint32
	queries      []query
	base         string   // color below the first limit; default good, and neutral without limits
	steps        []step   // limits, lowest first
	names        []naming // texts for values
	max          float64  // upper end of the axis; 0: automatic
	stacked      bool
	decimals     int    // 0: automatic
	whole        bool   // no decimals: counts that a rate extrapolates
	empty        string // what is shown without data: what it needs, or that nothing is wrong
	runbooks     []string
	to           *target  // where a click on a value leads
	columns      []string // of a table: labels in their order; the value is last
	value        string   // name of a table's value
}

// query is PromQL with shorthands for selectors: @c cluster, @n cluster and node, @h the same as Hostname, @k as k8s_node_name, @j cluster,
// namespace and job, @s cluster and namespace.
type query struct{ expr, legend string }

// step is a limit: from this value on the color holds, for a reason.
type step struct {
	from  float64
	color string
	why   string
}

// naming is a text and color for a value.
type naming struct {
	value string
	text  string
	color string
}

// target is a board to which a value leads, with the variables that the value's labels fill.
type target struct {
	uid, title string
	fill       [][2]string // variable, label
}

// variable is one of the shared ones, by name.
type variable string

const (
	varCluster   variable = "cluster"
	varNode      variable = "node"
	varGPU       variable = "gpu"
	varNamespace variable = "namespace"
	varTenant    variable = "tenant" // namespace, exactly one
	varJob       variable = "job"
)

const ofCluster = `cluster=~"$cluster"`

var selectors = strings.NewReplacer(
	"@c", ofCluster,
	"@n", ofCluster+`,node=~"$node"`,
	"@h", ofCluster+`,Hostname=~"$node",gpu=~"$gpu"`,
	"@k", ofCluster+`,k8s_node_name=~"$node"`,
	"@j", ofCluster+`,namespace=~"$namespace",job_name=~"$job"`,
	"@s", ofCluster+`,namespace=~"$namespace"`,
)

// Ends of links between boards.
var (
	toNode = &target{"pitcrew-node", "Node and its GPUs", [][2]string{{"node", "node"}}}
	toHost = &target{"pitcrew-node", "Node and its GPUs", [][2]string{{"node", "Hostname"}}}
	toJob  = &target{"pitcrew-job", "Job", [][2]string{{"namespace", "namespace"}, {"job", "job_name"}}}
	toTeam = &target{"pitcrew-tenant", "Namespace", [][2]string{{"namespace", "namespace"}}}
	toXID  = &target{"pitcrew-xid", "XID and SXid timeline", [][2]string{{"node", "node"}}}
)

// Colors by meaning; Grafana's names, which suit light and dark.
const (
	good  = "green"
	notes = "blue"
	warn  = "orange"
	bad   = "red"
	quiet = "text"
)
