package dashboards

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/pitcrew/pitcrew/dashboards/build"
)

var update = flag.Bool("update", false, "rewrite the boards from their tables")

func TestTheBoardsAreWhatTheirTablesSay(t *testing.T) {
	want, err := build.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range want {
		path := filepath.Join("boards", name)
		got, err := os.ReadFile(path)
		if string(got) == string(text) {
			continue
		}
		if !*update {
			t.Errorf("%s differs from its table (%v): run make golden", path, err)
		} else if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	there, err := filepath.Glob("boards/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		if want[filepath.Base(path)] != nil {
			continue
		}
		if !*update {
			t.Errorf("%s: no table makes it: run make golden", path)
		} else if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
