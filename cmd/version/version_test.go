package version

import (
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

func TestAProgramSaysTheRevisionThatTheMakefileGives(t *testing.T) {
	raw, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	type here struct{}
	if name := "-X " + reflect.TypeFor[here]().PkgPath() + ".revision="; !strings.Contains(string(raw), name) { // the linker takes any name
		t.Errorf("the Makefile does not set it: %s", name)
	}
	defer func() { revision = "" }()
	revision = "v1.2.3-4-gabc"
	if got, want := Of(), "v1.2.3-4-gabc "+runtime.Version(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
