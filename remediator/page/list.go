package page

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/incident"
)

const perPage = 50

// filter is a tab of the list.
type filter struct {
	Key, Name string
	takes     func(*Row) bool
}

// filters are what the list can be limited to, in the order of their tabs.
var filters = []filter{
	{"all", "All", func(*Row) bool { return true }},
	{"asks", "Wait for an answer", func(r *Row) bool { return r.Asks }},
	{"needs", "Need a person", func(r *Row) bool { return r.Needs && r.Outcome != incident.Observed }},
	{"open", "Open", func(r *Row) bool { return r.Open }},
	{"healed", "Healed", func(r *Row) bool { return r.Class() == "healed" }},
	{"observed", "Only observed", func(r *Row) bool { return r.Outcome == incident.Observed }},
}

// spans are how far back the timeline looks.
var spans = []struct {
	Key, Name string
	lasts     time.Duration
}{
	{"day", "24 hours", 24 * time.Hour}, {"week", "7 days", 7 * 24 * time.Hour}, {"month", "30 days", 30 * 24 * time.Hour},
}

// query is what the list is asked for, as its address has it.
type query struct {
	Text, Show, Span, Parent string
	From, To                 int64 // seconds; 0: any
	Page                     int
}

func readQuery(v url.Values) query {
	q := query{Text: clean(v.Get("q"), 100), Show: v.Get("show"), Span: v.Get("span"), Parent: clean(v.Get("parent"), 100)}
	if !slices.ContainsFunc(filters, func(f filter) bool { return f.Key == q.Show }) {
		q.Show = filters[0].Key
	}
	at := func(name string) int64 { n, _ := strconv.ParseInt(v.Get(name), 10, 64); return max(n, 0) }
	q.From, q.To, q.Page = at("from"), at("to"), int(min(at("page"), 1<<20))
	if q.Span == "" {
		q.Span = spans[0].Key
	}
	return q
}

// link is the address of the list with some of its parts changed.
func (q query) link(change func(*query)) string {
	change(&q)
	v := url.Values{}
	set := func(name, value string) {
		if value != "" && value != "0" {
			v.Set(name, value)
		}
	}
	set("q", q.Text)
	if q.Show != filters[0].Key {
		set("show", q.Show)
	}
	if q.Span != spans[0].Key {
		set("span", q.Span)
	}
	set("parent", q.Parent)
	set("from", strconv.FormatInt(q.From, 10))
	set("to", strconv.FormatInt(q.To, 10))
	set("page", strconv.Itoa(q.Page))
	if len(v) == 0 {
		return "/"
	}
	return "/?" + v.Encode()
}

// takes reports whether a row is among those asked for, whatever the tab.
func (q query) takes(r *Row, known func(string) bool) bool {
	if q.Parent != "" {
		if r.Parent != q.Parent {
			return false
		}
	} else if q.Text == "" && r.Parent != "" && known(r.Parent) {
		return false // its parent's row stands for it
	}
	for _, word := range strings.Fields(strings.ToLower(q.Text)) {
		if !strings.Contains(r.text, word) && !strings.Contains(r.ID, word) {
			return false
		}
	}
	return true
}

// during reports whether a row is of the time that is asked for.
func (q query) during(r *Row) bool {
	at := r.Opened.Unix()
	return (q.From == 0 || at >= q.From) && (q.To == 0 || at < q.To)
}

// tab is one filter with how many rows it has.
type tab struct {
	Name, Link string
	N          int
	Chosen     bool
}

type listView struct {
	head
	Rows         []*Row
	Q            query
	Tabs, Spans  []tab
	Total        int
	First, Last  int
	Newer, Older string
	Everything   string // the list without limits; empty: it has none
	Timeline     *timeline
	Ahead        int // rows that are dated after this server's clock
	Known        int
	Asking       int // rows that wait for an answer
	AskingLink   string
}

func (p *Page) serveList(w http.ResponseWriter, r *http.Request, who *Person) {
	q, now := readQuery(r.URL.Query()), p.o.Now()
	all := p.mirror.all()
	v := listView{head: p.head(w, r, who, "Incidents"), Q: q, Known: len(all)}
	v.Nav, v.Live = "incidents", true
	known := map[string]bool{}
	for _, row := range all {
		if row.Children > 0 {
			known[row.ID] = true
		}
	}
	tallies := make([]int, len(filters))
	var matched, spread []*Row
	chosen := filters[slices.IndexFunc(filters, func(f filter) bool { return f.Key == q.Show })].takes
	for _, row := range all {
		if row.Opened.Sub(now) > clockSlack {
			v.Ahead++
		}
		if row.Asks && (row.Parent == "" || !known[row.Parent]) {
			v.Asking++
		}
		if !q.takes(row, func(id string) bool { return known[id] }) {
			continue
		}
		if chosen(row) {
			spread = append(spread, row) // the timeline shows what is beside the part that was chosen in it
		}
		if !q.during(row) {
			continue
		}
		for k, f := range filters {
			if f.takes(row) {
				tallies[k]++
				if f.Key == q.Show {
					matched = append(matched, row)
				}
			}
		}
	}
	for k, f := range filters {
		v.Tabs = append(v.Tabs, tab{f.Name, q.link(func(q *query) { q.Show, q.Page = f.Key, 0 }), tallies[k], f.Key == q.Show})
	}
	span := spans[0].lasts
	for _, s := range spans {
		if s.Key == q.Span {
			span = s.lasts
		}
		v.Spans = append(v.Spans, tab{s.Name, q.link(func(q *query) { q.Span, q.From, q.To, q.Page = s.Key, 0, 0, 0 }), 0, s.Key == q.Span})
	}
	v.Timeline = newTimeline(spread, now, span, func(from, to time.Time) string {
		return q.link(func(q *query) { q.From, q.To, q.Page = from.Unix(), to.Unix(), 0 })
	})
	v.Total = len(matched)
	q.Page = min(q.Page, max(0, (v.Total-1)/perPage))
	from := q.Page * perPage
	to := min(from+perPage, v.Total)
	v.Rows, v.First, v.Last = matched[from:to], from+1, to
	if q.Page > 0 {
		v.Newer = q.link(func(q *query) { q.Page-- })
	}
	if to < v.Total {
		v.Older = q.link(func(q *query) { q.Page++ })
	}
	if q.Text != "" || q.From > 0 || q.To > 0 || q.Parent != "" || q.Show != filters[0].Key {
		v.Everything = "/"
	}
	v.AskingLink = query{Show: "asks", Span: spans[0].Key}.link(func(*query) {})
	p.show(w, r, http.StatusOK, "list", v)
}

// clockSlack is how far a time may be ahead of this server's clock before the page says so.
const clockSlack = 5 * time.Second

// timeline is how many incidents began when, as bars.
type timeline struct {
	From, To time.Time
	Bars     []bar
	Before   int // incidents before From
	Text     string
	Max      int
}

// bar is one span of the timeline. Its parts are stacked, and its link lists what it holds.
type bar struct {
	X, W        float64
	Link, Title string
	Parts       []part
	N           int
}

type part struct {
	Class string
	Y, H  float64
}

const (
	bars    = 48
	chartW  = 960.0
	chartH  = 64.0
	barRoom = chartW / bars
)

// stack is the order of the classes in a bar, from the bottom.
var stack = []string{"healed", "observed", "ended", "open", "asks", "needs"}

func newTimeline(rows []*Row, now time.Time, span time.Duration, link func(from, to time.Time) string) *timeline {
	each := span / bars
	end := now.Truncate(each).Add(each)
	t := &timeline{From: end.Add(-span), To: end}
	counts := make([]map[string]int, bars)
	in := 0
	for _, r := range rows {
		k := int(r.Opened.Sub(t.From) / each)
		switch {
		case r.Opened.Before(t.From):
			t.Before++
			continue
		case k >= bars: // dated ahead of this clock
			k = bars - 1
		}
		if counts[k] == nil {
			counts[k] = map[string]int{}
		}
		counts[k][r.Class()]++
		counts[k][""]++
		t.Max = max(t.Max, counts[k][""])
		in++
	}
	for k, c := range counts {
		if c == nil {
			continue
		}
		from := t.From.Add(time.Duration(k) * each)
		b := bar{X: float64(k)*barRoom + 1, W: barRoom - 2, N: c[""], Link: link(from, from.Add(each))}
		b.Title = fmt.Sprintf("%s from %s", count(b.N, "incident"), stamp(from))
		y := chartH
		for _, class := range stack {
			if c[class] == 0 {
				continue
			}
			h := max(3, float64(c[class])/float64(t.Max)*(chartH-6))
			y -= h
			b.Parts = append(b.Parts, part{class, y, h})
		}
		t.Bars = append(t.Bars, b)
	}
	t.Text = fmt.Sprintf("%s from %s to %s; at most %d in %s", count(in, "incident"), stamp(t.From), stamp(t.To), t.Max, seconds(each.Seconds()))
	return t
}
