package incident

import (
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	textAt   = 13 // column of an incident's values, and of what was considered
	noteAt   = 34 // of a Line's text
	writeAt  = 21 // of what was written
	leastFor = 24 // columns; where fewer would be left for a text, it goes on below its line's beginning
	shallow  = 4
)

// Columns is the width of the terminal that w is; 0: it is none, or does not say, and lines stay whole.
func Columns(w io.Writer) int {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// FoldLine folds a Line that begins at a column.
func FoldLine(line string, columns, begins int) string { return Fold(line, columns, begins+noteAt) }

// Fold breaks the lines of text that are longer than so many columns between words, and goes on at column hang, counted from 0. Words are
// never cut: one that is longer stands on a line of its own. With no columns text stays as it is.
func Fold(text string, columns, hang int) string {
	if columns <= 0 {
		return text
	}
	if columns-hang < leastFor {
		hang = shallow
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(fold(line, columns, hang), "\n"+strings.Repeat(" ", hang))
	}
	return strings.Join(lines, "\n")
}

// fold gives the parts of a line, each without what goes before it.
func fold(line string, columns, hang int) (parts []string) {
	for room, least := columns, hang; utf8.RuneCountInString(line) > room; room, least = columns-hang, 0 {
		cut, word, at := -1, false, 0 // where the last space lies that a break may take the place of
		for i, r := range line {
			if r == ' ' && word && at >= least {
				cut = i
			}
			word = word || r != ' ' && at >= least
			if at++; at > room && cut >= 0 {
				break
			}
		}
		if cut < 0 {
			break
		}
		parts = append(parts, strings.TrimRight(line[:cut], " "))
		if line = strings.TrimLeft(line[cut:], " "); line == "" { // it ended with spaces, just where it is broken
			return parts
		}
	}
	return append(parts, line)
}
