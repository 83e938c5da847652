package page

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/answer"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

// actWithin bounds how long a person waits for an action.
const actWithin = 10 * time.Second

// answers are the words of the acts on an incident.
var answers = map[string]string{"approve": incident.Approves, "reject": incident.Rejects, "hold": incident.Holding, "release": incident.Releases}

// answer takes a person's answer to an incident, or a hold of one of its nodes.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, who *Person) {
	id, act := r.PathValue("id"), r.PathValue("act")
	reason, node := clean(r.PostFormValue("reason"), 256), r.PostFormValue("node")
	audit := Act{Actor: who.Name, Verb: act, Object: "incident " + id, Incident: id, Reason: reason}
	switch word := answers[act]; {
	case word != "":
		p.carryOut(w, r, who, audit, "/incidents/"+url.PathEscape(id)+"?done="+act, func(ctx context.Context) error {
			_, err := answer.Give(ctx, p.o.Incidents, id, answer.Answer{Word: word, By: who.Name, Reason: reason, At: p.o.Now(), Check: func(i *incident.Incident) error {
				if seen := r.PostFormValue("seen"); seen != "" && seen != p.question(i) {
					return answer.ErrStale
				}
				return nil
			}})
			return err
		})
	case act == "hold-node" || act == "release-node":
		audit.Object = "node " + node
		p.carryOut(w, r, who, audit, "/incidents/"+url.PathEscape(id)+"?done="+act[:len(act)-len("-node")], func(ctx context.Context) error {
			if fleet.Find(p.o.Nodes.Fleet(), node) == nil {
				return answer.Refused("node " + node + " does not exist")
			}
			if act == "release-node" {
				return p.o.Nodes.ReleaseNode(ctx, node)
			}
			why := who.Name
			if reason != "" {
				why += ": " + reason
			}
			return p.o.Nodes.HoldNode(ctx, node, why)
		})
	default:
		p.fail(w, r, who, http.StatusNotFound, "There is no action "+act+".")
	}
}

// question is that of a record as the store has it: what a person saw of it had its texts made safe.
func (p *Page) question(i *incident.Incident) string {
	shown := *i
	raw := shown.Faults
	shown.Faults = append([]incident.Fault{}, raw...)
	for k := range shown.Faults {
		shown.Faults[k].Node = clean(raw[k].Node, maxText)
	}
	return answer.Question(&shown)
}

// uncordon lifts the quarantine of a node.
func (p *Page) uncordon(w http.ResponseWriter, r *http.Request, who *Person) {
	node, id := r.PathValue("node"), r.PostFormValue("incident")
	reason := clean(r.PostFormValue("reason"), 256)
	audit := Act{Actor: who.Name, Verb: "uncordon", Object: "node " + node, Incident: id, Reason: reason}
	p.carryOut(w, r, who, audit, "/incidents/"+url.PathEscape(id)+"?done=uncordon", func(ctx context.Context) error {
		return p.o.Nodes.LiftQuarantine(ctx, node, cluster.Lift{Incident: id, By: who.Name, Reason: reason, At: p.o.Now().UTC()})
	})
}

// switchOver pauses Pitcrew or lets it act again.
func (p *Page) switchOver(w http.ResponseWriter, r *http.Request, who *Person) {
	act, reason := r.PathValue("act"), clean(r.PostFormValue("reason"), 256)
	if act != "pause" && act != "resume" {
		p.fail(w, r, who, http.StatusNotFound, "There is no action "+act+".")
		return
	}
	p.carryOut(w, r, who, Act{Actor: who.Name, Verb: act, Object: "Pitcrew", Reason: reason}, "/", func(ctx context.Context) error {
		return p.o.Kill.Set(ctx, bus.KillKey, bus.KillSwitch{On: act == "pause", By: who.Name, Reason: reason, Since: p.o.Now().UTC()})
	})
}

// refusals are errors that are the state of things and no failure, with what the person is told beside them.
var refusals = []struct {
	err  error
	code int
	text string
}{
	{answer.ErrStale, http.StatusConflict, ""},
	{bus.ErrNotFound, http.StatusNotFound, "There is no such incident. "},
	{cluster.ErrHeld, http.StatusConflict, "Somebody else holds the node. "},
	{cluster.ErrNotHeld, http.StatusConflict, "The node is not on hold any more. "},
	{cluster.ErrNotQuarantined, http.StatusConflict, "Somebody else was faster. "},
	{cluster.ErrQuarantined, http.StatusConflict, "Another incident has the node by now. "},
	{cluster.ErrNotFound, http.StatusNotFound, ""},
	{cluster.ErrForbidden, http.StatusForbidden, "Pitcrew may not change nodes here, since its account only observes. Use the command line with your own rights. "},
}

// carryOut writes to the audit log, acts, and writes again. An act that cannot be audited is not done.
func (p *Page) carryOut(w http.ResponseWriter, r *http.Request, who *Person, a Act, then string, do func(context.Context) error) {
	if !p.o.Connected() && a.Verb != "uncordon" {
		p.fail(w, r, who, http.StatusServiceUnavailable, "NATS does not answer, so nothing can be recorded now. Nothing was done.")
		return
	}
	if err := p.o.Audit(a); err != nil {
		p.o.Log.Error("incident page: the audit log cannot be written", "error", err)
		p.fail(w, r, who, http.StatusInternalServerError, "The audit log cannot be written, so nothing was done.")
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actWithin) // a closed tab does not end it half-way
	defer cancel()
	err := do(ctx)
	a.Done, a.Err = true, err
	if said := p.o.Audit(a); said != nil {
		p.o.Log.Error("incident page: the audit log cannot be written", "actor", a.Actor, "verb", a.Verb, "object", clean(a.Object, maxCell), "error", said)
	}
	if err == nil {
		http.Redirect(w, r, then, http.StatusSeeOther)
		return
	}
	code, text := http.StatusBadGateway, ""
	var refused answer.Refused
	if errors.As(err, &refused) {
		code = http.StatusConflict
	}
	for _, known := range refusals {
		if errors.Is(err, known.err) {
			code, text = known.code, known.text
			break
		}
	}
	p.fail(w, r, who, code, text+"It was refused: "+err.Error())
}
