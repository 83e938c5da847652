package pitcrew_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/pitcrew/pitcrew"

// room is a folder of the root.
type room struct {
	name string
	may  []string // rooms that its packages import, beside its own
	base bool     // its root package is what the packages below it build on; in other rooms the root package is above them
}

// rooms are listed from the lowest to the highest. A room imports only rooms that are listed above it and named in its row.
var rooms = []room{
	{name: "semconv"},
	{name: "event"},
	{name: "docs"},
	{name: "rules", may: []string{"semconv", "docs"}},
	{name: "hook", base: true},
	{name: "deploy"},
	{name: "dashboards", base: true},
	{name: "bus", may: []string{"event"}, base: true},
	{name: "detector", may: []string{"semconv", "event", "rules"}},
	{name: "bench", may: []string{"event", "detector"}, base: true},
	{name: "receivers", may: []string{"semconv", "rules", "hook"}},
	{name: "collector", may: []string{"semconv", "event", "rules", "hook", "bus", "detector", "receivers"}},
	{name: "remediator", may: []string{"semconv", "event", "docs", "rules", "deploy", "bus"}},
	{name: "sandbox", may: []string{"event", "deploy", "bus", "remediator"}, base: true},
	{name: "cmd", may: []string{"event", "docs", "rules", "deploy", "dashboards", "bus", "detector", "receivers", "collector", "remediator", "sandbox"}},
}

func roomOf(folder string) (r room, known bool) {
	first, _, _ := strings.Cut(folder, "/")
	at := slices.IndexFunc(rooms, func(r room) bool { return r.name == first })
	if at < 0 {
		return room{name: first}, false
	}
	return rooms[at], true
}

// keepers say who may import a dependency that shapes what imports it. Folders are prefixes.
var keepers = []struct {
	dependency string
	why        string
	folders    []string
}{
	{"github.com/nats-io/", "NATS is package bus's; others speak in its words", []string{"bus"}},
	{"k8s.io/client-go", "the cluster is changed in one place", []string{"remediator", "sandbox"}},
	{"sigs.k8s.io/controller-runtime", "the cluster is changed in one place", []string{"remediator", "sandbox"}},
	{"go.opentelemetry.io/collector", "pdata and components are skins; engines do not know them", []string{"collector", "receivers"}},
	{"github.com/open-telemetry/", "components are skins", []string{"collector", "receivers"}},
	{"github.com/NVIDIA/", "DCGM is behind the receiver's interface", []string{"receivers/dcgmreceiver", "sandbox/libdcgm"}},
	{"C", "without cgo all but DCGM must build", []string{"receivers/dcgmreceiver", "sandbox/libdcgm"}},
	{"github.com/prometheus/prometheus", "rules run in one place, and their tests in another", []string{"detector/promrules", "rules/ruletest"}},
	{"github.com/grafana/", "boards are made before; programs embed their JSON", []string{"dashboards/build"}},
	{"gonum.org/v1/plot", "an agent draws nothing", []string{"detector/offline"}},
	{"github.com/spf13/cobra", "engines have no flags", []string{"cmd", "collector", "sandbox"}},
}

// plain packages import the standard library, our own packages, and what is listed.
var plain = map[string][]string{
	"event":            {"github.com/cloudevents/sdk-go/"},
	"detector":         {},
	"detector/finding": {},
	"rules":            {"github.com/goccy/go-yaml"},
	"hook":             {"golang.org/x/sys/", "github.com/fsnotify/fsnotify"},
}

var badNames = []string{"util", "utils", "common", "helpers", "types", "misc", "shared"}

// source is a Go file that is not a test.
type source struct {
	file, folder string
	syntax       *ast.File
	imports      []string
}

// sources parses the module's own Go files, tests left out. Modules of their own below it are not ours to judge.
func sources(t *testing.T, mode parser.Mode) (all []source) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "node_modules") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != "." {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, mode)
		if err != nil {
			return err
		}
		s := source{file: path, folder: filepath.ToSlash(filepath.Dir(path)), syntax: f}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, p)
		}
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("only %d Go files found; is this the repository's root?", len(all))
	}
	return all
}

// within reports whether path is folder or lies in it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

func TestTheTableOfRoomsGoesUpwards(t *testing.T) {
	for i, r := range rooms {
		if s, err := os.Stat(r.name); err != nil || !s.IsDir() {
			t.Errorf("room %s: there is no such folder", r.name)
		}
		for _, lower := range r.may {
			if !slices.ContainsFunc(rooms[:i], func(o room) bool { return o.name == lower }) {
				t.Errorf("room %s may import %s, which is not listed above it", r.name, lower)
			}
		}
	}
}

func TestNoImportPointsUp(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t, parser.ImportsOnly) {
		from, known := roomOf(s.folder)
		if !known {
			t.Errorf("%s: room %q is not in the table of rooms", s.file, from.name)
			continue
		}
		for _, path := range s.imports {
			inner, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			to, _ := roomOf(inner)
			used[from.name+" "+to.name] = true
			switch {
			case to.name == from.name && !from.base && s.folder != inner && within(s.folder, inner):
				t.Errorf("%s imports %s, which is above it", s.file, inner)
			case to.name != from.name && !slices.Contains(from.may, to.name):
				t.Errorf("%s: %s may not import %s", s.file, from.name, to.name)
			}
		}
	}
	for _, r := range rooms {
		for _, to := range r.may {
			if !used[r.name+" "+to] {
				t.Errorf("room %s may import %s and does not: remove it from the table", r.name, to)
			}
		}
	}
}

func TestEachDependencyHasItsKeeper(t *testing.T) {
	for _, s := range sources(t, parser.ImportsOnly) {
		for _, path := range s.imports {
			for _, k := range keepers {
				if path != k.dependency && !within(path, k.dependency) {
					continue
				}
				if !slices.ContainsFunc(k.folders, func(f string) bool { return within(s.folder, f) }) {
					t.Errorf("%s imports %s, which only %s may: %s", s.file, path, strings.Join(k.folders, ", "), k.why)
				}
			}
		}
	}
}

func TestPlainPackagesStayPlain(t *testing.T) {
	for _, s := range sources(t, parser.ImportsOnly) {
		may, ok := plain[s.folder]
		for _, path := range s.imports {
			first, _, _ := strings.Cut(path, "/")
			if !ok || !strings.Contains(first, ".") || within(path, module) {
				continue
			}
			if !slices.ContainsFunc(may, func(m string) bool { return within(path, m) }) {
				t.Errorf("%s: %s is more than the standard library and what %s may have", s.file, path, s.folder)
			}
		}
	}
}

func TestNoPackageIsAGrabBag(t *testing.T) {
	for _, s := range sources(t, parser.ImportsOnly) {
		for part := range strings.SplitSeq(s.folder, "/") {
			if slices.Contains(badNames, part) {
				t.Errorf("%s: a package is named for what it is about, not %q", s.folder, part)
			}
		}
	}
}
