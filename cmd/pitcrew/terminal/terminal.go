// Package terminal keeps what `pitcrew` prints from controlling the terminal that shows it. Findings carry lines of kernel logs and texts of
// training processes, whose authors are not trusted: an escape sequence could hide lines, rename the window or answer for the reader.
package terminal

import (
	"fmt"
	"io"
	"os"
	"unicode"
	"unicode/utf8"
)

// Writer replaces control characters, marks of text direction and invalid UTF-8 by their escapes, such as \u001b. New lines and tabs stay. JSON
// stays the same value, since its strings may hold these escapes. It is for one goroutine at a time.
type Writer struct {
	f    *os.File
	rest []byte // the beginning of a character whose end has not been written yet
	out  []byte
}

// To writes to a file.
func To(f *os.File) *Writer { return &Writer{f: f} }

// Fd is the file's descriptor: what asks for the width of a terminal uses it.
func (w *Writer) Fd() uintptr { return w.f.Fd() }

// Write escapes p and writes it. It reports all of p as written, unless the file does not take it.
func (w *Writer) Write(p []byte) (int, error) {
	in := append(w.rest, p...)
	w.out, w.rest = w.out[:0], nil
	for len(in) > 0 {
		if !utf8.FullRune(in) {
			w.rest = append([]byte(nil), in...)
			break
		}
		r, size := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && size == 1:
			w.out = fmt.Appendf(w.out, `\x%02x`, in[0])
		case r == '\n', r == '\t', !controls(r):
			w.out = append(w.out, in[:size]...)
		default:
			w.out = fmt.Appendf(w.out, `\u%04x`, r)
		}
		in = in[size:]
	}
	if _, err := w.f.Write(w.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// controls reports whether a terminal does something with the character other than show it in its place.
func controls(r rune) bool {
	return r < 0x20 || r >= 0x7f && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

// Escape is text as Write would print it.
func Escape(text string) string {
	var out []byte
	for i, r := range text {
		switch {
		case r == utf8.RuneError && text[i] != 0xef:
			out = fmt.Appendf(out, `\x%02x`, text[i])
		case r == '\n', r == '\t', !controls(r):
			out = utf8.AppendRune(out, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return string(out)
}

// Raw is the file behind a Writer, for what is not text; any other writer as it is.
func Raw(w io.Writer) io.Writer {
	if t, ok := w.(*Writer); ok {
		return t.f
	}
	return w
}
