package incident

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/quick"
	"unicode/utf8"
)

func TestALongLineGoesOnBelowItsTextAndNoWordIsCut(t *testing.T) {
	line := "  +0.000 s  FAULT         xid79 on node-3 (GPU-1) → node-4"
	for _, c := range []struct {
		text          string
		columns, hang int
		want          string
	}{
		{line, 0, 26, line},
		{line, 200, 26, line},
		{line, utf8.RuneCountInString(line), 26, line},
		{line, 57, 26, "  +0.000 s  FAULT         xid79 on node-3 (GPU-1) →\n" + strings.Repeat(" ", 26) + "node-4"},
		{line, 50, 26, "  +0.000 s  FAULT         xid79 on node-3 (GPU-1)\n" + strings.Repeat(" ", 26) + "→ node-4"},
		{line, 40, 26, "  +0.000 s  FAULT         xid79 on\n    node-3 (GPU-1) → node-4"}, // too little is left beside the text
		{"aa bb\ncc dd\n", 26, 2, "aa bb\ncc dd\n"},
		{"word " + strings.Repeat("x", 40) + " word", 30, 2, "word\n  " + strings.Repeat("x", 40) + "\n  word"},
		{"     " + strings.Repeat("x", 40), 30, 2, "     " + strings.Repeat("x", 40)},
		{"", 30, 2, ""},
	} {
		if got := Fold(c.text, c.columns, c.hang); got != c.want {
			t.Errorf("%q in %d columns:\n%s\nwant\n%s", c.text, c.columns, got, c.want)
		}
	}
}

func TestFoldingKeepsEveryWordAndFillsNoMoreThanTheColumns(t *testing.T) {
	if err := quick.Check(func(text string, columns, hang uint8) bool {
		got := Fold(text, int(columns), int(hang))
		if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(text), " ") {
			return false
		}
		for i, line := range strings.Split(Fold(strings.Repeat("four ", 60), 30+int(columns), int(hang%30)), "\n") {
			if utf8.RuneCountInString(line) > 30+int(columns) || i > 0 && line == "" {
				return false
			}
		}
		return true
	}, nil); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoTerminalHasNoColumns(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := Columns(f) + Columns(&bytes.Buffer{}); n != 0 {
		t.Error(n)
	}
}
