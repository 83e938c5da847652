package policy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew/pitcrew/remediator/policy"
)

const (
	docFile = "../../docs/policy.md"
	begin   = "<!-- generated from the Go types: go test ./remediator/policy -run Reference -update -->\n"
	end     = "<!-- end of the generated part -->\n"
)

func TestTheReferenceIsWhatTheTypesSay(t *testing.T) {
	doc, err := os.ReadFile(filepath.FromSlash(docFile))
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(doc), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has lost the markers of its generated part", docFile)
	}
	want := reference(t)
	if *update {
		if err := os.WriteFile(docFile, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, old); d != "" {
		t.Errorf("docs/policy.md has drifted; run with -update: %s", d)
	}
}

func TestTheExamplesInTheReferenceAreRead(t *testing.T) {
	doc, err := os.ReadFile(filepath.FromSlash(docFile))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, block := range strings.Split(string(doc), "```") {
		text, is := strings.CutPrefix(block, "yaml\n")
		if i%2 == 0 || !is || !strings.Contains(text, "kind: RemediationPolicy") {
			continue
		}
		n++
		if _, err := policy.Parse("docs/policy.md", []byte(text)); err != nil {
			t.Error(err)
		}
	}
	if n == 0 {
		t.Error("there is no example")
	}
}

type schemaNode struct {
	Ref         string                `json:"$ref"`
	Description string                `json:"description"`
	Type        string                `json:"type"`
	Default     any                   `json:"default"`
	Enum        []string              `json:"enum"`
	Required    []string              `json:"required"`
	Properties  map[string]schemaNode `json:"properties"`
	Defs        map[string]schemaNode `json:"$defs"`
	Items       *schemaNode           `json:"items"`
	OneOf       []schemaNode          `json:"oneOf"`
}

// reference writes the tables of the language. Fields come in the order of the Go types.
func reference(t *testing.T) string {
	t.Helper()
	raw, err := policy.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root schemaNode
	if err := json.Unmarshal(raw, &root); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, s := range []struct {
		path string
		of   reflect.Type
	}{
		{"", reflect.TypeFor[policy.Policy]()}, {"metadata", reflect.TypeFor[policy.Metadata]()}, {"spec", reflect.TypeFor[policy.Spec]()},
		{"spec.appliesTo", reflect.TypeFor[policy.AppliesTo]()}, {"spec.guards", reflect.TypeFor[policy.Guards]()},
		{"spec.guards.maxNodesQuarantined", reflect.TypeFor[policy.Share]()}, {"spec.guards.actionBudget", reflect.TypeFor[policy.Budget]()},
		{"spec.guards.deadlines", reflect.TypeFor[policy.Deadlines]()}, {"spec.guards.oneCause", reflect.TypeFor[policy.Grouping]()},
		{"spec.uncordon", reflect.TypeFor[policy.Uncordoning]()},
		{"spec.rules[]", reflect.TypeFor[policy.Rule]()}, {"spec.rules[].when", reflect.TypeFor[policy.When]()},
		{"spec.rules[].worth", reflect.TypeFor[policy.Worth]()},
		{"spec.rules[].steps[]", reflect.TypeFor[policy.Step]()}, {"spec.rules[].steps[].with", reflect.TypeFor[policy.With]()},
		{"spec.rules[].verify", reflect.TypeFor[policy.Verify]()},
	} {
		node := root
		if s.path != "" {
			node = root.Defs[s.of.Name()]
		}
		title := "`" + s.path + "`"
		if s.path == "" {
			title = "The document"
		}
		line("### %s\n\n| field | type | default | what |\n|---|---|---|---|", title)
		for i := range s.of.NumField() {
			name, _, _ := strings.Cut(s.of.Field(i).Tag.Get("json"), ",")
			f, ok := node.Properties[name]
			if !ok {
				continue
			}
			def := ""
			switch {
			case slices.Contains(node.Required, name):
				def = "required"
			case f.Default != nil:
				def = fmt.Sprintf("`%v`", f.Default)
			case root.resolve(f).Default != nil:
				def = fmt.Sprintf("`%v`", root.resolve(f).Default)
			}
			line("| `%s` | %s | %s | %s |", name, typeName(root, f, s.of.Field(i).Type), def, f.Description)
		}
		line("")
	}
	line("### Actions (`do`)\n\n| action | options | what |\n|---|---|---|")
	for _, v := range policy.Verbs() {
		opts := ""
		if len(v.Options) > 0 {
			opts = "`" + strings.Join(v.Options, "`, `") + "`"
		}
		line("| `%s` | %s | %s |", v.Verb, opts, v.About)
	}
	line("\n### Signals\n\n| signal | what |\n|---|---|")
	for _, k := range policy.SignalKinds() {
		names := "`" + k.Kind + "/NAME`"
		if k.Code {
			names = "`" + k.Kind + "/NUMBER`"
		}
		if len(k.Names) > 0 {
			names = "`" + k.Kind + "/" + strings.Join(k.Names, "`, `"+k.Kind+"/") + "`"
		}
		line("| %s | %s |", names, k.About)
	}
	line("\n### Facts that an expression reads\n\n| fact | type | the remediator reads it from | `policy simulate` reads it from | what |\n|---|---|---|---|---|")
	for _, f := range policy.Facts() {
		simulated := string(f.Simulate)
		switch {
		case simulated == "":
			simulated = "nothing: it is empty"
		case strings.HasPrefix(simulated, "--"):
			simulated = "`" + simulated + "`"
		}
		line("| `%s` | %s | the %s | %s | %s |", f.Path, f.Type, f.Decide, simulated, f.About)
	}
	return b.String()
}

func (n schemaNode) resolve(f schemaNode) schemaNode {
	if name, ok := strings.CutPrefix(f.Ref, "#/$defs/"); ok {
		return n.Defs[name]
	}
	return f
}

func typeName(root, f schemaNode, of reflect.Type) string {
	f = root.resolve(f)
	switch {
	case len(f.Enum) > 0:
		return "`" + strings.Join(f.Enum, "` `") + "`"
	case len(f.OneOf) > 0:
		return "string or list"
	case f.Items != nil && f.Items.Ref == "":
		return "list of " + f.Items.Type
	case f.Items != nil:
		return "list"
	case strings.HasSuffix(of.String(), "Duration"):
		return "duration"
	case f.Type == "object" && of.Kind() == reflect.Map:
		return "map"
	}
	return f.Type
}

func TestEveryTypeOfTheSchemaIsInTheReference(t *testing.T) {
	raw, err := policy.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var root schemaNode
	if err := json.Unmarshal(raw, &root); err != nil {
		t.Fatal(err)
	}
	text := reference(t)
	for _, d := range slices.Sorted(maps.Keys(root.Defs)) {
		for name, p := range root.Defs[d].Properties {
			if p.Description == "" {
				t.Errorf("%s.%s has no description", d, name)
			}
			if !strings.Contains(text, p.Description) {
				t.Errorf("%s.%s is not in the reference", d, name)
			}
		}
	}
}
