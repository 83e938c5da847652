package policy

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// Outcome is what a judgement comes to.
type Outcome string

// The outcomes, from the most that is done to the least.
const (
	Act     Outcome = "act"     // an enforcing policy's rule matched: its steps are done, guards permitting
	Ask     Outcome = "ask"     // an approving policy's rule matched: each step waits for a person
	Record  Outcome = "record"  // only observing policies' rules matched: what would be done is recorded
	Tell    Outcome = "notify"  // no rule matched, or the event never acts
	Nothing Outcome = "nothing" // no rule matched and the policy says ignore, or no policy applies
)

// Why says why a policy or a rule was not taken; empty when it was.
type Why string

// The reasons.
const (
	WhyOff        Why = "mode-off"
	WhyScope      Why = "out-of-scope"      // appliesTo
	WhySignal     Why = "signal"            // none of the rule's signals
	WhySeverity   Why = "severity"          // below the rule's minimum
	WhyCount      Why = "count"             // it did not occur often enough
	WhyExpr       Why = "expr-false"        // the expression is false
	WhyExprError  Why = "expr-error"        // the expression failed while it ran
	WhyEarlier    Why = "earlier-rule"      // an earlier rule of the policy matched
	WhyShadowed   Why = "shadowed"          // it matched, but a policy before it acts
	WhyObserving  Why = "observing"         // it matched, but only observes while another acts
	WhyNoRule     Why = "no-rule-matched"   // the policy applies, none of its rules matched
	WhyNeverActs  Why = "never-acts"        // the event is information, a recovery or our own
	WhyNoPolicies Why = "no-policy-applies" // nothing speaks for the node and job
)

// RuleTrace is what a judgement found at one rule.
type RuleTrace struct {
	Rule    string `json:"rule"`
	Matched bool   `json:"matched"`
	Why     Why    `json:"why,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

// PolicyTrace is what a judgement found at one policy.
type PolicyTrace struct {
	Policy  string      `json:"policy"`
	File    string      `json:"file,omitempty"`
	Hash    string      `json:"hash"`
	Mode    Mode        `json:"mode"`
	Order   int         `json:"order"`
	Applies bool        `json:"applies"`
	Chosen  bool        `json:"chosen,omitempty"`
	Why     Why         `json:"why,omitempty"`
	Detail  string      `json:"detail,omitempty"`
	Rules   []RuleTrace `json:"rules,omitempty"`
}

// PlannedStep is a step of the chosen rule as it will be carried out.
type PlannedStep struct {
	Step
	NeedsApproval  bool `json:"needsApproval,omitempty"`  // by the step itself or by mode approve
	Recommendation bool `json:"recommendation,omitempty"` // nothing in Pitcrew carries it out: recorded for a person
}

// Judgement is a decision with its whole path.
type Judgement struct {
	Event    string         `json:"event"`
	Signal   string         `json:"signal"`
	Severity event.Severity `json:"severity"`
	Subject  string         `json:"subject"`
	Node     string         `json:"node,omitempty"`
	Job      string         `json:"job,omitempty"` // namespace/name

	Outcome Outcome       `json:"outcome"`
	Why     Why           `json:"why,omitempty"`
	Detail  string        `json:"detail,omitempty"`
	Policy  string        `json:"policy,omitempty"` // the chosen one
	Hash    string        `json:"hash,omitempty"`
	Mode    Mode          `json:"mode,omitempty"`
	Rule    string        `json:"rule,omitempty"`
	Steps   []PlannedStep `json:"steps,omitempty"`
	Verify  *Verify       `json:"verify,omitempty"`
	Terms   *Terms        `json:"terms,omitempty"`   // what must hold before a statistical finding acts
	Counted int           `json:"counted,omitempty"` // occurrences that a rule which counts has seen
	Guards  *Guards       `json:"guards,omitempty"`

	Policies []PolicyTrace `json:"policies"`
}

// Disruptive counts the planned steps that the action budget will be charged for.
func (j Judgement) Disruptive() (n int) {
	for _, s := range j.Steps {
		if s.Do.Disruptive() && !s.Recommendation {
			n++
		}
	}
	return n
}

// Decide judges one event by a set of policies: Book.Decide, for a set that is used once.
func Decide(e event.Event, n Node, j Job, inc Incident, policies []Policy) Judgement {
	return NewBook(policies).Decide(e, n, j, inc)
}

// Decide judges one event. Within a policy the first matching rule is taken. Of several policies whose rules match, the lowest order that
// may act is taken and the others are recorded; an observing policy never hides an acting one, so a new policy can be tried beside the old.
// It changes nothing and is the same for the same arguments.
func (b *Book) Decide(e event.Event, n Node, j Job, inc Incident) Judgement {
	return b.DecideSeen(e, n, j, inc, nil)
}

// DecideSeen is Decide by whoever remembers events. seen is how often the event's signal occurred on its GPU within a time that ends now, this
// event included; nil counts the event alone.
func (b *Book) DecideSeen(e event.Event, n Node, j Job, inc Incident, seen func(within time.Duration) int) Judgement {
	complete(e, &n, &j)
	out := Judgement{Event: e.ID, Signal: e.Data.Cause.Signal(), Severity: e.Data.Severity, Subject: e.Data.Target.Subject(), Node: n.Name, Outcome: Nothing,
		Policies: make([]PolicyTrace, len(b.pages))}
	if j.Name != "" {
		out.Job = j.Namespace + "/" + j.Name
	}
	q := question{e: e, signal: out.Signal, vars: b.activation(e, n, j, inc), seen: seen}
	idle := neverActs(e)
	acting, observing, fallback := -1, -1, -1
	matched := make([]int, len(b.pages))
	for i := range b.pages {
		p := &b.pages[i]
		t := &out.Policies[i]
		*t = PolicyTrace{Policy: p.Metadata.Name, File: p.File, Hash: p.hash, Mode: p.Spec.Mode, Order: p.Spec.Order}
		matched[i] = -1
		switch detail, ok := p.Spec.AppliesTo.covers(n, j, e); {
		case p.Spec.Mode == Off:
			t.Why = WhyOff
		case !ok:
			t.Why, t.Detail = WhyScope, detail
		default:
			t.Applies = true
			if fallback < 0 {
				fallback = i
			}
			if idle != "" {
				t.Why, t.Detail = WhyNeverActs, idle
				break
			}
			t.Rules, matched[i] = p.look(q)
			switch {
			case matched[i] < 0:
				t.Why = WhyNoRule
			case p.Spec.Mode == Observe && observing < 0:
				observing = i
			case p.Spec.Mode != Observe && acting < 0:
				acting = i
			}
		}
	}
	chosen := acting
	if chosen < 0 {
		chosen = observing
	}
	for i := range out.Policies {
		t := &out.Policies[i]
		switch {
		case matched[i] < 0:
		case i == chosen:
			t.Chosen = true
		case b.pages[i].Spec.Mode == Observe:
			t.Why, t.Detail = WhyObserving, "would do rule "+b.pages[i].Spec.Rules[matched[i]].Name
		default:
			t.Why, t.Detail = WhyShadowed, "policy "+b.pages[chosen].Metadata.Name+" comes first"
		}
	}
	switch {
	case chosen >= 0:
		out.take(&b.pages[chosen], b.pages[chosen].Spec.Rules[matched[chosen]])
		out.Terms = TermsOf(e, b.pages[chosen].Spec.Rules[matched[chosen]])
	case fallback < 0:
		out.Why = WhyNoPolicies
	default:
		out.fallBack(&b.pages[fallback], idle)
	}
	return out
}

// neverActs says why an event starts nothing whatever the rules say, "" if it may.
func neverActs(e event.Event) string {
	if e.Type != event.Fault && e.Type != event.Anomaly {
		return "an event of type " + e.Type.Kind() + " reports; only faults and anomalies act"
	}
	if s := e.Data.Cause.Signal(); informational(s) {
		return s + " is information and never acts"
	}
	if e.Type == event.Anomaly && !e.Data.Severity.AtLeast(event.Warning) {
		return "a statistical finding that nothing bears out is information and never acts"
	}
	return ""
}

// covers asks scope with the namespace.
func (a AppliesTo) covers(n Node, j Job, e event.Event) (string, bool) {
	if len(a.Namespaces) > 0 {
		ns := cmp.Or(j.Namespace, e.Data.Target.Namespace)
		if ns == "" {
			return "no job is known, so no namespace", false
		}
		if !anyGlob(a.Namespaces, ns) {
			return "namespace " + ns + " is not in appliesTo.namespaces", false
		}
	}
	return a.Includes(n)
}

var outcomeOf = map[Mode]Outcome{Enforce: Act, Approve: Ask, Observe: Record}

func (j *Judgement) take(p *page, r Rule) {
	j.Outcome = outcomeOf[p.Spec.Mode]
	j.Policy, j.Hash, j.Mode, j.Rule, j.Verify = p.Metadata.Name, p.hash, p.Spec.Mode, r.Name, r.Verify
	guards := p.Spec.Guards
	j.Guards = &guards
	acts := false
	for _, s := range r.Steps {
		info, _ := s.Do.Info()
		acts = acts || s.Do != Notify
		j.Steps = append(j.Steps, PlannedStep{Step: s, Recommendation: info.Recommendation,
			NeedsApproval: s.Do != Notify && (s.Approval == "required" || p.Spec.Mode == Approve)})
	}
	if !acts { // being told changes nothing, so no mode holds it back
		j.Outcome = Tell
	}
}

func (j *Judgement) fallBack(p *page, idle string) {
	j.Policy, j.Hash, j.Mode = p.Metadata.Name, p.hash, p.Spec.Mode
	j.Why, j.Detail = WhyNoRule, "default of policy "+p.Metadata.Name+" is "+string(p.Spec.Default)
	if idle != "" {
		j.Why, j.Detail = WhyNeverActs, idle+"; "+j.Detail
	}
	if p.Spec.Default != DefaultIgnore {
		j.Outcome = Tell
	}
}

func anyGlob(globs []string, s string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { return globMatch(g, s) })
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

func quoted(s string) string { return strconv.Quote(s) }
