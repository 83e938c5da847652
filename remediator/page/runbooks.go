package page

import (
	"bytes"
	"html/template"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"

	"github.com/pitcrew/pitcrew/docs/runbooks"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// books are the runbook pages, rendered once.
type books struct {
	html     map[string]template.HTML
	names    []string
	bySignal map[string][]string // pages that name a signal, such as xid/79
}

// signalWord finds the signals that a page names in code.
var signalWord = regexp.MustCompile("`([a-z][a-z0-9]*/[a-zA-Z0-9-]+)`")

// outside finds links that lead out of the folder of runbooks, which this page does not serve.
var outside = regexp.MustCompile(`href="\.\./([^"]*)"`)

// repository is where pages outside of the runbooks are.
const repository = "https://github.com/pitcrew/pitcrew/blob/main/docs/"

func newBooks() (*books, error) {
	md := goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID())) // raw HTML is left out
	b := &books{html: map[string]template.HTML{}, bySignal: map[string][]string{}, names: runbooks.Names()}
	for _, name := range b.names {
		raw, err := runbooks.Page(name)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		if err := md.Convert(raw, &out); err != nil {
			return nil, err
		}
		text := outside.ReplaceAllString(out.String(), `href="`+repository+`$1"`)
		text = strings.ReplaceAll(text, "<table>", `<div class="wide" tabindex="0" role="region" aria-label="table"><table>`)
		text = strings.ReplaceAll(text, "</table>", "</table></div>")
		text = strings.ReplaceAll(text, "<pre>", `<pre tabindex="0">`)
		b.html[name] = template.HTML(text) //nolint:gosec // rendered from our own embedded pages
		for _, m := range signalWord.FindAllSubmatch(raw, -1) {
			if s := string(m[1]); !slices.Contains(b.bySignal[s], name) {
				b.bySignal[s] = append(b.bySignal[s], name)
			}
		}
	}
	return b, nil
}

// notices are the pages of the remediator's own alerts.
const (
	pageIncident = "PitcrewIncident"
	pagePerson   = "PitcrewNeedsPerson"
)

// maxBooks bounds the pages that an incident links to.
const maxBooks = 6

// of are the pages that help with an incident, the most urgent first.
func (b *books) of(i *incident.Incident) (out []string) {
	add := func(names ...string) {
		for _, n := range names {
			if b.html[n] != "" && !slices.Contains(out, n) && len(out) < maxBooks {
				out = append(out, n)
			}
		}
	}
	if i.NeedsPerson() {
		add(pagePerson)
	}
	for _, f := range i.Faults {
		if alert, ok := strings.CutPrefix(f.Signal, "rule/"); ok {
			add(alert)
		}
		add(b.bySignal[f.Signal]...)
	}
	add(pageIncident)
	return out
}

type runbookView struct {
	head
	Name string
	HTML template.HTML
}

// serveRunbook needs no token: the pages hold nothing of this cluster, and a link of an alert must work at three in the morning.
func (p *Page) serveRunbook(w http.ResponseWriter, r *http.Request) {
	who, _ := p.gate.person(r)
	name := strings.TrimSuffix(r.PathValue("name"), ".md")
	if name == "" {
		name = "README"
	}
	text, ok := p.books.html[name]
	if !ok {
		p.fail(w, r, who, http.StatusNotFound, "There is no runbook "+name+".")
		return
	}
	title := name
	if name == "README" {
		title = "Runbooks"
	}
	v := runbookView{head: p.head(w, r, who, title), Name: name, HTML: text}
	v.Nav = "runbooks"
	p.show(w, r, http.StatusOK, "runbook", v)
}
