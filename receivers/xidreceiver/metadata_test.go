package xidreceiver

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func TestMetadataNamesWhatTheCodeEmitsAndNothingElse(t *testing.T) {
	data, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		Type       string         `yaml:"type"`
		Resource   map[string]any `yaml:"resource_attributes"`
		Attributes map[string]any `yaml:"attributes"`
		Events     map[string]struct {
			Attributes []string `yaml:"attributes"`
		} `yaml:"events"`
		Telemetry struct {
			Metrics map[string]any `yaml:"metrics"`
		} `yaml:"telemetry"`
	}
	if err := yaml.Unmarshal(data, &meta); err != nil {
		t.Fatal(err)
	}
	same := func(what string, got, want []string) {
		t.Helper()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s\nin the code: %v\nin metadata: %v", what, got, want)
		}
	}
	if meta.Type != Type.String() {
		t.Errorf("type %q", meta.Type)
	}
	same("events", eventNames(), keys(meta.Events))
	attrs := keys(meta.Attributes)
	same("names", spelled(t), slices.Concat(attrs, keys(meta.Resource), keys(meta.Telemetry.Metrics)))
	used := map[string]bool{}
	for name, e := range meta.Events {
		for _, a := range e.Attributes {
			used[a] = true
			if !slices.Contains(attrs, a) {
				t.Errorf("event %s has attribute %s, which is not defined", name, a)
			}
		}
	}
	same("attributes used by events", attrs, keys(used))
}

// spelled are the names of semconv that the package's code uses.
func spelled(t *testing.T) []string {
	t.Helper()
	parse := func(file string) *ast.File {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	value := map[string]string{}
	ast.Inspect(parse("../../semconv/names.go"), func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			value[v.Names[0].Name], _ = strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		ast.Inspect(parse(file), func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "semconv" {
					names[value[s.Sel.Name]] = true
				}
			}
			return true
		})
	}
	return keys(names)
}

func keys[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	return all
}

// Every event has only the attributes that metadata gives it.
func TestEventsHaveTheAttributesThatMetadataGivesThem(t *testing.T) {
	data, err := os.ReadFile("metadata.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var meta struct {
		Events map[string]struct {
			Attributes []string `yaml:"attributes"`
		} `yaml:"events"`
	}
	if err := yaml.Unmarshal(data, &meta); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	lines := []string{
		"NVRM: Xid (PCI:0000:1a:00 GPU-I:05 GPU-CI:02): 145, pid=7, name=x, RLW_SRC_TRACK Fatal XC1 i0 Link 12 (0x040988e2 0x00000001) caused by previous Xid 149",
		"NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
		"nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion",
		"NVRM: GPU 0000:1c:00.0: GPU has fallen off the bus.",
		"NVRM: GPU 0000:98:00.0: rm_init_adapter failed, device minor number 0",
		"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).",
		"nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)",
		"mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).",
	}
	for _, l := range lines {
		r.log.write("%s", l)
	}
	r.start()
	seen := map[string]bool{}
	for range lines {
		rec := r.next()
		seen[rec.event] = true
		for a := range rec.attrs {
			if !slices.Contains(meta.Events[rec.event].Attributes, a) {
				t.Errorf("%s has %s, which metadata does not give it", rec.event, a)
			}
		}
	}
	if len(seen) != len(eventNames())-2 { // lines_lost and log have tests of their own
		t.Errorf("events: %v", keys(seen))
	}
}

func TestTheFactoryMakesAReceiverThatStartsAndStops(t *testing.T) {
	f := NewFactory()
	cfg := f.CreateDefaultConfig().(*Config)
	if err := componenttest.CheckConfigStruct(cfg); err != nil {
		t.Error(err)
	}
	cfg.Path = t.TempDir() + "/kmsg"
	r, err := f.CreateLogs(context.Background(), receivertest.NewNopSettings(Type), cfg, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(context.Background(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	if err := r.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.Shutdown(context.Background()); err != nil {
		t.Errorf("a second shutdown: %v", err)
	}
}

func TestConfigurationIsReadAndItsFaultsAreSaidTogether(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	conf := confmap.NewFromStringMap(map[string]any{
		"path": "/run/kmsg", "boot_id_path": "/run/boot", "storage": "file_storage/xid", "news_window": "5m", "cluster": "c", "node": "n",
	})
	if err := conf.Unmarshal(cfg); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil || cfg.StorageID.String() != "file_storage/xid" || cfg.NewsWindow.Minutes() != 5 {
		t.Errorf("%v %+v", err, cfg)
	}
	bad := Config{Path: "kmsg", NewsWindow: -1}
	if err := bad.Validate(); err == nil || len(err.(interface{ Unwrap() []error }).Unwrap()) != 3 {
		t.Errorf("%v", err)
	}
}

func TestAStorageThatIsNotThereIsSaidAtStart(t *testing.T) {
	r := newRig(t)
	rec, err := newReceiver(receivertest.NewNopSettings(Type), r.cfg, consumertest.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if err := rec.Start(context.Background(), componenttest.NewNopHost()); err == nil {
		t.Error("it started")
	}
}
