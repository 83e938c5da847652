package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Record is one alerting condition.
type Record struct {
	ID            string            `yaml:"id"`              // stable across renames, as THP-01
	Alert         string            `yaml:"alert"`           // name of the alert and of its runbook page
	Expr          string            `yaml:"expr"`            // PromQL
	For           Duration          `yaml:"for"`             // how long it must hold; empty: fires at once
	KeepFiringFor Duration          `yaml:"keep_firing_for"` // how long it stays after the condition ended
	Severity      string            `yaml:"severity"`
	Stability     string            `yaml:"stability"`
	Gateway       string            `yaml:"gateway"` // group of rules/alerts.yaml; empty: a Prometheus evaluates it, the gateway does not
	Summary       string            `yaml:"summary"` // template of the annotation
	Meaning       string            `yaml:"meaning"`
	Impact        string            `yaml:"impact"`
	Action        string            `yaml:"action"` // what Pitcrew does about it
	Thresholds    []Threshold       `yaml:"thresholds"`
	Metrics       map[string]string `yaml:"metrics"`      // name: exporter
	Needs         string            `yaml:"needs"`        // what must be switched on for the metrics to be there
	ExplainedBy   []string          `yaml:"explained_by"` // alerts, and signals of findings, that mute it on their node
	Test          *Test             `yaml:"test"`

	Area string `yaml:"-"`
	File string `yaml:"-"`
	Line int    `yaml:"-"`

	named bool // an inhibit rule names it
}

// Threshold is a number of the expression and where it comes from.
type Threshold struct {
	Value  string `yaml:"value"`
	Source string `yaml:"source"`
}

// Test is the evidence for a record. Series are in promtool's notation, one value a step.
type Test struct {
	Step   Duration          `yaml:"step"`   // between values and between evaluations; default 1m
	Fires  map[string]string `yaml:"fires"`  // the fault begins and ends within it
	At     Duration          `yaml:"at"`     // first evaluation at which the alert fires
	Until  Duration          `yaml:"until"`  // first evaluation at which it does not fire any more
	Below  map[string]string `yaml:"below"`  // laid over Fires: just below the threshold, never fires
	Absent string            `yaml:"absent"` // without any series: silent or fires; default silent
	First  *First            `yaml:"first"`  // required if a counter of the expression is sparse
}

// First is the evidence that an alert does not miss the first event: series that appear with it, where no zero was before.
type First struct {
	Series    map[string]string `yaml:"series"`
	At, Until Duration
}

// Silent and fires are what an alert does without any series.
const (
	silent = "silent"
	fires  = "fires"
)

// Duration is written as Prometheus writes it: 90s, 5m, 1h30m, 7d.
type Duration time.Duration

var (
	durationParts = regexp.MustCompile(`^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$`)
	units         = [...]time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second}
)

func parseDuration(text string) (Duration, error) {
	m := durationParts.FindStringSubmatch(text)
	if m == nil || text == "" {
		return 0, fmt.Errorf("%q is not a duration; write 30s, 5m, 2h or 7d", text)
	}
	var d time.Duration
	for i, unit := range units {
		if m[i+1] == "" {
			continue
		}
		n, err := strconv.ParseInt(m[i+1], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("%q is too long", text)
		}
		d += time.Duration(n) * unit
	}
	return Duration(d), nil
}

func (d Duration) String() string {
	var b strings.Builder
	rest := time.Duration(d)
	for i, unit := range units {
		if n := rest / unit; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, "dhms"[i:i+1])
			rest -= n * unit
		}
	}
	if b.Len() == 0 {
		return "0s"
	}
	return b.String()
}

// Areas in the order in which they are listed, with their titles.
var Areas = []struct{ Name, Title string }{
	{"gpu", "GPU devices"},
	{"memory", "GPU memory"},
	{"thermal", "Heat, power and clocks"},
	{"nvlink", "NVLink and NVSwitch"},
	{"host", "PCIe and host"},
	{"fabric", "InfiniBand, RoCE and Ethernet"},
	{"training", "Training progress"},
	{"storage", "Checkpoints and storage"},
	{"scheduling", "Scheduling and queues"},
	{"kubernetes", "Kubernetes"},
	{"versions", "Version differences between nodes"},
	{"utilization", "Utilization"},
	{"isolation", "Isolation"},
	{"pitcrew", "Pitcrew itself"},
	{"monitoring", "Monitoring"},
}

var (
	severities  = []string{"critical", "warning", "info"}
	stabilities = []string{"stable", "experimental"}
	idForm      = regexp.MustCompile(`^[A-Z0-9]{3}-\d{2}$`)
	alertForm   = regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
)

// check returns what is wrong with the record, without file and line.
func (r *Record) check() (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for _, f := range []struct{ name, text string }{
		{"expr", r.Expr}, {"summary", r.Summary}, {"meaning", r.Meaning}, {"impact", r.Impact}, {"action", r.Action},
	} {
		if strings.TrimSpace(f.text) == "" {
			bad("%s is missing", f.name)
		}
	}
	if !idForm.MatchString(r.ID) {
		bad("id must look like THP-01, got %q", r.ID)
	}
	if !alertForm.MatchString(r.Alert) {
		bad("alert must be a name such as GPUMissing, got %q", r.Alert)
	}
	if !slices.Contains(severities, r.Severity) {
		bad("severity must be one of %s, got %q", strings.Join(severities, ", "), r.Severity)
	}
	if !slices.Contains(stabilities, r.Stability) {
		bad("stability must be one of %s, got %q", strings.Join(stabilities, ", "), r.Stability)
	}
	if len(r.Thresholds) == 0 {
		bad("thresholds are missing: name each limit and its source")
	}
	for _, t := range r.Thresholds {
		if t.Value == "" || t.Source == "" {
			bad("a threshold needs value and source, got %q and %q", t.Value, t.Source)
		}
	}
	if len(r.Metrics) == 0 {
		bad("metrics are missing: name each metric and its exporter")
	}
	if r.Gateway != "" && r.Stability != "stable" {
		bad("an experimental record cannot run in the gateway")
	}
	if r.Stability == "stable" && r.Test == nil {
		bad("a stable record needs a test")
	}
	if r.Test != nil {
		faults = append(faults, r.Test.check(r)...)
	}
	return faults
}

func (t *Test) check(r *Record) (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, "test: "+fmt.Sprintf(format, args...)) }
	if t.Step == 0 {
		t.Step = Duration(time.Minute)
	}
	if t.Absent == "" {
		t.Absent = silent
	}
	if t.Absent != silent && t.Absent != fires {
		bad("absent must be %s or %s, got %q", silent, fires, t.Absent)
	}
	if len(t.Fires) == 0 || len(t.Below) == 0 {
		bad("fires and below need series")
	}
	if t.At < r.For {
		bad("at (%s) is before for (%s) is over", t.At, r.For)
	}
	for _, l := range t.Timelines() {
		name := ""
		if l.Name == firstEvent {
			name = "first: "
		}
		if len(l.Series) == 0 {
			bad("%sseries are missing", name)
		}
		if l.Name == justBelow {
			continue
		}
		if l.Until <= l.At {
			bad("%suntil (%s) must be after at (%s)", name, l.Until, l.At)
		}
		if l.At%t.Step != 0 || l.Until%t.Step != 0 {
			bad("%sat (%s) and until (%s) must be multiples of step (%s)", name, l.At, l.Until, t.Step)
		}
	}
	return faults
}
