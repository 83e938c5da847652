package pitcrew_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// sharedNames is how many names are spelled in more than one package. It may only sink: use a constant of semconv.
const sharedNames = 15

// A name is of an attribute, a metric or an event. Names of files look the same and are left out.
var (
	vocabulary = regexp.MustCompile(`^([a-z][a-z0-9_]*(\.[a-z0-9_]+)+|pitcrew_[a-z0-9_]+|DCGM_[A-Za-z0-9_]+)$`)
	fileName   = regexp.MustCompile(`\.(go|py|yaml|json|jsonl|tsv|csv|md|png|log|crt|so|4|sock)$`)
)

func TestANameIsSpelledInOnePackage(t *testing.T) {
	folders := map[string]map[string]bool{}
	for _, s := range sources(t, parser.SkipObjectResolution) {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.BasicLit:
				text, err := strconv.Unquote(n.Value)
				if n.Kind != token.STRING || err != nil || !vocabulary.MatchString(text) || fileName.MatchString(text) {
					return true
				}
				if folders[text] == nil {
					folders[text] = map[string]bool{}
				}
				folders[text][s.folder] = true
			}
			return true
		})
	}
	var shared []string
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		if in := folders[name]; len(in) > 1 {
			shared = append(shared, name+" in "+strings.Join(slices.Sorted(maps.Keys(in)), ", "))
		}
	}
	switch n := len(shared); {
	case n > sharedNames:
		t.Errorf("%d names are spelled in more than one package, %d allowed; use a constant:\n%s", n, sharedNames, strings.Join(shared, "\n"))
	case n < sharedNames:
		t.Errorf("%d names are spelled in more than one package: lower sharedNames from %d", n, sharedNames)
	}
}

func TestEachNameOfAComponentIsUsed(t *testing.T) {
	used, declared := map[string]bool{}, []string{}
	for _, s := range sources(t, parser.SkipObjectResolution) {
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if s.folder == "semconv" {
					declared = append(declared, n.Names[0].Name)
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "semconv" {
					used[n.Sel.Name] = true
				}
			}
			return true
		})
	}
	if len(declared) < 100 {
		t.Errorf("only %d names in semconv", len(declared))
	}
	for _, name := range declared {
		if !used[name] {
			t.Errorf("semconv.%s is in a metadata.yaml, and no code emits or reads it", name)
		}
	}
}
