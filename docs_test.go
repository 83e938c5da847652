package pitcrew_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/docs/runbooks"
)

var (
	mdLink     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	mdFence    = regexp.MustCompile("(?ms)^```.*?^```")
	runbookURL = regexp.MustCompile(`(?m)^ +runbook_url: '?([^\s']+)'?$`)
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// pages are the pages of the root and all of docs/, without what is in code.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	read := func(path string) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[path] = mdFence.ReplaceAllString(string(b), "")
	}
	for _, page := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"} {
		read(page)
	}
	err := filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			read(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// anchors of a page, as code hosts make them of headings.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range mdHeading.FindAllStringSubmatch(text, -1) {
		slug := notInSlug.ReplaceAllString(strings.ToLower(m[1]), "")
		out[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return out
}

func TestNoLinkInTheDocumentationIsDeadAndEachPageIsReachedFromTheReadme(t *testing.T) {
	all := pages(t)
	if len(all) < 20 {
		t.Fatalf("only %d pages found; is this the repository's root?", len(all))
	}
	reached := map[string]bool{"README.md": true}
	next := []string{"README.md"}
	links := 0
	for len(next) > 0 {
		page := next[0]
		next = next[1:]
		for _, m := range mdLink.FindAllStringSubmatch(all[page], -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			path := page
			if target != "" {
				path = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: dead link %s", page, m[1])
				continue
			}
			if text, ok := all[path]; ok && anchor != "" && !anchors(text)[anchor] {
				t.Errorf("%s: %s has no heading #%s", page, path, anchor)
			}
			if _, ok := all[path]; ok && !reached[path] {
				reached[path] = true
				next = append(next, path)
			}
		}
	}
	for page := range all {
		if !reached[page] {
			t.Errorf("%s: no page that the README leads to links to it", page)
		}
	}
	t.Logf("%d pages, %d links", len(all), links)
}

// runbookHeadings are what a page says, in this order. Alerts that the remediator sends have pages of their own form.
var runbookHeadings = map[bool][]string{
	false: {"## Meaning\n", "## Impact\n", "## What Pitcrew does\n", "## Diagnosis\n", "## Mitigation\n", "## False positives\n", "## Escalation\n", "## Prevention\n"},
	true:  {"**What it means.**", "**Is my job in danger?**", "**What Pitcrew does automatically.**", "**Escalate**"},
}

func TestEachAlertHasARunbookAndEachRunbookAnAlert(t *testing.T) {
	own := map[string]bool{"PitcrewIncident": true, "PitcrewNeedsPerson": true, "PitcrewFinding": true}
	alerts := map[string]string{} // name: URL
	for name := range own {
		alerts[name] = runbooks.URL("", name)
	}
	files, err := filepath.Glob("rules/prometheus/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "rules/alerts.yaml") {
		rules, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range strings.Split(string(rules), "- alert: ")[1:] {
			name, text, _ := strings.Cut(rule, "\n")
			url := runbookURL.FindStringSubmatch(text)
			if url == nil {
				t.Errorf("%s: %s has no runbook_url", file, name)
				continue
			}
			if alerts[name] != "" {
				t.Errorf("%s: %s is in another file too", file, name)
			}
			alerts[name] = url[1]
		}
	}
	if len(alerts) < 100 {
		t.Errorf("only %d alerts found", len(alerts))
	}
	index, err := os.ReadFile("docs/runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, url := range alerts {
		path, ours := strings.CutPrefix(url, runbooks.DefaultBase)
		page, err := os.ReadFile(filepath.Join("docs/runbooks", path))
		if !ours || err != nil {
			t.Errorf("%s: %s leads to no page: %v", name, url, err)
			continue
		}
		text := string(page)
		if !strings.HasPrefix(text, "# "+name+"\n") {
			t.Errorf("%s: its page begins with another heading", name)
		}
		headings := runbookHeadings[own[name]]
		for i, says := range headings {
			_, after, ok := strings.Cut(text, says)
			if !ok {
				t.Errorf("the runbook of %s does not say %q, or not in its order", name, strings.TrimSpace(says))
				continue
			}
			if !own[name] && strings.HasPrefix(strings.TrimSpace(after), "## ") || i == len(headings)-1 && strings.TrimSpace(after) == "" {
				t.Errorf("the runbook of %s says nothing under %q", name, strings.TrimSpace(says))
			}
			text = after
		}
		if !strings.Contains(string(page), "`") {
			t.Errorf("the runbook of %s has no command", name)
		}
		if !strings.Contains(string(index), "["+name+"]("+name+".md)") {
			t.Errorf("the index of runbooks does not list %s", name)
		}
	}
	pages, err := filepath.Glob("docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if name := strings.TrimSuffix(filepath.Base(p), ".md"); name != "README" && alerts[name] == "" {
			t.Errorf("%s: there is no such alert", p)
		}
	}
}

func TestMakeHelpListsEachTarget(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command("make", "-s", "--no-print-directory", "help").Output()
	if err != nil {
		t.Fatal(err)
	}
	phony := regexp.MustCompile(`(?m)^\.PHONY: (.+)$`).FindStringSubmatch(string(makefile))
	if phony == nil {
		t.Fatal("the Makefile has no .PHONY")
	}
	for _, target := range strings.Fields(phony[1]) {
		if !regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(target) + ` +\S`).Match(help) {
			t.Errorf("make help does not list %s: add ## and what it does to its line", target)
		}
	}
}
