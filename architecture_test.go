package pitcrew_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the tree in docs/architecture.md")

const architecture = "docs/architecture.md"

// tree lists the packages of each room, lowest room first, with what they import. Imports in the same room begin with "./".
func tree(t *testing.T) string {
	t.Helper()
	imports := map[string]map[string]bool{}
	for _, s := range sources(t, parser.ImportsOnly) {
		if imports[s.folder] == nil {
			imports[s.folder] = map[string]bool{}
		}
		for _, path := range s.imports {
			if inner, ours := strings.CutPrefix(path, module+"/"); ours {
				r, _ := roomOf(s.folder)
				if own, same := strings.CutPrefix(inner, r.name+"/"); same {
					inner = "./" + own
				} else if inner == r.name {
					inner = "."
				}
				imports[s.folder][inner] = true
			}
		}
	}
	var b strings.Builder
	for _, r := range rooms {
		if imports[r.name] == nil { // only packages below it
			row(&b, r.name, nil)
		}
		for _, folder := range slices.Sorted(maps.Keys(imports)) {
			if !within(folder, r.name) {
				continue
			}
			name := folder
			if own, below := strings.CutPrefix(folder, r.name+"/"); below {
				name = "  " + own
			}
			row(&b, name, slices.Sorted(maps.Keys(imports[folder])))
		}
	}
	return b.String()
}

// row writes a package and what it imports, at most 110 columns wide.
func row(b *strings.Builder, name string, imports []string) {
	const left, width = 34, 110
	line := fmt.Sprintf("%-*s", left, name)
	for _, i := range imports {
		if len(line) > left && len(line)+len(i) > width {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", left)
		}
		line += i + "  "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

func TestTheDocsShowTheTreeAsItIs(t *testing.T) {
	const begin, end = "<!-- go test . -run Tree -update -->\n```\n", "```\n<!-- end -->\n"
	raw, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(raw), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the marks of the tree are gone")
	}
	want := head + begin + tree(t) + end + tail
	if *update {
		if err := os.WriteFile(architecture, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(raw) {
		t.Errorf("%s has drifted from the imports; run go test . -run Tree -update", architecture)
	}
}

// A hop names a package and functions of it, methods with their type: | 3 | `bus` | `Publisher.Publish` | ...
var (
	hop  = regexp.MustCompile("(?m)^\\| \\d+ \\| `([^`]+)` \\| ([^|]+) \\|")
	name = regexp.MustCompile("`([^`]+)`")
)

func TestEachHopOfAKernelLineIsInTheCode(t *testing.T) {
	raw, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]map[string]bool{}
	for _, s := range sources(t, parser.SkipObjectResolution) {
		if declared[s.folder] == nil {
			declared[s.folder] = map[string]bool{}
		}
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				declared[s.folder][receiverOf(f)+f.Name.Name] = true
			}
		}
	}
	hops := hop.FindAllStringSubmatch(string(raw), -1)
	for _, h := range hops {
		known, there := declared[h[1]]
		if !there {
			t.Errorf("a hop is in %s: there is no such package", h[1])
			continue
		}
		names := name.FindAllStringSubmatch(h[2], -1)
		if len(names) == 0 {
			t.Errorf("the hop in %s names no function", h[1])
		}
		for _, n := range names {
			if !known[n[1]] {
				t.Errorf("a hop is %s in %s: there is no such function", n[1], h[1])
			}
		}
	}
	if len(hops) < 10 {
		t.Errorf("only %d hops found in %s", len(hops), architecture)
	}
}

// receiverOf is the type of a method with a dot, and empty for a function.
func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return ""
	}
	x := f.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if id, ok := x.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}
