package page

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

//go:embed templates
var texts embed.FS

// views are the templates by the name of their page.
type views struct{ by map[string]*template.Template }

var functions = template.FuncMap{
	"stamp": stamp,
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"secs":  seconds,
	"path":  url.PathEscape,
	"num":   number,
	"join":  func(s []string) string { return strings.Join(s, ", ") },
	"count": count,
}

// seconds writes a duration of s seconds as people say it.
func seconds(s float64) string {
	switch a := math.Abs(s); {
	case a < 0.0005:
		return "0 s"
	case a < 10:
		return strconv.FormatFloat(s, 'f', 3, 64) + " s"
	case a < 120:
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	case a < 2*3600:
		return fmt.Sprintf("%d min %d s", int(s)/60, int(a)%60)
	case a < 48*3600:
		return fmt.Sprintf("%d h %d min", int(s)/3600, int(a)%3600/60)
	}
	return fmt.Sprintf("%d days", int(s)/86400)
}

func number(v *float64) string {
	if v == nil {
		return "–"
	}
	return strconv.FormatFloat(*v, 'g', 6, 64)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

var pageNames = []string{"list", "incident", "fleet", "observed", "login", "runbook", "message"}

func newViews() (*views, error) {
	v := &views{by: map[string]*template.Template{}}
	for _, name := range pageNames {
		t, err := template.New("").Funcs(functions).ParseFS(texts, "templates/layout.html", "templates/"+name+".html")
		if err != nil {
			return nil, err
		}
		v.by[name] = t
	}
	return v, nil
}

// head is what every page shows.
type head struct {
	Title, Nav string
	Cluster    string
	Who        *Person
	May        bool   // this person may act
	Actions    bool   // anybody may
	Form       string // the value of forms
	State      State
	Live       bool // the page updates itself
}

func (p *Page) head(w http.ResponseWriter, r *http.Request, who *Person, title string) head {
	h := head{Title: title, Cluster: clean(p.o.Cluster, maxCell), Who: who, Actions: p.o.Actions, Form: p.formCode(w, r), State: p.state()}
	h.May = p.o.Actions && who != nil && who.Role == Operator
	return h
}

// show renders a page whole before a byte is sent.
func (p *Page) show(w http.ResponseWriter, r *http.Request, code int, name string, data any) {
	var b bytes.Buffer
	if err := p.views.by[name].ExecuteTemplate(&b, "page", data); err != nil {
		p.o.Log.Error("incident page: render", "page", name, "error", err)
		http.Error(w, "This page cannot be shown; the log of the remediator has the reason.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b.Bytes())
	}
}

type messageView struct {
	head
	Text string
	Back string
}

// fail shows why a request was not carried out.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, who *Person, code int, text string) {
	back := "/"
	if id := r.PathValue("id"); id != "" && r.Method != http.MethodGet { // an action failed; a page that is missing leads to the list
		back = "/incidents/" + url.PathEscape(id)
	}
	p.show(w, r, code, "message", messageView{head: p.head(w, r, who, http.StatusText(code)), Text: clean(text, maxText), Back: back})
}
