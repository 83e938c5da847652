package terminal

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
)

func written(t *testing.T, parts ...string) string {
	t.Helper()
	r, f, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w := To(f)
	for _, p := range parts {
		if n, err := w.Write([]byte(p)); err != nil || n != len(p) {
			t.Fatalf("%d of %d, %v", n, len(p), err)
		}
	}
	f.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestNothingThatIsPrintedControlsTheTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain, äöü ✓ → 日本\t|\n":           "plain, äöü ✓ → 日本\t|\n",
		"\x1b[2J\x1b]0;owned\x07":          `\u001b[2J\u001b]0;owned\u0007`,
		"ok\rFAIL":                         `ok\u000dFAIL`,
		"\u009b31m":                        `\u009b31m`, // CSI as one character
		"\x9b31m":                          `\x9b31m`,   // and as a byte
		"\u202egnp.exe":                    `\u202egnp.exe`,
		"a\u2066b\u2069c\u200f":            `a\u2066b\u2069c\u200f`,
		"\x00\x08\x7f":                     `\u0000\u0008\u007f`,
		"\xff\xfe":                         `\xff\xfe`,
		"the replacement character \ufffd": "the replacement character \ufffd",
	} {
		if got := written(t, in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q): %q, want %q", in, got, want)
		}
	}
	if got := written(t, "a\xe2", "\x9c", "\x93b"); got != "a✓b" {
		t.Errorf("a character in three writes: %q", got)
	}
}

func TestJSONKeepsItsValue(t *testing.T) {
	value := "\x1b[31m \u202e \u009b <b>"
	var in strings.Builder
	if err := json.NewEncoder(&in).Encode(value); err != nil {
		t.Fatal(err)
	}
	var got string
	if out := written(t, in.String()); json.Unmarshal([]byte(out), &got) != nil || got != value || strings.ContainsAny(out, "\u202e\u009b\x1b") {
		t.Errorf("%q from %q", got, out)
	}
}
