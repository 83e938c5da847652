package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

//go:embed words.tsv
var wordList string

// rule is a word that the style guide replaces.
type rule struct {
	pattern *regexp.Regexp
	instead string
	allowed *regexp.Regexp // removed before the pattern is looked for; nil: nothing
}

func rules(list string) ([]rule, error) {
	var out []rule
	for i, line := range strings.Split(list, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) < 2 || f[1] == "" {
			return nil, fmt.Errorf("words.tsv:%d: want pattern, tab, replacement", i+1)
		}
		r := rule{instead: f[1]}
		var err error
		if r.pattern, err = regexp.Compile(`(?i)(?:^|[^\pL\pN_])(` + f[0] + `)(?:$|[^\pL\pN_])`); err != nil {
			return nil, fmt.Errorf("words.tsv:%d: %w", i+1, err)
		}
		if len(f) > 2 && f[2] != "" {
			if r.allowed, err = regexp.Compile(`(?i)` + f[2]); err != nil {
				return nil, fmt.Errorf("words.tsv:%d: %w", i+1, err)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// counts are what a file has of each kind.
type counts struct{ words, long, wide int }

// report is what was found in one file.
type report struct {
	counts
	sentences int
	findings  []string // "12: ...", in the order of the file
}

func (r *report) check(rules []rule, line int, text string) {
	for _, rule := range rules {
		t := text
		if rule.allowed != nil {
			t = rule.allowed.ReplaceAllString(t, "")
		}
		for _, m := range rule.pattern.FindAllStringSubmatch(t, -1) {
			r.words++
			r.findings = append(r.findings, fmt.Sprintf("%d: %q: write %s", line, m[1], rule.instead))
		}
	}
}

// checkPage reads a page of Markdown.
func checkPage(rules []rule, text string) report {
	var r report
	all, wide := blocks(text)
	for _, b := range all {
		r.check(rules, b.line, b.text)
		if b.heading {
			continue
		}
		for _, s := range sentences(b.text) {
			n := words(s)
			if n < leastWords || b.cell && n <= longSentence { // short cells would only make the share look better
				continue
			}
			r.sentences++
			if n > longSentence {
				r.long++
				r.findings = append(r.findings, fmt.Sprintf("%d: a sentence of %d words: %s", b.line, n, start(s)))
			}
		}
	}
	r.wide = len(wide)
	for _, n := range wide {
		r.findings = append(r.findings, fmt.Sprintf("%d: wider than %d columns", n, wideLine))
	}
	return r
}

// checkGo reads the texts of a Go source: string literals of three words and more, so that names and keys are left out.
func checkGo(rules []rule, name string, src []byte) (report, error) {
	var r report
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, src, 0)
	if err != nil {
		return r, err
	}
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(lit.Value); err == nil && words(text) >= 3 {
			r.check(rules, set.Position(lit.Pos()).Line, text)
		}
		return true
	})
	return r, nil
}

// checkText reads every line of a file, comments too: YAML that people read.
func checkText(rules []rule, text string) report {
	var r report
	for i, line := range strings.Split(text, "\n") {
		r.check(rules, i+1, line)
	}
	return r
}

// start is the first words of a sentence.
func start(s string) string {
	f := strings.Fields(s)
	return strings.Join(f[:min(len(f), 8)], " ") + " …"
}
