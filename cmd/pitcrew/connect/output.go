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

	"sigs.k8s.io/yaml"
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

// JSON reports whether output is asked for as JSON.
func (f *Flags) JSON() bool { return f.output == asJSON }

// Structured reports whether output is for a program: JSON or YAML.
func (f *Flags) Structured() bool { return f.output == asJSON || f.output == asYAML }

// Wide reports whether a table has all its columns.
func (f *Flags) Wide() bool { return f.output == wide }

// Encode writes a value if output is asked for as JSON or YAML. It returns false if the caller has to write text.
func (f *Flags) Encode(w io.Writer, v any) (done bool, err error) {
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
