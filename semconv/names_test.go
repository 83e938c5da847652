package semconv

import (
	"flag"
	"fmt"
	"go/format"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

var update = flag.Bool("update", false, "write names.go from the components' metadata.yaml")

// words are spelled as the field does; others begin with a capital letter.
var words = map[string]string{
	"aer": "AER", "c2c": "C2C", "dcgm": "DCGM", "ecc": "ECC", "gpm": "GPM", "gpu": "GPU", "gsp": "GSP", "hbm": "HBM", "hw": "HW", "id": "ID",
	"imex": "IMEX", "io": "IO", "k8s": "K8s", "mfu": "MFU", "mig": "MIG", "nats": "NATS", "nvlink": "NVLink", "nvlink5": "NVLink5",
	"nvswitch": "NVSwitch", "pci": "PCI", "pcie": "PCIe", "pid": "PID", "sm": "SM", "sram": "SRAM", "sxid": "SXID", "uid": "UID", "uuid": "UUID",
	"vgpu": "VGPU", "xid": "XID",
}

// identifier is the Go name of a name: the prefix of Pitcrew's own names is left out.
func identifier(name string) string {
	var b strings.Builder
	for _, w := range strings.FieldsFunc(strings.TrimPrefix(name, "pitcrew."), func(r rune) bool { return r == '.' || r == '_' }) {
		if known, ok := words[w]; ok {
			b.WriteString(known)
		} else {
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return b.String()
}

// metadata are the parts of metadata.yaml that have names. Findings (dev.pitcrew) are package event's.
type metadata struct {
	ResourceAttributes map[string]any `yaml:"resource_attributes"`
	Attributes         map[string]any `yaml:"attributes"`
	Metrics            map[string]any `yaml:"metrics"`
	Events             map[string]any `yaml:"events"`
	Telemetry          struct {
		Metrics map[string]any `yaml:"metrics"`
	} `yaml:"telemetry"`
}

// names are the names by their identifiers. Those of events begin with Event, since a metric may be spelled alike.
func (m metadata) names() map[string]string {
	all := map[string]string{}
	for _, part := range []map[string]any{m.ResourceAttributes, m.Attributes, m.Metrics, m.Telemetry.Metrics} {
		for name := range part {
			all[identifier(name)] = name
		}
	}
	for name := range m.Events {
		if !strings.HasPrefix(name, "dev.pitcrew.") {
			all["Event"+identifier(name)] = name
		}
	}
	return all
}

func TestTheNamesAreThoseOfTheComponents(t *testing.T) {
	files, err := filepath.Glob("../[cr]*/*/metadata.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("only %d components with a metadata.yaml: %v", len(files), err)
	}
	names := map[string]string{} // by identifier
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var m metadata
		if err := yaml.Unmarshal(raw, &m); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		for id, name := range m.names() {
			if other, taken := names[id]; taken && other != name {
				t.Fatalf("%s: %s and %s would both be %s", f, name, other, id)
			}
			names[id] = name
		}
	}
	var b strings.Builder
	b.WriteString("// Code generated from the components' metadata.yaml by go test ./semconv -update. DO NOT EDIT.\n\npackage semconv\n\n// Names.\nconst (\n")
	for _, id := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&b, "%s = %q\n", id, names[id])
	}
	b.WriteString(")\n")
	want, err := format.Source([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("names.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile("names.go"); err != nil || string(got) != string(want) {
		t.Errorf("names.go has drifted from the components' metadata.yaml (%v); run go test ./semconv -update", err)
	}
}
