package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func mustRules(t *testing.T) []rule {
	t.Helper()
	r, err := rules(wordList)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAPageIsCheckedForWordsSentencesAndWidth(t *testing.T) {
	long := strings.Repeat("to ", 31) + "end."
	for _, c := range []struct {
		name, page string
		want       counts
	}{
		{"plain text passes", "# Title\n\nThe agent reports the fault. It retries.\n", counts{}},
		{"a word of the list is found in any case", "Told once.\n", counts{words: 1}},
		{"part of another word is not", "The toldo and the retold story.\n", counts{}},
		{"an allowed phrase passes", "There is no such node. Tell apart the two.\n", counts{}},
		{"the same word elsewhere does not", "It is no node.\n", counts{words: 1}},
		{"code is not read", "```\nhe told him\n```\n\n    he told him\n\nUse `told` here now.\n", counts{}},
		{"a long sentence counts", long + "\n", counts{long: 1}},
		{"so does one in a cell of a table", "| a | b |\n|---|---|\n| x | " + long + " |\n", counts{long: 1}},
		{"and one that goes over several lines", strings.ReplaceAll(long, "to to", "to\nto") + "\n", counts{long: 1}},
		{"two items of a list are two sentences", "- " + strings.Repeat("a ", 20) + "\n- " + strings.Repeat("b ", 20) + "\n", counts{}},
		{"a wide line counts", strings.Repeat("wide. ", 21) + "\n", counts{wide: 1}},
		{"the line of a table does not", "| " + strings.Repeat("wide. ", 30) + " |\n", counts{}},
		{"nor a line that is a link alone", "- [" + strings.Repeat("name ", 25) + "](page.md)\n", counts{}},
	} {
		if got := checkPage(mustRules(t), c.page); got.counts != c.want {
			t.Errorf("%s: %+v, want %+v: %v", c.name, got.counts, c.want, got.findings)
		}
	}
}

func TestTextsOfGoSourcesAreCheckedAndNamesAreNot(t *testing.T) {
	src := "package p\n\nvar told = \"told\" // he told him\nvar e = \"the agent told the node\"\n"
	r, err := checkGo(mustRules(t), "p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if r.words != 1 || !strings.HasPrefix(r.findings[0], "4:") {
		t.Errorf("%d words: %v", r.words, r.findings)
	}
}

// tree is a repository with one page, and enough others that it is taken for one.
func tree(t *testing.T, page string) string {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("docs/page.md", page)
	write("tools/language/.keep", "")
	for i := range 100 {
		write(filepath.Join("docs", strings.Repeat("x", i+1)+".md"), "# Title\n")
	}
	return root
}

func TestAFileMayNotBecomeWorseAndTheRatchetOnlyTightens(t *testing.T) {
	root := tree(t, "He told him. The agent told the node.\n")
	var out bytes.Buffer
	page := filepath.Join(root, "docs/page.md")
	ratchet := filepath.Join(root, "tools/language/ratchet.tsv")
	check := func(update bool) error { return run(root, update, "", &out) }
	rewrite := func(text string) {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if check(false) == nil {
		t.Error("a page that is not in the ratchet may have words to replace")
	}
	if err := check(true); err != nil {
		t.Fatal(err)
	}
	if err := check(false); err != nil {
		t.Errorf("nothing changed, and it fails: %v", err)
	}
	rewrite("He told him, and told her. The agent told the node.\n")
	if check(false) == nil || check(true) == nil {
		t.Error("a page became worse and passed")
	}
	rewrite("The agent told the node.\n")
	if err := check(true); err != nil {
		t.Fatal(err)
	}
	rewrite("He told him. The agent told the node.\n")
	if check(true) == nil {
		t.Error("an update raised what it had lowered")
	}
	rewrite("The agent reports it.\n")
	if err := check(true); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(ratchet); err != nil || strings.Contains(string(b), "page.md") {
		t.Errorf("a clean page is still listed: %v\n%s", err, b)
	}
}

func TestAListOfWordsThatCannotBeReadIsAnError(t *testing.T) {
	for _, list := range []string{"told\n", "(\tx\n", "a\tx\t(\n"} {
		if _, err := rules(list); err == nil {
			t.Errorf("%q was read", list)
		}
	}
}
