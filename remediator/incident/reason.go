package incident

import (
	"strings"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
)

// Reason says why an incident does not go on. Metrics and notices carry it.
type Reason string

// The reasons beside those of guards, which are "guard/" with the guard's name.
const (
	ReasonApproval  Reason = "approval"           // a person has to agree
	ReasonEvidence  Reason = "loss-unproven"      // nothing but silence says that a lost node's processes have ended
	ReasonWitness   Reason = "second-witness"     // nothing bears the fault out yet
	ReasonObserves  Reason = "policy-observes"    // the policy acted when the incident began, and only observes now
	ReasonNode      Reason = "no-node"            // no equivalent node is free
	ReasonBudget    Reason = "disruption-budget"  // a PodDisruptionBudget forbids the eviction; nothing is stopped
	ReasonRest      Reason = "disruption-midway"  // a PodDisruptionBudget forbids the eviction of the rest
	ReasonFails     Reason = "backoff-limit"      // the Job would end by the eviction; nothing is stopped
	ReasonFailsRest Reason = "backoff-midway"     // the Job would end by the eviction of the rest
	ReasonHeldNode  Reason = "held-node"          // a pod that would have to go is on a node that a person holds
	ReasonReserved  Reason = "reserved"           // another incident has just taken the node
	ReasonPods      Reason = "pods-in-the-making" // the gang's pods are being made
	ReasonPending   Reason = "pods-pending"       // new pods have no node yet
	ReasonStuck     Reason = "pods-stuck"         // pods of a suspended job do not end
	ReasonBackoff   Reason = "job-backs-off"      // the Job controller waits before it makes new pods
	ReasonStepping  Reason = "ranks-starting"     // ranks load and step
	ReasonForbidden Reason = "forbidden"          // the API server refuses the request
	ReasonRetry     Reason = "api-error"          // the API server or an agent did not answer as hoped
	ReasonStore     Reason = "store"              // the record cannot be stored
	ReasonChildren  Reason = "children"           // a parent's children are under way; its step bounds that itself
)

// guardReason is the reason of a guard's refusal.
func guardReason(g guard.Name) Reason { return Reason("guard/" + string(g)) }

// guards reports whether the reason is a guard's refusal.
func (r Reason) guards() bool { return strings.HasPrefix(string(r), string(guardReason(""))) }

// meaning is what is known of a reason.
type meaning struct {
	begins string // of the text that people read; the detail follows
	how    string // how a person can end the wait; empty: nobody can, or nobody needs to
	// report is how long the wait may last before a person is asked. 0: at once. never: the wait cannot last.
	report time.Duration
	// idle and stopped are how long it may last before it is given up: while nothing is stopped, and once ranks are. 0: never, since
	// giving up would change something that must not be changed, or the step has a deadline of its own.
	idle, stopped time.Duration
	// parks: nothing is done meanwhile, so the incident gives its place among the acting ones back, unless it has stopped ranks.
	parks bool
	fixed bool // the policy's deadlines do not change these
	quiet bool // an ordinary part of a recovery; recorded only if it lasts
}

const (
	day   = 24 * time.Hour
	never = 365 * day
)

// waitGuard begins the text of a guard's wait; waitTurn that of a wait for other incidents, which will be done in seconds: nobody is needed.
const (
	waitGuard = "guard "
	waitTurn  = "its turn: "
)

// meanings are all reasons. A reason that is not here does not exist: see TestEachReasonHasAMeaning.
var meanings = map[Reason]meaning{
	ReasonApproval:  {begins: "a person's yes: ", how: "`pitcrew incident approve ID`, or `pitcrew incident reject ID`", idle: day, stopped: day, parks: true},
	ReasonEvidence:  {begins: "proof that the lost node's processes have ended: ", how: "`pitcrew incident approve ID` once you know that the node is off or its processes are gone; or tainting the node node.kubernetes.io/out-of-service", idle: day, stopped: day, parks: true},
	ReasonWitness:   {begins: "a second witness: ", report: never, idle: 30 * time.Second, stopped: 30 * time.Second, fixed: true, quiet: true},
	ReasonObserves:  {begins: waitGuard + "policy: ", how: "the policy acting again, or `pitcrew incident reject ID`"},
	ReasonNode:      {begins: "no equivalent node is free", how: "a node of the same class becoming free, repaired or uncordoned", idle: day, stopped: time.Hour, parks: true},
	ReasonBudget:    {begins: "a PodDisruptionBudget forbids it; nothing is stopped: ", how: "the budget allowing it, or being changed", idle: day, stopped: time.Hour, parks: true},
	ReasonRest:      {begins: "a PodDisruptionBudget forbids the rest; what was begun goes on when it allows it: ", how: "the budget allowing it, or being changed; the job is down until then", idle: time.Hour, stopped: time.Hour},
	ReasonFails:     {begins: "the Job would end by the eviction; nothing is stopped: ", how: "the Job's backoffLimit being raised, which it takes while it runs; fastReplace in the rule counts no failure, from the next incident on", idle: day, stopped: time.Hour, parks: true},
	ReasonFailsRest: {begins: "the Job would end by the eviction of the rest; what was begun goes on when it would not: ", how: "the Job's backoffLimit being raised, which it takes while it runs; the job is down until then", idle: time.Hour, stopped: time.Hour},
	ReasonHeldNode:  {begins: "a pod that would have to go is on a node that a person holds: ", how: "taking the annotation " + guard.HoldAnnotation + " off the node", idle: day, stopped: time.Hour, parks: true},
	ReasonReserved:  {begins: "another incident took the node; choosing anew: ", report: time.Minute, idle: 10 * time.Minute, stopped: 10 * time.Minute, fixed: true, quiet: true},
	ReasonPods:      {begins: "the gang's pods are being made anew", report: 2 * time.Minute, how: "the Job's controller making its pods; `kubectl describe` of the Job says what keeps it", idle: 30 * time.Minute, stopped: 30 * time.Minute, quiet: true},
	ReasonPending:   {begins: "new pods have no node yet: ", report: 2 * time.Minute, how: "room for the pods; `kubectl describe pod` says what they wait for", idle: 30 * time.Minute, stopped: 30 * time.Minute, quiet: true},
	ReasonStuck:     {begins: "pods of the suspended job do not end: ", how: "ending the pods' processes, or deleting the pods by force once you know that nothing of them runs", idle: 15 * time.Minute, stopped: 15 * time.Minute, fixed: true},
	ReasonBackoff:   {begins: "the Job controller backs off before it makes new pods: ", report: 10 * time.Minute, how: "the Job controller's back-off ending", idle: 30 * time.Minute, stopped: 30 * time.Minute},
	ReasonStepping:  {begins: "ranks load the checkpoint and step: ", report: never, quiet: true}, // its deadline is the plan's verify
	ReasonForbidden: {begins: "the API server refuses it: ", report: 10 * time.Second, how: "the right, the admission policy or the quota that refuses it being changed", idle: 30 * time.Minute, stopped: 30 * time.Minute},
	ReasonRetry:     {begins: "will try again: ", report: 5 * time.Minute, how: "the API server and the nodes' agents answering", idle: time.Hour, stopped: time.Hour},
	ReasonStore:     {begins: "the record cannot be stored: ", report: time.Minute, how: "NATS accepting writes again"},
	ReasonChildren:  {begins: "its incidents: ", report: never, quiet: true},

	guardReason(guard.KillSwitch): {begins: waitGuard + string(guard.KillSwitch), how: "`pitcrew resume`", parks: true},
	guardReason(guard.Hold):       {begins: waitGuard + string(guard.Hold), how: "taking the annotation " + guard.HoldAnnotation + " off the node or job", parks: true},
	guardReason(guard.OptIn):      {begins: waitGuard + string(guard.OptIn), how: "the namespace's label " + guard.OptInLabel, idle: day, stopped: day, parks: true},
	guardReason(guard.Blackout):   {begins: waitGuard + string(guard.Blackout), how: "itself, when the window is over", parks: true},
	guardReason(guard.Breaker):    {begins: waitGuard + string(guard.Breaker), how: "repairing a node that Pitcrew cordoned, and `pitcrew node uncordon`; it lets go up to 10 minutes later", parks: true},
	guardReason(guard.Concurrent): {begins: waitTurn + string(guard.Concurrent), report: 10 * time.Minute, how: "other incidents ending", parks: true},
	guardReason(guard.Cooldown):   {begins: waitGuard + string(guard.Cooldown), how: "itself, later; the same was done to the node before, so see whether it was repaired", parks: true},
	guardReason(guard.ActBudget):  {begins: waitGuard + string(guard.ActBudget), how: "itself, later; that many faults in a day may have one cause", parks: true},
	guardReason(guard.EventAge):   {begins: waitGuard + string(guard.EventAge), how: "the node's agent being heard again", parks: true},
	guardReason(guard.PerJob):     {begins: waitGuard + string(guard.PerJob), how: "itself, later; restarts did not help the job", idle: day, stopped: day, parks: true},
	guardReason(guard.Lasts):      {begins: waitGuard + string(guard.Lasts), report: 15 * time.Minute, how: "itself, when the finding has lasted, or ends", parks: true},
	guardReason(guard.SecondSign): {begins: waitGuard + string(guard.SecondSign), report: time.Minute, how: "the node itself measuring something that confirms the finding; or moving the job by hand", parks: true},
	guardReason(guard.OneCulprit): {begins: waitGuard + string(guard.OneCulprit), how: "finding out which of the findings is right; the incident ends when they end", parks: true},
	guardReason(guard.WorthIt):    {begins: waitGuard + string(guard.WorthIt), report: time.Minute, how: "the finding costing more, or `worth` of the rule being changed", parks: true},
	guardReason(guard.Fresh):      {begins: waitGuard + string(guard.Fresh), report: time.Minute, how: "the gateway or the node's agent being heard again", parks: true},
	guardReason(guard.NotInVain):  {begins: waitGuard + string(guard.NotInVain), how: "finding the cause: moving the job did not help", idle: day, stopped: day, parks: true},
	guardReason(guard.LedgerFull): {begins: waitGuard + string(guard.LedgerFull), how: "itself, as incidents leave the window of the guards", parks: true},
}

// Wait is what an incident waits for.
type Wait struct {
	Reason   Reason    `json:"reason"`
	Since    time.Time `json:"since"`
	Reported time.Time `json:"reported,omitzero"` // when a person was asked
	Until    time.Time `json:"until,omitzero"`    // when time alone will end it; zero: not known
}

// limit is how long the incident may wait for a reason; 0: for as long as it takes.
func (i *Incident) limit(by Reason) time.Duration {
	m := meanings[by]
	limit, policy := m.idle, time.Duration(0)
	if i.Plan != nil {
		policy = time.Duration(i.Plan.Deadlines.Wait)
	}
	if i.stopped() {
		if limit = m.stopped; i.Plan != nil {
			policy = time.Duration(i.Plan.Deadlines.Stopped)
		}
	}
	switch {
	case limit == 0 || m.fixed:
		return limit
	case by == ReasonApproval && i.Plan != nil && i.Plan.ApprovalWithin > 0:
		return i.Plan.ApprovalWithin
	case policy > 0:
		return policy
	}
	return limit
}

// needs reports whether the wait needs a person by now.
func (w *Wait) needs() bool { return w != nil && !w.Reported.IsZero() }

// NeedsPerson reports whether nothing goes on, or nothing did, without a person: a wait that only a person ends or that lasts too long, a
// refusal, tries that are used up, a step that was given up, a policy that only observes.
func (i *Incident) NeedsPerson() bool {
	switch {
	case i.Group != nil && i.Open():
		return i.Group.Stuck > 0
	case i.State == Closed:
		return i.Outcome == Failed || i.Outcome == Refused || i.Outcome == Observed || i.Outcome == GaveUp || i.Outcome == NotTheCause
	case i.Wait != nil:
		return i.Wait.needs()
	}
	return i.legacyWait().begins != "" // a record of an earlier version
}

// legacyWait finds the meaning of a wait by its text.
func (i *Incident) legacyWait() meaning {
	if i.Wait != nil {
		return meanings[i.Wait.Reason]
	}
	for _, m := range meanings {
		if m.report == 0 && i.Waiting != "" && strings.HasPrefix(i.Waiting, m.begins) {
			return m
		}
	}
	return meaning{}
}

// Asks reports whether the incident waits for a person's answer.
func (i *Incident) Asks() bool {
	if i.Group != nil {
		return i.Open() && i.Group.Asking > 0
	}
	if i.Wait != nil && i.Wait.Reason == ReasonEvidence {
		return i.Open()
	}
	return i.State == Planned && i.Plan != nil && i.Plan.NeedsApproval && i.Approval == ""
}

func (i Incident) remedy() string {
	return strings.ReplaceAll(i.legacyWait().how, " ID`", " "+i.ID+"`")
}
