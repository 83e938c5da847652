package catalog

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

//go:embed recordings/*.yaml
var recordingFiles embed.FS

// Recording is one recording rule: a series that boards read in place of an expensive query.
type Recording struct {
	Name  string         `yaml:"record"` // level:metric:operation
	Expr  string         `yaml:"expr"`
	About string         `yaml:"about"` // what the value is, as a phrase
	Test  *RecordingTest `yaml:"test"`

	Group    string   `yaml:"-"` // the file's name
	Interval Duration `yaml:"-"`
}

// RecordingTest is the evidence for a recording: series in promtool's notation, and the value of each result at one time.
type RecordingTest struct {
	Step   Duration           `yaml:"step"` // default 1m
	Series map[string]string  `yaml:"series"`
	At     Duration           `yaml:"at"`   // default 5m
	Want   map[string]float64 `yaml:"want"` // by labels, as {node="n1"}
}

var recordForm = regexp.MustCompile(`^[a-z]+:[a-z_]+:[a-z0-9_]+$`)

// Recordings returns the recording rules of this folder in the order in which a group evaluates them.
func Recordings() ([]Recording, error) { return LoadRecordings(recordingFiles) }

// LoadRecordings reads recordings/*.yaml of f: one group a file. The error joins every fault, each with its file.
func LoadRecordings(f fs.FS) ([]Recording, error) {
	names, err := fs.Glob(f, "recordings/*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Recording
	var faults []error
	first := map[string]string{}
	for _, name := range names {
		raw, err := fs.ReadFile(f, name)
		if err != nil {
			return nil, fmt.Errorf("catalog: %w", err)
		}
		var file struct {
			Interval Duration
			Records  []Recording
		}
		if err := yaml.UnmarshalWithOptions(raw, &file, yaml.Strict(), yaml.CustomUnmarshaler(durationOf)); err != nil {
			faults = append(faults, fmt.Errorf("%s: %s", name, oneLine(err)))
			continue
		}
		if file.Interval <= 0 {
			faults = append(faults, fmt.Errorf("%s: interval must be positive, got %s", name, file.Interval))
		}
		for _, r := range file.Records {
			r.Group, r.Interval = strings.TrimSuffix(path.Base(name), ".yaml"), file.Interval
			if other, twice := first[r.Name]; twice {
				faults = append(faults, fmt.Errorf("%s: %s is also in %s", name, r.Name, other))
			}
			first[r.Name] = name
			for _, reason := range r.check() {
				faults = append(faults, fmt.Errorf("%s: %s: %s", name, r.Name, reason))
			}
			all = append(all, r)
		}
	}
	return all, errors.Join(faults...)
}

// check returns what is wrong with the recording, and fills in the defaults of its test.
func (r *Recording) check() (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if !recordForm.MatchString(r.Name) {
		bad("record must look like node:pitcrew_gpus:count, got %q", r.Name)
	}
	if strings.TrimSpace(r.Expr) == "" || strings.TrimSpace(r.About) == "" {
		bad("expr and about are required")
	}
	if r.Test == nil {
		return append(faults, "a recording needs a test")
	}
	if len(r.Test.Series) == 0 || len(r.Test.Want) == 0 {
		bad("test: series and want are required")
	}
	if r.Test.Step == 0 {
		r.Test.Step = Duration(time.Minute)
	}
	if r.Test.At == 0 {
		r.Test.At = Duration(5 * time.Minute)
	}
	return faults
}

// RecordingFiles renders the rule file of all recordings and its unit tests, by their path below rules/.
func RecordingFiles(all []Recording) map[string]string {
	var file strings.Builder
	file.WriteString(header + "# What the dashboards read. Load it wherever they are used.\ngroups:\n")
	group := ""
	out := map[string]string{}
	for _, r := range all {
		if r.Group != group {
			group = r.Group
			fmt.Fprintf(&file, "- name: pitcrew-recording-%s\n  interval: %s\n  rules:\n", group, r.Interval)
		}
		fmt.Fprintf(&file, "  # %s.\n  - record: %s\n    expr: %s\n", oneSpaced(r.About), r.Name, quote(r.expr()))
		test := fmt.Sprintf("tests/recording-%s.yaml", r.Test.Step)
		if out[test] == "" {
			out[test] = header + fmt.Sprintf("# promtool test rules rules/tests/*.yaml, with promtool of Prometheus 3\nevaluation_interval: %s\ntests:\n", r.Test.Step)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "- name: %s\n  interval: %s\n  input_series:\n", quote(r.Name), r.Test.Step)
		for _, s := range slices.Sorted(maps.Keys(r.Test.Series)) {
			fmt.Fprintf(&b, "  - {series: %s, values: %s}\n", quote(s), quote(r.Test.Series[s]))
		}
		fmt.Fprintf(&b, "  promql_expr_test:\n  - expr: %s\n    eval_time: %s\n    exp_samples:\n", quote("round("+r.expr()+", 0.000001)"), r.Test.At)
		for _, s := range slices.Sorted(maps.Keys(r.Test.Want)) {
			fmt.Fprintf(&b, "    - {labels: %s, value: %s}\n", quote(s), strconv.FormatFloat(r.Test.Want[s], 'g', -1, 64))
		}
		out[test] += b.String()
	}
	out["prometheus/recording.yaml"] = file.String()
	return out
}

func (r *Recording) expr() string { return oneSpaced(r.Expr) }

func oneSpaced(text string) string { return strings.Join(strings.Fields(text), " ") }

// RecordingTable is the table of docs/dashboards.md.
func RecordingTable(all []Recording) string {
	var b strings.Builder
	b.WriteString("| series | value | each |\n|---|---|---|\n")
	for _, r := range all {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Name, cell(oneSpaced(r.About)), r.Interval)
	}
	return b.String()
}
