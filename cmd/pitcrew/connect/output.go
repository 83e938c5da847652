package connect

import (
	"encoding/json"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
)

// Forms of output. Text and table are the same.
const (
	text   = "text"
	table  = "table"
	wide   = "wide"
	asJSON = "json"
	asYAML = "yaml"
)

var forms = []string{text, table, wide, asJSON, asYAML}

func checkForm(form string) error {
	if !slices.Contains(forms, form) {
		return fmt.Errorf("unknown output %q; one of: %s", form, strings.Join(forms, ", "))
	}
	return nil
}

// Output is the flag -o of a command that needs no NATS.
type Output struct{ output string }

// Register adds the flag.
func (f *Output) Register(p *pflag.FlagSet) {
	p.StringVarP(&f.output, "output", "o", text, "`form`: text (or table), wide, json, yaml")
}

// Check reports a wrong value of a flag. Open checks as well; a command that does something before calls it first.
func (f *Output) Check() error { return exit.With(exit.Usage, checkForm(f.output)) }

// JSON reports whether output is asked for as JSON.
func (f *Output) JSON() bool { return f.output == asJSON }

// Structured reports whether output is for a program: JSON or YAML.
func (f *Output) Structured() bool { return f.output == asJSON || f.output == asYAML }

// Wide reports whether a table has all its columns.
func (f *Output) Wide() bool { return f.output == wide }

// Encode writes a value if output is asked for as JSON or YAML. It returns false if the caller has to write text.
func (f *Output) Encode(w io.Writer, v any) (done bool, err error) {
	switch f.output {
	case asJSON:
		return true, WriteJSON(w, v)
	case asYAML:
		b, err := yaml.Marshal(v)
		if err == nil {
			_, err = w.Write(b)
		}
		return true, err
	}
	return false, nil
}

// WriteJSON writes a value as people read it.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Operator is the name under which an answer of this command is recorded.
func Operator() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// Age is a flag for a length of time up to now: a Go duration, or days or weeks such as 7d and 2w.
type Age time.Duration

var longUnits = map[byte]time.Duration{'d': 24 * time.Hour, 'w': 7 * 24 * time.Hour}

// Set reads an age.
func (a *Age) Set(s string) error {
	d, err := time.ParseDuration(s)
	if s != "" {
		if unit, ok := longUnits[s[len(s)-1]]; ok {
			var n float64
			n, err = strconv.ParseFloat(s[:len(s)-1], 64)
			d = time.Duration(n * float64(unit))
		}
	}
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not an age; examples: 90m, 36h, 7d, 2w", s)
	}
	*a = Age(d)
	return nil
}

func (a *Age) String() string {
	if *a == 0 {
		return ""
	}
	return time.Duration(*a).String()
}

// Type names the value in help.
func (a *Age) Type() string { return "age" }
