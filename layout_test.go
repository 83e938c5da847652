package pitcrew_test

import (
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

// house says which of our rooms each room may import, itself always among them. A room that is not here is an error, so that a
// new one is thought about.
var house = map[string][]string{
	"event":      {},
	"rules":      {"event"},
	"hook":       {},
	"detector":   {"event"},
	"bench":      {"event", "detector"},
	"bus":        {"event"},
	"receivers":  {"event", "hook", "rules"},
	"collector":  {"event", "bus", "rules", "hook", "detector", "receivers"},
	"remediator": {"event", "bus", "rules", "deploy"},
	"deploy":     {},
	"dashboards": {},
	"sandbox":    {"event", "bus", "hook", "remediator", "collector", "deploy"},
	"cmd":        {"event", "bus", "rules", "hook", "detector", "receivers", "collector", "remediator", "sandbox", "deploy", "dashboards"},
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
	{"github.com/prometheus/prometheus", "rules run in one place", []string{"detector/promrules"}},
}

// plain rooms import the standard library, our own rooms, and what is listed.
var plain = map[string][]string{
	"event":    {"github.com/cloudevents/sdk-go/"},
	"detector": {},
	"rules":    {"github.com/goccy/go-yaml"},
	"hook":     {"golang.org/x/sys/", "github.com/fsnotify/fsnotify"},
}

var badNames = []string{"util", "utils", "common", "helpers", "types", "misc", "shared"}

type imported struct{ file, folder, path string }

// imports lists what the module's own Go files import, tests left out. Modules of their own below it are not ours to judge.
func imports(t *testing.T) (all []imported, folders map[string]bool) {
	t.Helper()
	folders = map[string]bool{}
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
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		folders[folder] = true
		for _, s := range f.Imports {
			p, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				return err
			}
			all = append(all, imported{path, folder, p})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("only %d imports found; is this the repository's root?", len(all))
	}
	return all, folders
}

func room(folder string) string {
	first, _, _ := strings.Cut(folder, "/")
	return first
}

// within reports whether path is folder or lies in it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

func TestImportsRunOneWayThroughTheHouse(t *testing.T) {
	all, _ := imports(t)
	for _, i := range all {
		from := room(i.folder)
		may, known := house[from]
		if !known {
			t.Errorf("%s: room %q is not in the table of rooms", i.file, from)
			continue
		}
		inner, ours := strings.CutPrefix(i.path, module+"/")
		if to := room(inner); ours && to != from && !slices.Contains(may, to) {
			t.Errorf("%s: %s may not import %s", i.file, from, to)
		}
	}
}

func TestEachDependencyHasItsKeeper(t *testing.T) {
	all, _ := imports(t)
	for _, i := range all {
		for _, k := range keepers {
			if i.path != k.dependency && !within(i.path, k.dependency) {
				continue
			}
			if !slices.ContainsFunc(k.folders, func(f string) bool { return within(i.folder, f) }) {
				t.Errorf("%s imports %s, which only %s may: %s", i.file, i.path, strings.Join(k.folders, ", "), k.why)
			}
		}
	}
}

func TestPlainRoomsStayPlain(t *testing.T) {
	all, _ := imports(t)
	for _, i := range all {
		may, ok := plain[i.folder]
		first, _, _ := strings.Cut(i.path, "/")
		if !ok || !strings.Contains(first, ".") || within(i.path, module) {
			continue
		}
		if !slices.ContainsFunc(may, func(m string) bool { return within(i.path, m) }) {
			t.Errorf("%s: %s is more than the standard library and what %s may have", i.file, i.path, i.folder)
		}
	}
}

func TestNoRoomIsAGrabBag(t *testing.T) {
	_, folders := imports(t)
	for f := range folders {
		for part := range strings.SplitSeq(f, "/") {
			if slices.Contains(badNames, part) {
				t.Errorf("%s: a package is named for what it is about, not %q", f, part)
			}
		}
	}
}
