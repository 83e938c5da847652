package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// told are commands of ours in running text, and the lines of listings.
var told = regexp.MustCompile("(?m)(?:^|`|\\| )(?:bin/)?pitcrew +([a-z][^`\n|]*)")

// comment is what follows a command on its line.
var comment = regexp.MustCompile(`\s(#|  ).*$`)

func TestEachCommandInTheDocumentationIsThereWithItsFlags(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	runbooks, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil || len(runbooks) == 0 {
		t.Fatalf("runbooks: %v", err)
	}
	pages = append(pages, runbooks...)
	seen := 0
	for _, page := range append(pages, "../../README.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), "\n    ", "\n") // indented listings
		for _, m := range told.FindAllStringSubmatch(text, -1) {
			line := comment.ReplaceAllString(m[1], "")
			words := strings.Fields(line)
			c, rest, err := commands().Find(words)
			switch {
			case err != nil || c.Name() == "pitcrew":
				if strings.HasPrefix(line, "import ") || strings.HasPrefix(line, "as ") {
					continue
				}
				t.Errorf("%s: pitcrew %s: there is no such command", filepath.Base(page), line)
				continue
			case c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-"):
				t.Errorf("%s: pitcrew %s: %s has no command %s", filepath.Base(page), line, c.CommandPath(), rest[0])
			}
			seen++
			for _, w := range rest {
				name, _, _ := strings.Cut(strings.Trim(w, "[]"), "=")
				if strings.HasPrefix(name, "-") && name != "-" && name != "--help" && !known(c, name) {
					t.Errorf("%s: pitcrew %s: there is no flag %s", filepath.Base(page), line, name)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("only %d commands found: does the documentation still print them so?", seen)
	}
	t.Logf("%d commands", seen)
}

func TestEachCommandIsOnThePageOfTheCommandLine(t *testing.T) {
	b, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			walk(sub)
			row := "(?m)^\\| `" + c.CommandPath() + "[ `][^|]*\\b" + sub.Name() + "\\b" // the commands of a group share a row, or several
			if !regexp.MustCompile(row).MatchString(page) {
				t.Errorf("docs/cli.md does not tell of %s", sub.CommandPath())
			}
		}
	}
	walk(commands())
}

func known(c *cobra.Command, name string) bool {
	if long, ok := strings.CutPrefix(name, "--"); ok {
		return c.Flags().Lookup(long) != nil || c.InheritedFlags().Lookup(long) != nil
	}
	short := strings.TrimPrefix(name, "-")
	return c.Flags().ShorthandLookup(short) != nil || c.InheritedFlags().ShorthandLookup(short) != nil
}
