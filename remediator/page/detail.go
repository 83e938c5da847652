package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/answer"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/placement"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// words are a part of a text: a command, or what is around it.
type words struct {
	Text string
	Code bool
}

// inCode parts a text at its backquotes.
func inCode(s string) (out []words) {
	for k, part := range strings.Split(s, "`") {
		if part != "" {
			out = append(out, words{part, k%2 == 1})
		}
	}
	return out
}

// fault is one fault of an incident as the page shows it.
type fault struct {
	incident.Fault
	About, Saw string
	Plot       *plot
}

// attempted is a rule that was tried.
type attempted struct {
	Policy, Rule string
	Mode         policy.Mode
	Matched      bool
	Chosen       bool
	Why          string
}

// verdict is what a guard said.
type verdict struct {
	guard.Verdict
	Class, Text string
}

// move is a pod that is moved, with the nodes that were considered.
type move struct {
	incident.Move
	Candidates []placement.Candidate
	Rejected   []string // how many more were not taken, by the reason
}

// choice is something that a person can do about the incident now.
type choice struct {
	Act, Label, Effect string
	To                 string // address
	Danger             bool
	Command            string // the same on the command line
	Node               string
	fixed              bool // the page itself cannot; Command does
}

// Fixed reports whether only the command line can do it.
func (c choice) Fixed() bool { return c.fixed }

type incidentView struct {
	head
	I         *incident.Incident
	Row       *Row
	Old       bool // the store does not answer: this is how it was
	Missing   bool // nothing but its row is known
	Broken    string
	Doing     string
	Person    string // what a person has to do; empty: nothing
	Remedy    []words
	Faults    []fault
	Steps     []string
	Tried     []attempted
	Chosen    *attempted
	Guards    []verdict
	Waterfall *waterfall
	Moves     []move
	Children  []*Row
	Choices   []choice
	Runbooks  []string
	Left      []string // what is left to do by hand
	Seen      string   // the question as it is shown
	Ahead     string   // by how much its times are ahead of this server's clock
	Done      string
	JobLink   string
}

// acted are the messages after a form was taken, by the word in the address.
var done = map[string]string{
	"approve": "Your approval is recorded. The leader takes it up within seconds.", "reject": "Your rejection is recorded.",
	"hold": "The hold is recorded.", "release": "The hold is taken away.",
	"uncordon": "The quarantine of the node is lifted.",
}

func (p *Page) serveIncident(w http.ResponseWriter, r *http.Request, who *Person) {
	id := r.PathValue("id")
	v := incidentView{head: p.head(w, r, who, "Incident "+clean(id, maxCell)), Done: done[r.URL.Query().Get("done")]}
	v.Nav, v.Live = "incidents", true
	v.Row = p.mirror.row(id)
	i, err := p.read(r.Context(), id)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		p.fail(w, r, who, http.StatusNotFound, "There is no incident "+id+". It may be older than what the store keeps.")
		return
	case err != nil:
		p.o.Log.Debug("incident page: read", "incident", id, "error", err)
		if i = p.mirror.last(id); i != nil {
			v.Old = true
		} else {
			v.Missing = true
			p.show(w, r, http.StatusServiceUnavailable, "incident", v)
			return
		}
	default:
		p.mirror.keep(i)
	}
	p.describe(&v, i)
	p.show(w, r, http.StatusOK, "incident", v)
}

// readWithin bounds how long a page waits for the store.
const readWithin = 2 * time.Second

// read is an incident as the store has it, with every text made safe.
func (p *Page) read(ctx context.Context, id string) (*incident.Incident, error) {
	if !p.o.Connected() {
		return nil, errors.New("the store does not answer")
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	i, _, err := p.o.Incidents.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	scrub(&i)
	return &i, nil
}

// describe fills in what the page says of an incident.
func (p *Page) describe(v *incidentView, i *incident.Incident) {
	now := p.o.Now()
	v.I, v.Waterfall, v.Seen = i, newWaterfall(i, now), answer.Question(i)
	if ahead := i.StateAt.Sub(now); ahead > clockSlack {
		v.Ahead = seconds(ahead.Seconds())
	}
	v.Broken, v.Doing, v.Person = broken(i), doing(i), person(i)
	if i.Open() && !i.Asks() { // what can be answered is asked below
		v.Remedy = inCode(i.Remedy())
	}
	for _, f := range i.Faults {
		about := []string{}
		if f.GPU != "" {
			about = append(about, f.GPU)
		}
		if f.Rank != nil {
			about = append(about, fmt.Sprintf("rank %d", *f.Rank))
		}
		v.Faults = append(v.Faults, fault{f, strings.Join(about, ", "), sentence(f.Event.Data.Evidence), newPlot(f.Event.Data.Evidence)})
	}
	if i.Plan != nil {
		v.decided(i.Plan)
	}
	for _, g := range i.Guards {
		x := verdict{g, "none", g.String()}
		switch {
		case g.Asked && g.Allowed:
			x.Class = "yes"
		case g.Asked:
			x.Class = "no"
		}
		v.Guards = append(v.Guards, x)
	}
	for _, m := range i.Moves {
		x := move{Move: m}
		if d := m.Decision; d != nil {
			x.Candidates = d.Candidates
			for why, n := range d.Rejected {
				x.Rejected = append(x.Rejected, fmt.Sprintf("%d %s", n, why))
			}
			slices.Sort(x.Rejected)
		}
		v.Moves = append(v.Moves, x)
	}
	if i.Group != nil {
		for _, row := range p.mirror.all() {
			if row.Parent == i.ID && len(v.Children) < maxChildren {
				v.Children = append(v.Children, row)
			}
		}
	}
	if i.Job != nil {
		v.JobLink = fleetLink("", jobName(*i.Job), 0)
	}
	v.Runbooks = p.books.of(i)
	if !i.Open() && i.Outcome != incident.Gone {
		v.Left = i.Cordons
	}
	v.Choices = p.choices(i)
}

// maxChildren bounds the children that a parent's page lists; the list of incidents has the rest.
const maxChildren = 100

// decided fills in which rules were tried.
func (v *incidentView) decided(plan *incident.Plan) {
	for _, s := range plan.Steps {
		text := string(s.Do)
		switch {
		case s.Recommendation:
			text += " (for a person)"
		case s.NeedsApproval:
			text += " (needs approval)"
		}
		v.Steps = append(v.Steps, text)
	}
	var j policy.Judgement
	if json.Unmarshal(plan.Decision, &j) != nil { // a record of another version says no reason
		return
	}
	scrub(&j)
	for _, of := range j.Policies {
		if len(of.Rules) == 0 {
			v.Tried = append(v.Tried, attempted{Policy: of.Policy, Mode: of.Mode, Why: reason(of.Why, of.Detail)})
		}
		for _, r := range of.Rules {
			a := attempted{Policy: of.Policy, Rule: r.Rule, Mode: of.Mode, Matched: r.Matched, Why: reason(r.Why, r.Detail)}
			if a.Chosen = of.Policy == plan.Policy && r.Rule == plan.Rule && r.Matched; a.Chosen {
				v.Chosen = &a
			} else if r.Matched && of.Why != "" {
				a.Why = reason(of.Why, of.Detail)
			}
			v.Tried = append(v.Tried, a)
		}
	}
}

// whyWords say why a rule or policy was not taken.
var whyWords = map[policy.Why]string{
	policy.WhyOff: "the policy is off", policy.WhyScope: "the policy does not apply here", policy.WhySignal: "it is for other signals",
	policy.WhySeverity: "the severity is too low", policy.WhyExpr: "its expression is false", policy.WhyExprError: "its expression failed",
	policy.WhyEarlier: "an earlier rule matched", policy.WhyShadowed: "a policy before it acts", policy.WhyObserving: "it only observes",
	policy.WhyNoRule: "no rule matched", policy.WhyNeverActs: "the event is information", policy.WhyNoPolicies: "no policy applies",
}

func reason(why policy.Why, detail string) string {
	word := whyWords[why]
	if word == "" {
		word = string(why)
	}
	switch {
	case detail == "":
		return word
	case word == "":
		return detail
	}
	return word + ": " + detail
}

// broken is the first line: what is broken and where.
func broken(i *incident.Incident) string {
	if len(i.Faults) == 0 {
		return "An incident without a fault"
	}
	f := i.Faults[0]
	out := f.Signal
	if name := f.Event.Data.Cause.Name; name != "" && !strings.HasSuffix(f.Signal, name) {
		out += " (" + name + ")"
	}
	switch {
	case i.Group != nil:
		return fmt.Sprintf("%s on %s of %s", out, count(len(i.Group.Nodes()), "node"), i.Group.Domain)
	case f.Node != "":
		out += " on " + f.Node
	}
	if i.Job != nil {
		out += " hit " + i.Job.Kind + " " + i.Job.Namespace + "/" + i.Job.Name
	}
	return out
}

// doing is the second line: what is being done, or how it ended.
func doing(i *incident.Incident) string {
	switch {
	case !i.Open():
		return capital(string(i.Outcome)) + ": " + i.Reason
	case i.Asks() && i.Wait != nil && i.Wait.Reason == incident.ReasonApproval:
		return "Waits for approval. Nothing was done yet."
	case i.Waiting != "":
		return "Waits for " + i.Waiting
	}
	return "Pitcrew is at work: " + string(i.State)
}

func capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// person is the third line: whether a person is needed.
func person(i *incident.Incident) string {
	switch {
	case i.Asks():
		return "Needs your answer: approve or reject."
	case i.NeedsPerson() && i.Outcome == incident.Observed:
		return "Nothing was done: the policy only observes. What it would have done is below."
	case i.NeedsPerson():
		return "Needs a person."
	case !i.Open() && len(i.Cordons) > 0:
		return "The job needs nobody. Repair " + strings.Join(i.Cordons, ", ") + ", then give it back."
	}
	return ""
}

// choices are what a person can do now.
func (p *Page) choices(i *incident.Incident) (out []choice) {
	for _, a := range []struct {
		act, word, label, effect string
		danger                   bool
	}{
		{"approve", incident.Approves, "Approve", "Pitcrew carries out the plan, if the guards still allow it.", false},
		{"reject", incident.Rejects, "Reject", "Pitcrew does nothing about it and closes the incident.", true},
		{"hold", incident.Holding, "Hold", "No incident of this parent begins to act, for a day at most.", false},
		{"release", incident.Releases, "Release", "Its incidents continue.", false},
	} {
		if answer.Takes(i, a.word) == nil {
			out = append(out, choice{Act: a.act, Label: a.label, Effect: a.effect, To: address(i) + "/" + a.act, Danger: a.danger, Command: "pitcrew incident " + a.act + " " + i.ID})
		}
	}
	nodes := p.o.Nodes.Fleet()
	if i.Open() && i.Group == nil {
		for _, name := range involved(i) {
			n := fleet.Find(nodes, name)
			if n == nil {
				continue
			}
			c := choice{Act: "hold", Label: "Hold " + n.Name, Node: n.Name, To: address(i) + "/hold-node",
				Effect: "Pitcrew does nothing more on this node until the hold is taken away. What is under way waits.", Command: "pitcrew node hold " + n.Name + ` --reason "why"`}
			if n.Held != "" {
				c.Act, c.Label, c.To = "release", "Release "+n.Name, address(i)+"/release-node"
				c.Effect, c.Command = "The hold is taken away ("+clean(n.Held, maxCell)+"). The incident continues.", "pitcrew node release "+n.Name
			}
			out = append(out, c)
		}
	}
	for _, name := range i.Cordons {
		n := fleet.Find(nodes, name)
		if n == nil || n.Quarantined != i.ID {
			continue
		}
		c := choice{Act: "uncordon", Label: "Undo: give " + n.Name + " back", Node: n.Name, To: "/nodes/" + n.Name + "/uncordon", Danger: true,
			Effect: "The quarantine is lifted and the node takes pods again. Do it after the repair.", Command: "pitcrew node uncordon " + n.Name}
		if n.FoundCordoned {
			c.Effect = "The quarantine is lifted. The node stays cordoned, since somebody else had cordoned it before."
		}
		if i.Open() {
			c.Label = "Cancel: uncordon " + n.Name
			c.Effect = "If no rank was stopped yet, this cancels the incident. Otherwise the job is brought back all the same, and the node is not cordoned again."
		}
		out = append(out, c)
	}
	return out
}

// maxHeld bounds the nodes that the page offers to hold.
const maxHeld = 4

// involved are the nodes of the faults.
func involved(i *incident.Incident) (out []string) {
	for _, f := range i.Faults {
		if f.Node != "" && !slices.Contains(out, f.Node) && len(out) < maxHeld {
			out = append(out, f.Node)
		}
	}
	return out
}

// address is where the page of an incident is.
func address(i *incident.Incident) string { return "/incidents/" + url.PathEscape(i.ID) }
