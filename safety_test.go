package pitcrew_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile("`(Test\\w+|test_\\w+)`")
	madeTest  = regexp.MustCompile(`(?m)^(?:func (Test\w+)\(|\s*def (test_\w+)\()`)
)

func TestEachTestThatTheSafetyPageNamesExists(t *testing.T) {
	page, err := os.ReadFile("docs/safety.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".py") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range madeTest.FindAllStringSubmatch(string(b), -1) {
			have[m[1]+m[2]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := namedTest.FindAllStringSubmatch(string(page), -1)
	if len(named) < 60 {
		t.Fatalf("docs/safety.md names %d tests; is its table there?", len(named))
	}
	for _, m := range named {
		if !have[m[1]] && m[1] != "test_checkpoint" {
			t.Errorf("docs/safety.md names %s, which does not exist", m[1])
		}
	}
}
