package incident

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Grouped is the state of a parent: one record for the incidents of many nodes that share a failure domain. Its children heal by
// themselves; the parent speaks for them, and passes a person's answers on.
const Grouped State = "grouped"

const (
	// maxChildren bounds what a parent's record lists. Every child names its parent, listed or not.
	maxChildren = 2048
	// parentLasts is how long a parent may stay open. After it each child speaks for itself.
	parentLasts = day
	// holdLasts is how long a person's hold of a parent counts.
	holdLasts = day
	// gatherEvery bounds how often a parent's record is written while its children change.
	gatherEvery = time.Second
)

// Child is an incident of a parent.
type Child struct {
	ID   string `json:"id"`
	Node string `json:"node"`
	Asks Reason `json:"asks,omitempty"` // what it asks a person, as the parent shows it
}

// Group is what makes a record a parent. A stored one is never changed in place.
type Group struct {
	Domain   Domain     `json:"domain"`
	Children []Child    `json:"children"`            // in the order in which they joined
	Joined   time.Time  `json:"joined"`              // the last of them
	First    string     `json:"first"`               // the child that was told: the parent's notices go on in its thread
	FirstJob *event.Job `json:"first_job,omitempty"` // and the job of that one
	Ended    int        `json:"ended"`
	Asking   int        `json:"asking,omitempty"`
	Stuck    int        `json:"stuck,omitempty"`   // children that do not go on without a person
	Reasons  []string   `json:"reasons,omitempty"` // what those wait for
	Answer   *Answer    `json:"answer,omitempty"`  // the last one
	Held     string     `json:"held,omitempty"`    // by whom and why: no child begins to act
	HeldAt   time.Time  `json:"held_at,omitzero"`
}

// Answer is a person's answer to a parent. It counts for the children that the person could see, and for what they asked then.
type Answer struct {
	Text     string    `json:"text"`
	At       time.Time `json:"at"`
	Children []Child   `json:"children"` // that it counts for
	Number   int       `json:"number"`   // of the parent's answers
}

// Words with which a person's answer begins.
const (
	Approves = "approved"
	Rejects  = "rejected"
	Holding  = "held"
	Releases = "released"
)

// gather is the step of a parent: it takes in children, passes a person's answers on, and closes when all children have ended.
func gather(ctx context.Context, v *view) Result {
	if err := v.d.absorb(ctx); err != nil {
		return failed(err)
	}
	if said := v.d.now.Load().Approval; said != "" {
		return v.hears(said)
	}
	children := v.children()
	for _, c := range v.Group.Children {
		if i, known := children[c.ID]; known && i.Parent == "" { // the process ended before it was told
			if err := v.e.attach(ctx, c.ID, &v.Incident); err != nil {
				return failed(err)
			}
		}
	}
	if err := v.handOn(ctx, children); err != nil {
		return failed(err)
	}
	now := v.Group.with(children, v.now)
	ended := now.Ended == len(now.Children)
	switch {
	case ended && v.now.Sub(now.Joined) >= time.Duration(v.Plan.OneCause.Within):
		return Close(worst(children), now.tally(children)).with(func(i *Incident) { i.Group = &now })
	case v.now.Sub(v.Opened) >= parentLasts:
		r := Close(GaveUp, fmt.Sprintf("%d of %d incidents are open after %s; each speaks for itself from now on", len(now.Children)-now.Ended, len(now.Children), parentLasts))
		return r.tells(func(context.Context) {
			for _, id := range slices.Sorted(maps.Keys(children)) {
				v.e.speak(id)
			}
		})
	case now.same(v.Group):
		return WaitFor(ReasonChildren, "", watchEvery)
	case v.now.Sub(v.d.noted) < gatherEvery:
		return WaitFor(ReasonChildren, "", gatherEvery-v.now.Sub(v.d.noted))
	}
	v.d.noted = v.now
	text := ""
	if more := len(now.Children) - len(v.Group.Children); more > 0 {
		text = fmt.Sprintf("%s joined, %d in all", count(more, "incident"), len(now.Children))
	}
	verdicts := v.Guards
	if text != "" || v.Guards == nil {
		verdicts = v.parentVerdicts(&now)
	}
	return Again(text, func(i *Incident) { i.Group, i.Waiting, i.Guards = &now, now.text(), verdicts })
}

// hears takes in what a person said of the parent.
func (v *view) hears(said string) Result {
	word, _, _ := strings.Cut(said, " ")
	return Again(said, func(i *Incident) {
		g := *i.Group
		switch i.Approval = ""; word {
		case Holding:
			g.Held, g.HeldAt = said, v.now
		case Releases:
			g.Held, g.HeldAt = "", time.Time{}
		case Approves, Rejects:
			n := 1
			if g.Answer != nil {
				n = g.Answer.Number + 1
			}
			g.Answer = &Answer{Text: said, At: v.now, Children: g.Children, Number: n}
		}
		i.Group = &g
	})
}

// children are the incidents of the parent, by id: those that name it, and those that it lists.
func (v *view) children() map[string]*Incident {
	out := map[string]*Incident{}
	listed := map[string]bool{}
	for _, c := range v.Group.Children {
		listed[c.ID] = true
	}
	v.e.mu.Lock()
	defer v.e.mu.Unlock()
	for id, d := range v.e.drivers {
		if i := d.now.Load(); i.Parent == v.ID || i.Parent == "" && listed[id] {
			out[id] = i
		}
	}
	for id, i := range v.e.closed {
		if i.Parent == v.ID || i.Parent == "" && listed[id] {
			out[id] = &i
		}
	}
	return out
}

// handOn hands a person's answer on to the children that it counts for. Each gets it once: a child whose plan changed afterwards asks anew.
// A yes counts for what the child asked when the person said it. A no counts for every child that has not acted.
func (v *view) handOn(ctx context.Context, children map[string]*Incident) error {
	a := v.Group.Answer
	if a == nil {
		return nil
	}
	within := v.Plan.ApprovalWithin
	if within <= 0 {
		within = day
	}
	tag := fmt.Sprintf("%s/%d", v.ID, a.Number)
	for _, c := range a.Children {
		i := children[c.ID]
		if i == nil || !i.Open() || i.Answered == tag {
			continue
		}
		no := strings.HasPrefix(a.Text, Rejects)
		applies := func(i *Incident) bool {
			if no {
				return !i.acted() || i.Asks()
			}
			return c.Asks != "" && i.asks() == c.Asks && v.now.Sub(a.At) <= within
		}
		if !applies(i) {
			continue
		}
		d := v.e.driverOf(c.ID)
		if d == nil {
			continue
		}
		err := d.update(ctx, func(i *Incident) error {
			if i.Answered != tag && applies(i) {
				i.Approval, i.Answered = a.Text+", for all of "+v.ID, tag
			}
			return nil
		})
		if err != nil && !gone(err) && err != errClosed { //nolint:errorlint // update returns it as it is
			return err
		}
		d.poke()
	}
	return nil
}

// asks is what the incident asks a person; empty if it does not.
func (i *Incident) asks() Reason {
	switch {
	case !i.Asks():
		return ""
	case i.Wait != nil:
		return i.Wait.Reason
	}
	return ReasonApproval
}

// with is the group as its children are now.
func (g *Group) with(children map[string]*Incident, now time.Time) Group {
	out := *g
	out.Children = slices.Clone(g.Children)
	listed := map[string]bool{}
	for _, c := range out.Children {
		listed[c.ID] = true
	}
	var more []*Incident
	for id, i := range children {
		if !listed[id] && i.Parent != "" {
			more = append(more, i)
		}
	}
	slices.SortFunc(more, func(a, b *Incident) int { return cmp.Or(a.Opened.Compare(b.Opened), cmp.Compare(a.ID, b.ID)) })
	for _, i := range more[:min(len(more), max(0, maxChildren-len(out.Children)))] {
		out.Children, out.Joined = append(out.Children, Child{ID: i.ID, Node: i.Faults[0].Node}), now
	}
	reasons := map[string]bool{}
	out.Ended, out.Asking, out.Stuck = 0, 0, 0
	for k, c := range out.Children {
		i := children[c.ID]
		if i == nil || !i.Open() { // one that is no more has ended
			out.Ended++
			out.Children[k].Asks = ""
			continue
		}
		if out.Children[k].Asks = i.asks(); out.Children[k].Asks != "" {
			out.Asking++
		}
		if i.NeedsPerson() {
			out.Stuck++
			reasons[i.waitsBy()] = true
		}
	}
	out.Reasons = slices.Sorted(maps.Keys(reasons))
	return out
}

func (i *Incident) waitsBy() string {
	if i.Wait != nil {
		return string(i.Wait.Reason)
	}
	return i.WaitsFor()
}

func (g *Group) same(o *Group) bool {
	return slices.Equal(g.Children, o.Children) && g.Ended == o.Ended && g.Asking == o.Asking && g.Stuck == o.Stuck && slices.Equal(g.Reasons, o.Reasons)
}

// Nodes are the nodes of the children.
func (g *Group) Nodes() (out []string) {
	for _, c := range g.Children {
		out = append(out, c.Node)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// write prints what a parent's record says of its children.
func (g *Group) write(p func(string, ...any), id string) {
	p("  one cause  %s: %s on %s", g.Domain, count(len(g.Children), "incident"), count(len(g.Nodes()), "node"))
	if g.Held != "" {
		p("  held       %s; `pitcrew incident release %s` ends it, and so does %s", g.Held, id, "a day")
	}
	if a := g.Answer; a != nil {
		p("  answered   %s, for the %s of then", a.Text, count(len(a.Children), "incident"))
	}
	if g.Asking > 0 {
		p("  asks       %s: `pitcrew incident approve %s`, or `pitcrew incident reject %s`", count(g.Asking, "incident"), id, id)
	}
}

// WriteChildren lists the children of a parent as they are now.
func WriteChildren(w io.Writer, all []Incident) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "\n  CHILD\tNODE\tJOB\tSTATE\tOUTCOME")
	for _, i := range all {
		job, outcome := "-", string(i.Outcome)
		if i.Job != nil {
			job = i.Job.Namespace + "/" + i.Job.Name
		}
		if i.Open() && i.Waiting != "" {
			outcome = "waits: " + i.WaitsFor()
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", i.ID, i.Faults[0].Node, job, i.State, outcome)
	}
	_ = t.Flush()
}

// text is how the children stand, in a line.
func (g *Group) text() string {
	out := fmt.Sprintf("%d of %d incidents", len(g.Children)-g.Ended, len(g.Children))
	if g.Stuck > 0 {
		out += fmt.Sprintf("; %d of them need a person (%s)", g.Stuck, strings.Join(g.Reasons, ", "))
	}
	return out
}

// tally counts how the children ended.
func (g *Group) tally(children map[string]*Incident) string {
	n := map[Outcome]int{}
	for _, c := range g.Children {
		if i := children[c.ID]; i != nil {
			n[i.Outcome]++
		}
	}
	var parts []string
	for _, o := range slices.Backward(worse) {
		if n[o] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[o], o))
		}
	}
	return fmt.Sprintf("all %d incidents have ended: %s", len(g.Children), cmp.Or(strings.Join(parts, ", "), "their records are no more"))
}

// worse orders outcomes: the last is the one that needs a person most.
var worse = []Outcome{Gone, Recovered, Quarantined, Resolved, NotConfirmed, Cancelled, Observed, NotTheCause, Refused, GaveUp, Failed}

// worst is the outcome of a parent: the worst of its children's.
func worst(children map[string]*Incident) Outcome {
	at := 0
	for _, i := range children {
		at = max(at, slices.Index(worse, i.Outcome))
	}
	return worse[at]
}

// parentVerdicts are what the guards say of the whole: they are shown to whoever decides. What each child may do is judged by itself, with
// its grant, so a limit is counted as if there were no parent, and 5 of 30 nodes are taken where 5 are allowed.
func (v *view) parentVerdicts(g *Group) []guard.Verdict {
	p := v.Plan.onlyNode()
	if !p.Has(policy.Cordon) {
		return nil
	}
	f := Facts{Now: v.now, Incident: &v.Incident, Seen: v.now}
	for _, name := range g.Nodes() {
		n, err := v.e.Cluster.Node(name)
		if err != nil {
			continue
		}
		if f.Node == nil {
			f.Node = n
		}
		f.Wants = append(f.Wants, guard.PlaceOf(n))
	}
	book := v.e.Ledger.Book()
	return v.e.Judge.Guards(p, f, &book)
}
