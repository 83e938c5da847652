package main

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	longSentence = 30  // words
	wideLine     = 120 // columns
	leastWords   = 4   // of a sentence; what is shorter is a label or the cell of a table
)

// block is text that belongs together: a paragraph, an item of a list, a cell of a table, a heading.
type block struct {
	line    int
	text    string
	heading bool
	cell    bool // of a table
}

var (
	fence      = regexp.MustCompile("^\\s*(```|~~~)")
	heading    = regexp.MustCompile(`^#{1,6} `)
	item       = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.) +`)
	ruler      = regexp.MustCompile(`^\s*\|[-:| ]+\|\s*$`)
	comment    = regexp.MustCompile(`<!--.*?-->`)
	inlineCode = regexp.MustCompile("`[^`]+`")
	image      = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	link       = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	onlyLink   = regexp.MustCompile(`^\s*(?:[-*+] )?(?:\[[^\]]*\]\([^)]*\)|<?https?://\S+)[.,]?$`)
	pipe       = regexp.MustCompile(`[^\\]\|`)
)

// blocks reads a page of Markdown and returns its prose, and the numbers of its lines of prose that are too wide. Code is left out:
// inline code counts as one word.
func blocks(page string) (out []block, wide []int) {
	var open *block
	end := func() {
		if open != nil {
			open.text = plain(open.text)
			out = append(out, *open)
			open = nil
		}
	}
	fenced, blank := false, true
	for i, line := range strings.Split(page, "\n") {
		n := i + 1
		if fence.MatchString(line) {
			end()
			fenced, blank = !fenced, true
			continue
		}
		if fenced {
			continue
		}
		bare := strings.TrimSpace(comment.ReplaceAllString(line, ""))
		switch {
		case bare == "":
			end()
			blank = true
			continue
		case strings.HasPrefix(line, "    ") && blank && !item.MatchString(line): // an indented listing
			end()
			continue
		case strings.HasPrefix(bare, "|"):
			end()
			if !ruler.MatchString(line) {
				for _, cell := range pipe.Split(" "+strings.Trim(plain(bare), "|"), -1) {
					out = append(out, block{line: n, text: strings.TrimSpace(cell), cell: true})
				}
			}
			blank = false
			continue
		}
		blank = false
		if utf8.RuneCountInString(line) > wideLine && !onlyLink.MatchString(line) {
			wide = append(wide, n)
		}
		switch {
		case heading.MatchString(bare):
			end()
			out = append(out, block{line: n, text: plain(heading.ReplaceAllString(bare, "")), heading: true})
		case item.MatchString(line):
			end()
			open = &block{line: n, text: item.ReplaceAllString(line, "")}
		case open != nil:
			open.text += " " + bare
		default:
			open = &block{line: n, text: bare}
		}
	}
	end()
	return out, wide
}

// plain takes the marks of Markdown out of a text.
func plain(line string) string {
	line = image.ReplaceAllString(line, "")
	line = inlineCode.ReplaceAllString(line, "Code")
	line = link.ReplaceAllString(line, "$1")
	return strings.NewReplacer("**", "", "*", "", "<br>", ". ").Replace(line)
}

var abbreviation = regexp.MustCompile(`(?:^|[ (])(?:e\.g|i\.e|vs|etc|no|approx|cf|incl)\.$`)

// sentences splits text at full stops, question marks and exclamation marks that a space and the start of a sentence follow.
func sentences(text string) []string {
	var out []string
	from := 0
	for i, r := range text {
		if r != '.' && r != '!' && r != '?' || i+1 >= len(text) || text[i+1] != ' ' || abbreviation.MatchString(text[from:i+1]) {
			continue
		}
		next, _ := utf8.DecodeRuneInString(strings.TrimLeft(text[i+1:], ` "'([*`))
		if unicode.IsLower(next) {
			continue
		}
		out = append(out, strings.TrimSpace(text[from:i+1]))
		from = i + 1
	}
	if rest := strings.TrimSpace(text[from:]); rest != "" {
		out = append(out, rest)
	}
	return out
}

// words counts the words of a sentence: what has a letter or a digit in it.
func words(sentence string) int {
	n := 0
	for _, f := range strings.Fields(sentence) {
		if strings.IndexFunc(f, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) >= 0 {
			n++
		}
	}
	return n
}
