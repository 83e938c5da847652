package remediator

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"os"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/page"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// servePage serves the incident page until ctx ends, whether this process leads or not. Healing never depends on it: an address that is taken
// is tried again.
func servePage(ctx context.Context, o Options, b *bus.Bus, c *cluster.Cluster, record *audit) error {
	people := &weeks{file: o.PagePeople, now: time.Now}
	p, err := page.New(page.Options{
		Address: o.Page, Access: o.PageAccess, Actions: o.PageActions, Cluster: o.Cluster, Log: o.Log,
		Incidents: bus.NewBucket[incident.Incident](b, bus.IncidentBucket), Conditions: b.Conditions, Kill: b.Control(), Killed: b.WatchKillSwitch, Connected: b.Connected,
		Attempts: func(ctx context.Context, job string) (bus.Attempt, error) {
			a, _, err := b.Attempts().Get(ctx, job)
			return a, err
		},
		Nodes: c, Weeks: people.of, Audit: record.person,
	})
	if err != nil {
		return err
	}
	for {
		if err := p.Run(ctx); err != nil {
			o.Log.Error("the incident page is not served; will retry", "error", err)
		}
		if !pause(ctx, 10*time.Second) {
			return nil
		}
	}
}

// near is how far apart a person and Pitcrew may act on a node and still mean the same, as `pitcrew policy simulate` takes it.
const near = 30 * time.Minute

// weeksLast is how long a comparison is shown again before it is made anew.
const weeksLast = 2 * time.Second

// weeks sets what observing policies would have done against the file of what people did.
type weeks struct {
	file string
	now  func() time.Time

	mu   sync.Mutex
	made time.Time
	last []page.Week
	err  error
}

// of compares the incidents of the list, newest week first. The weeks are there also where the file cannot be read.
func (w *weeks) of(rows []*page.Row) ([]page.Week, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.now(); w.made.IsZero() || now.Sub(w.made).Abs() > weeksLast {
		done, err := w.deeds()
		w.last, w.err, w.made = weekly(rows, done), err, now
	}
	out := slices.Clone(w.last)
	for k := range out {
		out[k].Incidents, out[k].OnlyPeople = slices.Clone(out[k].Incidents), slices.Clone(out[k].OnlyPeople)
	}
	return out, w.err
}

func (w *weeks) deeds() ([]Deed, error) {
	if w.file == "" {
		return nil, nil
	}
	f, err := os.Open(w.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadDeeds(f)
}

// weekly joins each incident that was only observed with what a person did on its node. Nodes are compared one by one, since nothing joins
// across them.
func weekly(rows []*page.Row, done []Deed) []page.Week {
	by := map[time.Time]*page.Week{}
	at := func(t time.Time) *page.Week {
		from := monday(t)
		if by[from] == nil {
			by[from] = &page.Week{From: from, Name: from.Format(time.DateOnly)}
		}
		return by[from]
	}
	would, deeds := map[string][]Would{}, map[string][]Deed{}
	of := map[string]*page.Row{}
	for _, r := range rows {
		switch r.Answered {
		case incident.Approves:
			at(r.Opened).Approved++
		case incident.Rejects:
			at(r.Opened).Rejected++
		}
		if r.Outcome == incident.Observed && r.Mode == policy.Observe {
			of[r.ID] = r
			would[r.Node] = append(would[r.Node], Would{Time: r.Opened, Node: r.Node, Actions: r.Actions, Refused: r.Refused, EventID: r.ID})
		}
	}
	for _, d := range done {
		deeds[d.Node] = append(deeds[d.Node], d)
	}
	show := func(w Would, d *Deed, agrees bool) {
		r, week := of[w.EventID], at(w.Time)
		x := page.Would{ID: r.ID, Signal: r.Signal, Node: r.Node, Job: r.Job, Policy: r.Policy, Rule: r.Rule, Actions: r.Actions, Refused: r.Refused, At: r.Opened, Agrees: agrees}
		if d != nil {
			x.People, x.PeopleAt = d.Action, d.Time
		}
		week.Incidents = append(week.Incidents, x)
	}
	for node, list := range would {
		c := Compare(list, deeds[node], near)
		delete(deeds, node)
		for _, p := range c.Agree {
			at(p.Pitcrew.Time).Agree++
			show(p.Pitcrew, &p.People, true)
		}
		for _, p := range c.Differ {
			at(p.Pitcrew.Time).Differ++
			show(p.Pitcrew, &p.People, false)
		}
		for _, w := range c.OnlyPitcrew {
			at(w.Time).Alone++
			show(w, nil, false)
		}
		for _, d := range c.OnlyPeople {
			week := at(d.Time)
			week.OnlyPeople = append(week.OnlyPeople, page.Deed{At: d.Time, Node: d.Node, Action: d.Action})
		}
	}
	for _, list := range deeds {
		for _, d := range list {
			week := at(d.Time)
			week.OnlyPeople = append(week.OnlyPeople, page.Deed{At: d.Time, Node: d.Node, Action: d.Action})
		}
	}
	var out []page.Week
	for _, w := range by {
		slices.SortFunc(w.Incidents, func(a, b page.Would) int { return b.At.Compare(a.At) })
		slices.SortFunc(w.OnlyPeople, func(a, b page.Deed) int {
			if c := b.At.Compare(a.At); c != 0 {
				return c
			}
			return strings.Compare(a.Node, b.Node)
		})
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b page.Week) int { return b.From.Compare(a.From) })
	return out
}

// monday is the beginning of a time's week, UTC.
func monday(t time.Time) time.Time {
	t = t.UTC()
	day := time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
	return day.AddDate(0, 0, -(int(day.Weekday())+6)%7)
}
