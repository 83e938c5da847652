package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	root := flag.String("root", ".", "the repository")
	update := flag.Bool("update", false, "lower the counts of the ratchet to what the files have; without a ratchet, record them")
	list := flag.String("list", "", "print every finding of this file")
	flag.Parse()
	if err := run(*root, *update, *list, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "language:", err)
		os.Exit(1)
	}
}

func run(root string, update bool, list string, out io.Writer) error {
	reports, err := read(root)
	if err != nil {
		return err
	}
	if list != "" {
		r, ok := reports[list]
		if !ok {
			return fmt.Errorf("%s is not a file that is checked", list)
		}
		for _, f := range r.findings {
			fmt.Fprintf(out, "%s:%s\n", list, f)
		}
		return nil
	}
	file := filepath.Join(root, "tools/language/ratchet.tsv")
	text, err := os.ReadFile(file)
	first := os.IsNotExist(err)
	if err != nil && !first {
		return err
	}
	limits, err := readRatchet(string(text))
	if err != nil {
		return err
	}
	if update {
		if err := os.WriteFile(file, []byte(writeRatchet(lowered(limits, reports, first))), 0o644); err != nil {
			return err
		}
	}
	bad, sentences, long := 0, 0, 0
	for _, path := range slices.Sorted(maps.Keys(reports)) {
		r := reports[path]
		sentences, long = sentences+r.sentences, long+r.long
		limit, listed := limits[path]
		if !listed {
			limit = unlisted(r)
		}
		if first && update {
			continue
		}
		if over := exceeds(r.counts, limit); over != nil {
			bad++
			fmt.Fprintf(out, "%s: %s\n", path, strings.Join(over, "; "))
		}
	}
	fmt.Fprintf(out, "language: %d files, %d sentences of pages, %.1f %% of more than %d words\n", len(reports), sentences, 100*float64(long)/float64(max(sentences, 1)), longSentence)
	if bad > 0 {
		return fmt.Errorf("%d files are worse than before; `go -C tools run ./language -root .. -list FILE` prints each place", bad)
	}
	return nil
}

// read checks every file that people read, by its path below root.
func read(root string) (map[string]report, error) {
	rules, err := rules(wordList)
	if err != nil {
		return nil, err
	}
	out := map[string]report{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains(skipped, d.Name()) || rel == "tools") {
				return filepath.SkipDir
			}
			return nil
		}
		kind := kindOf(rel)
		if kind == "" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var r report
		switch kind {
		case "page":
			r = checkPage(rules, string(src))
		case "go":
			if r, err = checkGo(rules, rel, src); err != nil {
				return err
			}
		case "text":
			r = checkText(rules, string(src))
		}
		out[rel] = r
		return nil
	})
	if err == nil && len(out) < 100 {
		err = fmt.Errorf("only %d files found below %s; is it the repository?", len(out), root)
	}
	return out, err
}

var skipped = []string{"testdata", "bin", "node_modules", "out", "__pycache__"}

// kindOf is how a file is read: page, go, text, or "" for not at all.
func kindOf(path string) string {
	switch {
	case strings.HasSuffix(path, ".md"):
		return "page"
	case strings.HasSuffix(path, "_test.go"):
		return ""
	case strings.HasSuffix(path, ".go"):
		return "go"
	case strings.HasSuffix(path, "metadata.yaml"), strings.HasSuffix(path, "values.yaml"), strings.HasSuffix(path, "values-ha.yaml"),
		strings.HasPrefix(path, "rules/catalog/"), strings.HasPrefix(path, "deploy/policies/") && strings.HasSuffix(path, ".yaml"):
		return "text"
	}
	return ""
}
