package agentbench

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryTestThatThePeersTableNamesExists(t *testing.T) {
	raw, err := os.ReadFile("../../docs/peer-weaknesses.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(raw), -1)
	if len(names) < 40 {
		t.Fatalf("only %d tests are named", len(names))
	}
	var sources strings.Builder
	for _, root := range []string{"../../receivers", "../../collector", "../../detector", "../../remediator", "../../rules", "../../cmd", ".."} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			src, err := os.ReadFile(path)
			sources.Write(src)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range names {
		if !strings.Contains(sources.String(), "func "+n[1]+"(t ") {
			t.Errorf("there is no %s", n[1])
		}
	}
}
