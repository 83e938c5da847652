package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Markers of the generated part of a page. What is outside them is written by hand.
const (
	markerFormat = "<!-- generated from rules/catalog/%s: edit the record there, then run make golden -->"
	markerBegin  = "<!-- generated from rules/catalog"
	markerEnd    = "<!-- end of the generated part -->"
)

// Sections of a runbook page that are written by hand, in their order.
var Sections = []string{"Diagnosis", "Mitigation", "False positives", "Escalation", "Prevention"}

const width = 118

// wrap breaks prose into lines. Code in backticks may be broken at its spaces too, as Markdown allows.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String() + "\n"
}

// head is the generated part of a page, markers included.
func (r *Record) head() string {
	var b strings.Builder
	fmt.Fprintf(&b, markerFormat+"\n", r.File)
	fmt.Fprintf(&b, "\n## Meaning\n\n%s", wrap(r.Meaning))
	after := "at once"
	if r.For > 0 {
		after = "after " + r.For.String()
	}
	b.WriteString("\nIt fires " + after)
	if r.KeepFiringFor > 0 {
		fmt.Fprintf(&b, ", and stays for %s after it ended", r.KeepFiringFor)
	}
	b.WriteString(", on:\n\n```promql\n" + r.Expr + "\n```\n\n| | |\n|---|---|\n")
	fmt.Fprintf(&b, "| severity | %s, %s |\n", r.Severity, r.Stability)
	for _, t := range r.Thresholds {
		fmt.Fprintf(&b, "| limit | %s: %s |\n", t.Value, t.Source)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		fmt.Fprintf(&b, "| metric | `%s` of %s |\n", name, exporters[r.Metrics[name]])
	}
	if r.Needs != "" {
		fmt.Fprintf(&b, "| needs | %s |\n", r.Needs)
	}
	absent := "does not fire"
	if r.Test != nil && r.Test.Absent == fires {
		absent = "fires"
	}
	fmt.Fprintf(&b, "| without data | %s |\n", absent)
	b.WriteString(r.explained())
	if r.Gateway != "" {
		fmt.Fprintf(&b, "| policy signal | `rule/%s`, from a gateway |\n", r.Alert)
	}
	fmt.Fprintf(&b, "\n## Impact\n\n%s", wrap(r.Impact))
	fmt.Fprintf(&b, "\n## What Pitcrew does\n\n%s", wrap(r.Action))
	b.WriteString("\nTo stop all of Pitcrew's actions, run `pitcrew pause --reason \"…\"`.\n")
	b.WriteString(markerEnd + "\n")
	return b.String()
}

// exporters by their short names in the catalog and in metrics.tsv.
var exporters = map[string]string{
	"agent":              "Pitcrew's agent",
	"dcgm":               "Pitcrew's agent, and of dcgm-exporter where it is configured",
	"collector":          "Pitcrew's collector about itself",
	"remediator":         "Pitcrew's remediator",
	"kube-state-metrics": "kube-state-metrics",
	"node_exporter":      "node_exporter",
	"kubelet":            "the kubelet",
	"kueue":              "Kueue",
	"prometheus":         "Prometheus",
	"alertmanager":       "Alertmanager",
	"vllm":               "vLLM",
	"triton":             "Triton Inference Server",
}

// PageOf gives the runbook page of a record: the generated part anew, and of old what is written by hand.
func (r *Record) PageOf(old string) string {
	_, rest, ok := strings.Cut(old, markerEnd+"\n")
	if !ok {
		rest = ""
		for _, s := range Sections {
			rest += "\n## " + s + "\n"
		}
	}
	return "# " + r.Alert + "\n\n" + r.head() + rest
}

// cell escapes what would end a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// firstSentence of a text, as a phrase.
func firstSentence(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if s, _, ok := strings.Cut(text, ". "); ok {
		text = s
	}
	return strings.TrimSuffix(text, ".")
}

// Table is docs/alerts.md.
func Table(all []Record) string {
	var b strings.Builder
	stable := 0
	for i := range all {
		if all[i].Stability == "stable" {
			stable++
		}
	}
	b.WriteString("# Alerts\n\n<!-- Generated from rules/catalog: edit the record there, then run make golden. -->\n\n")
	b.WriteString(wrap(fmt.Sprintf("This page lists every alert: %d are stable, %d are experimental. Each links to its runbook. "+
		"[Alert rules](rules.md#the-catalog) lists the rule files and how they are tested.", stable, len(all)-stable)))
	for _, a := range Areas {
		rows := ""
		for i := range all {
			r := &all[i]
			if r.Area != a.Name {
				continue
			}
			name := "[" + r.Alert + "](runbooks/" + r.Page() + ")"
			if r.Stability != "stable" {
				name = r.Alert + " (experimental)"
			}
			hold := r.For.String()
			if r.For == 0 {
				hold = "at once"
			}
			rows += fmt.Sprintf("| %s | %s | %s | `%s` | %s |\n", name, r.Severity, cell(firstSentence(r.Meaning)), cell(r.Expr), hold)
		}
		if rows != "" {
			b.WriteString("\n## " + a.Title + "\n\n| alert | severity | meaning | condition | after |\n|---|---|---|---|---|\n" + rows)
		}
	}
	return b.String()
}

// Index is the generated part of docs/runbooks/README.md, markers included.
func Index(all []Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, markerFormat+"\n\n| alert | severity | in short |\n|---|---|---|\n", "")
	for _, a := range Areas {
		for i := range all {
			if r := &all[i]; r.Area == a.Name && r.Stability == "stable" {
				fmt.Fprintf(&b, "| [%s](%s) | %s | %s |\n", r.Alert, r.Page(), r.Severity, cell(firstSentence(r.Meaning)))
			}
		}
	}
	return b.String() + "\n" + markerEnd + "\n"
}

// WithIndex replaces the generated part of the index page.
func WithIndex(old, index string) (string, error) {
	before, rest, ok1 := strings.Cut(old, markerBegin)
	_, after, ok2 := strings.Cut(rest, markerEnd+"\n")
	if !ok1 || !ok2 {
		return "", fmt.Errorf("the page has no lines %q and %q", markerBegin, markerEnd)
	}
	return before + index + after, nil
}
