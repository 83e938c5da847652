// Package guard judges whether an action may be done now. Each guard gives a typed verdict with its limit and its current value,
// for every action, so that an incident can record all of them, the ones that let it pass too.
//
// It is pure and remembers nothing: what it needs follows from the ledger's grants and from nodes, so that a restarted remediator or a new
// leader comes to the same verdicts. The order of judgment is kill switch, hold, opt-in, blackout, breaker, budgets.
//
// Some guards judge whether an incident may start to act, and leave one that has started alone: half a remediation (a job taken
// from its node and never brought back) does more harm than either none or a whole one. The others are asked before every step.
package guard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Annotations and labels by which people speak to the guards.
const (
	// HoldAnnotation on a node or job keeps Pitcrew's hands off it; its value is the reason.
	HoldAnnotation = "pitcrew.dev/hold"
	// OptInLabel on a namespace lets Pitcrew act on its jobs; on a job, as annotation or label, it decides for that job alone.
	OptInLabel = "pitcrew.dev/heal"
	// OptInValue is what it must say; "enabled" is understood too.
	OptInValue = "true"
)

const (
	// BreakerHold is how long the breaker stays open after it refused a cordon because the limit was reached: a storm that pauses
	// for a minute is not over.
	BreakerHold = 10 * time.Minute
	// JobWindow is the time in which a job's restarts are counted.
	JobWindow = 24 * time.Hour
)

// Name is a guard.
type Name string

// The guards, in the order of judgement.
const (
	KillSwitch Name = "kill-switch"
	Hold       Name = "hold"
	OptIn      Name = "namespace-opt-in"
	Blackout   Name = "blackout"
	Breaker    Name = "breaker"
	Concurrent Name = "max-concurrent-incidents"
	Cooldown   Name = "cooldown-per-node"
	ActBudget  Name = "action-budget"
	EventAge   Name = "max-event-age"
	PerJob     Name = "max-per-job"
	// The guards of findings: a statistical finding acts only if all of them allow it.
	Lasts      Name = "finding-lasts"
	SecondSign Name = "second-signal"
	OneCulprit Name = "one-culprit"
	WorthIt    Name = "worth-it"
	Fresh      Name = "fresh-telemetry"
	NotInVain  Name = "not-in-vain"
	// LedgerFull is the ledger's own refusal, asked after all guards.
	LedgerFull Name = "ledger-full"
)

// Verdict is what one guard says to one action.
type Verdict struct {
	Guard   Name      `json:"guard"`
	Allowed bool      `json:"allowed"`
	Asked   bool      `json:"asked"` // false: this guard does not judge this action, or not at this point of the incident
	Limit   string    `json:"limit,omitempty"`
	Current string    `json:"current,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	Until   time.Time `json:"until,omitzero"` // when it will allow if nothing else changes; zero when no time alone will help
	// Tripped: the breaker refused because the limit itself is reached. The ledger records when, from which the breaker knows how long to
	// stay open.
	Tripped bool `json:"tripped,omitempty"`
}

// Action is a step that an incident wants to take.
type Action struct {
	Verb       policy.Verb
	Policy     policy.Policy // guards and scope
	With       *policy.With  // of restart-job
	Incident   string
	Causes     []string // ids of the events behind the incident
	Node       policy.Node
	Wants      []Place    // all nodes that the plan cordons; the breaker judges them together
	Job        policy.Job // zero if the action concerns none
	Disruptive int        // disruptive steps of the whole plan, charged to the budget when the incident starts
	// Seen is when the condition was last known to hold, by the bus's clock: the event's arrival, or later the node's own answer.
	Seen time.Time
	// Finding is what is known of the finding behind a plan that has terms; nil: it has none.
	Finding *Finding
}

// State is what the guards judge by.
type State struct {
	Kill        Kill
	Total       int                    // nodes within the policy's scope
	Quarantined []Place                // those of them that carry Pitcrew's taint
	InScope     func(node string) bool // whether the policy speaks for a node; nil: for all
	Grants      []Grant                // of the ledger
	Tripped     time.Time              // when this policy's breaker last refused a cordon; zero: never
}

// own is the grant of the incident that asks, or the zero value.
func (s State) own(incident string) Grant {
	for _, g := range s.Grants {
		if g.Incident == incident {
			return g
		}
	}
	return Grant{}
}

// Kill is the kill switch.
type Kill struct {
	On     bool
	Reason string
}

// kind sorts verbs by which guards ask about them.
type kind uint

const (
	changes  kind = 1 << iota // changes anything at all
	harms                     // takes something away from somebody: not uncordon, which gives back
	cordons                   // takes a node
	restarts                  // takes a job down
	onJob                     // touches a job
)

// An unknown verb is judged by every guard.
var kinds = map[policy.Verb]kind{
	policy.Notify:     0,
	policy.Uncordon:   changes,
	policy.Cordon:     changes | harms | cordons,
	policy.Checkpoint: changes | harms | onJob,
	policy.RestartJob: changes | harms | onJob | restarts,
	policy.RebootNode: changes | harms,
}

// rule is one guard: whom it asks, when, and its judgement.
type rule struct {
	name    Name
	asks    kind
	start   bool // only of an incident that has not yet acted
	finding bool // only of a plan that has terms
	judge   func(State, Action, time.Time) Verdict
}

var rules = []rule{
	{KillSwitch, changes, false, false, killSwitch},
	{Hold, changes, false, false, hold},
	{OptIn, onJob, false, false, optIn},
	{Blackout, harms, true, false, blackout},
	{Breaker, cordons, false, false, breaker},
	{Concurrent, harms, false, false, concurrent},
	{Cooldown, harms, true, false, cooldown},
	{ActBudget, harms, true, false, budget},
	{EventAge, harms, true, false, eventAge},
	{PerJob, restarts, false, false, perJob},
	{Lasts, harms, true, true, lasts},
	{SecondSign, harms, true, true, secondSignal},
	{OneCulprit, harms, true, true, oneCulprit},
	{WorthIt, harms, true, true, worthIt},
	{Fresh, harms, true, true, fresh},
	{NotInVain, harms, true, true, notInVain},
}

// Check gives every guard's verdict on an action, in the order of judgement. now is the caller's clock.
func Check(s State, a Action, now time.Time) []Verdict {
	k, known := kinds[a.Verb]
	if !known {
		k = changes | harms | cordons | restarts | onJob
	}
	own := s.own(a.Incident)
	started := own.Open() && slices.ContainsFunc(own.Did, func(d Done) bool { return d.Verb != policy.Notify })
	out := make([]Verdict, 0, len(rules))
	for _, r := range rules {
		var v Verdict
		switch {
		case k&r.asks == 0:
			v = Verdict{Allowed: true, Detail: "does not judge " + string(a.Verb)}
		case r.finding && a.Finding == nil:
			v = Verdict{Allowed: true, Detail: "judges findings only"}
		case r.start && started:
			v = Verdict{Allowed: true, Detail: "judged when the incident started to act"}
		default:
			v = r.judge(s, a, now)
			v.Asked = true
		}
		v.Guard = r.name
		out = append(out, v)
	}
	return out
}

// Blocking gives the verdicts that refuse, in the order of judgement; none means that the action may be done.
func Blocking(vs []Verdict) []Verdict {
	return slices.DeleteFunc(slices.Clone(vs), func(v Verdict) bool { return v.Allowed })
}

// measured says how the value that a guard looked at and its limit are told, where that is not a number of at most so many.
var measured = map[Name]string{
	KillSwitch: "CURRENT", OptIn: OptInLabel + " is CURRENT", Cooldown: "last: CURRENT, at least LIMIT apart", EventAge: "CURRENT old, at most LIMIT",
	Lasts: "CURRENT, at least LIMIT", SecondSign: "CURRENT", WorthIt: "CURRENT, at least LIMIT", Fresh: "CURRENT old, at most LIMIT",
}

// String is one line for a person.
func (v Verdict) String() string {
	word := "refuses"
	if v.Allowed {
		word = "allows"
	}
	if !v.Asked {
		word = "not asked"
	}
	out := fmt.Sprintf("%s: %s", v.Guard, word)
	if v.Limit != "" {
		out += " (" + strings.NewReplacer("CURRENT", v.Current, "LIMIT", v.Limit).Replace(cmp.Or(measured[v.Guard], "CURRENT of LIMIT")) + ")"
	}
	if v.Detail != "" {
		out += ", " + v.Detail
	}
	if !v.Until.IsZero() {
		out += ", until " + v.Until.UTC().Format(time.RFC3339)
	}
	return out
}
