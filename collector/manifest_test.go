package collector

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

var (
	require    = regexp.MustCompile(`(?m)^\s+([a-z]\S+) (v\S+)`)
	call       = regexp.MustCompile(`(?m)^\s*(?:return (?:append\()?\[\][a-z]+\.Factory\{)?(?:[a-z]+\()?(\w+)\.NewFactory\(\)[,})]`)
	importLine = regexp.MustCompile(`"((?:github\.com|go\.opentelemetry\.io)/[^"]+)"`)
)

func TestTheManifestNamesTheSameComponentsAndVersions(t *testing.T) {
	source, err := os.ReadFile("components.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"full.go", "scrape.go"} {
		tagged, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, tagged...)
	}
	paths := map[string]string{}
	for _, m := range importLine.FindAllStringSubmatch(string(source), -1) {
		paths[m[1][strings.LastIndex(m[1], "/")+1:]] = m[1]
	}
	inList := map[string]bool{}
	for _, m := range call.FindAllStringSubmatch(string(source), -1) {
		inList[paths[m[1]]] = true
	}
	mod := versions(t)
	raw, err := os.ReadFile("manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type part struct{ Gomod, Import, Path string }
	var parts struct{ Receivers, Processors, Connectors, Exporters, Extensions, Providers []part }
	if err := yaml.Unmarshal(raw, &parts); err != nil {
		t.Fatal(err)
	}
	inManifest := map[string]bool{}
	for _, list := range [][]part{parts.Receivers, parts.Processors, parts.Connectors, parts.Exporters, parts.Extensions, parts.Providers} {
		for _, p := range list {
			module, version, _ := strings.Cut(p.Gomod, " ")
			if p.Import != "" {
				inManifest[p.Import] = true
			} else {
				inManifest[module] = true
			}
			if want := mod[module]; want != version && module != "github.com/pitcrew/pitcrew" {
				t.Errorf("manifest has %s %s, go.mod has %q", module, version, want)
			}
		}
	}
	for _, p := range []string{"env", "file", "yaml"} {
		inList["go.opentelemetry.io/collector/confmap/provider/"+p+"provider"] = true
	}
	if len(inList) < 14 {
		t.Fatalf("only %d components were read from components.go", len(inList))
	}
	for p := range inList {
		if !inManifest[p] {
			t.Errorf("%s is in the binary and not in the manifest", p)
		}
	}
	for p := range inManifest {
		if !inList[p] {
			t.Errorf("%s is in the manifest and not in the binary", p)
		}
	}
}

func versions(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range require.FindAllStringSubmatch(string(raw), -1) {
		out[m[1]] = m[2]
	}
	return out
}

// others are modules whose release beside the rest could not be fetched, and the nearest before it that could: what they pass is compiled
// against the rest's.
var others = map[string]string{"go.opentelemetry.io/collector/connector/forwardconnector": "v0.149.0"}

func TestTheCollectorsModulesAreAllOfOneVersion(t *testing.T) {
	want := map[string]string{"v0": "v0.152.0", "v1": "v1.58.0"}
	for path, v := range versions(t) {
		if !strings.HasPrefix(path, "go.opentelemetry.io/collector") && !strings.HasPrefix(path, "github.com/open-telemetry/opentelemetry-collector-contrib") {
			continue
		}
		if others[path] == v {
			continue
		}
		if major, _, _ := strings.Cut(v, "."); v != want[major] {
			t.Errorf("%s %s, want %s", path, v, want[major])
		}
	}
}
