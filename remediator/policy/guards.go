package policy

import (
	"cmp"
	"time"

	"github.com/invopop/jsonschema"
)

// Guards are the bounds of a policy; package guard judges them.
type Guards struct {
	// Scope is what the counts below are counted over. Each policy has its own counts with PerPolicy; with PerCluster the incidents and
	// nodes of every policy count against this policy's limits.
	Scope                  Scope    `json:"scope,omitempty" jsonschema_description:"What the limits count. policy: incidents and nodes of this policy. cluster: those of every policy. Set it on each policy that must share a limit."`
	MaxConcurrentIncidents int      `json:"maxConcurrentIncidents" jsonschema:"minimum=1,default=2" jsonschema_description:"Incidents that may be acting at once."`
	MaxNodesQuarantined    Share    `json:"maxNodesQuarantined" jsonschema_description:"The breaker: nodes that Pitcrew may hold cordoned at once. It blocks new cordons only. Default {count: 5, percent: 5}."`
	CooldownPerNode        Duration `json:"cooldownPerNode" jsonschema_description:"How long the same action is not begun again on a node by another incident. Default 2h."`
	ActionBudget           Budget   `json:"actionBudget" jsonschema_description:"Disruptive steps (cordon, restart-job, reboot-node) in a sliding window. Default {count: 20, per: 24h}."`
	MaxEventAge            Duration `json:"maxEventAge" jsonschema_description:"An older event starts nothing until the node has confirmed it. Default 60s."`
	TakeUpWithin           Duration `json:"takeUpWithin" jsonschema_description:"How long an incident stays eligible after a guard first held it back, or after a policy only observed it. It is taken up if the guard clears in that time and the node reports that the fault still holds. 0s: never. Default 24h."`
	// ApprovalWithin is how long an approval, or the request for one, is valid. After it the incident asks again or ends; it never acts
	// on an approval older than this.
	ApprovalWithin Duration `json:"approvalWithin,omitzero" jsonschema_description:"How long a request for approval is open, and how long an approval is valid once given. Default 24h."`
	// Deadlines bound every step that fails or waits.
	Deadlines Deadlines `json:"deadlines,omitzero" jsonschema_description:"How long a step may fail or wait before it is reported and before it is given up. Default {report: 5m, wait: 24h, stopped: 30m}."`
	// Unsteered says what happens to a replacement pod that the scheduler placed by its own choice on a node that is not equivalent.
	Unsteered Unsteered `json:"unsteered,omitempty" jsonschema_description:"What happens to a replacement that the scheduler put on a node that is not equivalent. allow: it stays, and the incident reports it. undo: the pod is deleted and placed again."`
	// KernelConditionMaxAge ends a condition that only a line of the kernel log reported. It never exceeds the 30 days for which the ids of
	// handled events are remembered: an older condition would otherwise open a second incident after a change of leader.
	KernelConditionMaxAge Duration `json:"kernelConditionMaxAge,omitzero" jsonschema_description:"How long a condition counts that only a line of the kernel log reported: no later line ends it. A reset, reboot or repair ends it sooner. At most 720h. Default 168h."`
	// OneCause says when incidents are one: those of as many nodes of a rack or pool, under one rule.
	OneCause Grouping `json:"oneCause,omitzero" jsonschema_description:"When the incidents of many nodes become one: one page, one answer. Default {nodes: 3, within: 60s}. nodes: 0 never groups."`
	Blackout []Window `json:"blackout,omitempty" jsonschema_description:"Windows in which no incident starts to act, such as \"Fri 18:00-Mon 06:00 Europe/Berlin\" or \"22:00-06:00 UTC\"."`
}

// Grouping says when incidents of nodes that share a failure domain are children of one parent.
type Grouping struct {
	Nodes  int      `json:"nodes" jsonschema:"minimum=0" jsonschema_description:"Nodes of one rack or pool that make one incident, if the same rule acts on each. 0: never. Default 3."`
	Within Duration `json:"within,omitzero" jsonschema_description:"Time in which their incidents open. At most 10m. Default 60s."`
}

// MaxGrouping bounds how long a page may wait for others of the same cause.
const MaxGrouping = Duration(10 * time.Minute)

// Deadlines bound a step that fails or waits. Each runs from the start of the step; a success ends it.
type Deadlines struct {
	// Report is when a failure or wait that persists is reported to an operator (NeedsPerson). It is not longer than Wait and Stopped.
	Report Duration `json:"report,omitzero" jsonschema_description:"A failure or wait that lasts this long is reported to an operator. At most wait and stopped. Default 5m."`
	// Wait applies while the incident has not stopped any rank: giving up leaves the job as it is.
	Wait Duration `json:"wait,omitzero" jsonschema_description:"While no rank was stopped: a step that fails or waits this long is given up. Default 24h."`
	// Stopped applies from the moment ranks are held or stopped, or the job is suspended: giving up releases them.
	Stopped Duration `json:"stopped,omitzero" jsonschema_description:"Once ranks are held or stopped: a step that fails or waits this long is given up, and the ranks are released. Default 30m."`
}

// Uncordoning says when Pitcrew takes back a cordon of its own. It never touches a cordon that somebody else made.
type Uncordoning struct {
	// AfterRepair uncordons when every condition that led to the cordon has ended by its own source after a reset, reboot or repair, and no
	// other condition of severity critical or fatal is active on the node.
	AfterRepair bool `json:"afterRepair,omitempty" jsonschema:"default=false" jsonschema_description:"Uncordon when the source reports that the fault ended after a reset, reboot or repair, and nothing critical is active on the node."`
	// After uncordons by age: a node cordoned for so long, whose agent is heard and on which nothing critical is active. Zero: never.
	After Duration `json:"after,omitzero" jsonschema_description:"Uncordon a node that was cordoned this long ago, if its agent is heard and nothing critical is active on it. 0s: never, the default."`
}

// Budget is a number of actions in a sliding window.
type Budget struct {
	Count int      `json:"count" jsonschema:"required,minimum=1" jsonschema_description:"How many."`
	Per   Duration `json:"per" jsonschema:"required" jsonschema_description:"In how long."`
}

// Scope is what the limits of a policy count.
type Scope string

// The scopes.
const (
	PerPolicy  Scope = "policy"
	PerCluster Scope = "cluster"
)

// Unsteered is what happens to a replacement that came down on a node that is not equivalent.
type Unsteered string

// What can happen to it.
const (
	UnsteeredAllow Unsteered = "allow"
	UnsteeredUndo  Unsteered = "undo"
)

// MaxKernelConditionAge is how long the ids of handled events are remembered on the bus.
const MaxKernelConditionAge = Duration(30 * 24 * time.Hour)

// DefaultGuards are in force if a policy sets nothing else.
func DefaultGuards() Guards {
	return Guards{
		Scope:                  PerPolicy,
		MaxConcurrentIncidents: 2,
		MaxNodesQuarantined:    Share{Count: 5, Percent: 5},
		CooldownPerNode:        Duration(2 * time.Hour),
		ActionBudget:           Budget{Count: 20, Per: Duration(24 * time.Hour)},
		MaxEventAge:            Duration(time.Minute),
		TakeUpWithin:           Duration(24 * time.Hour),
		ApprovalWithin:         Duration(24 * time.Hour),
		Deadlines:              Deadlines{Report: Duration(5 * time.Minute), Wait: Duration(24 * time.Hour), Stopped: Duration(30 * time.Minute)},
		Unsteered:              UnsteeredAllow,
		KernelConditionMaxAge:  Duration(7 * 24 * time.Hour),
		OneCause:               Grouping{Nodes: 3, Within: Duration(time.Minute)},
	}
}

// Complete returns the guards with the default in place of each field that is zero although zero has no meaning for it. Guards that an
// earlier version recorded with a decision lack the newer fields.
func (g Guards) Complete() Guards {
	def := DefaultGuards()
	g.Scope = cmp.Or(g.Scope, def.Scope)
	g.MaxConcurrentIncidents = cmp.Or(g.MaxConcurrentIncidents, def.MaxConcurrentIncidents)
	if q := &g.MaxNodesQuarantined; q.Count == 0 && q.Percent == 0 {
		q.Count, q.Percent = def.MaxNodesQuarantined.Count, def.MaxNodesQuarantined.Percent
	}
	if g.ActionBudget == (Budget{}) {
		g.ActionBudget = def.ActionBudget
	}
	g.MaxEventAge = cmp.Or(g.MaxEventAge, def.MaxEventAge)
	g.ApprovalWithin = cmp.Or(g.ApprovalWithin, def.ApprovalWithin)
	g.Deadlines = g.Deadlines.complete()
	g.Unsteered = cmp.Or(g.Unsteered, def.Unsteered)
	g.KernelConditionMaxAge = cmp.Or(g.KernelConditionMaxAge, def.KernelConditionMaxAge)
	g.OneCause = cmp.Or(g.OneCause, def.OneCause)
	return g
}

// complete fills in defaults. A deadline for giving up that is shorter than the default report shortens the report.
func (d Deadlines) complete() Deadlines {
	def := DefaultGuards().Deadlines
	d.Wait, d.Stopped = cmp.Or(d.Wait, def.Wait), cmp.Or(d.Stopped, def.Stopped)
	d.Report = cmp.Or(d.Report, min(def.Report, d.Wait, d.Stopped))
	return d
}

func checkGuards(g Guards, fail checker) {
	const at = "spec.guards."
	fail.err(at+"scope", oneOf("scope", string(g.Scope), scopeWords))
	fail.err(at+"unsteered", oneOf("value", string(g.Unsteered), unsteeredWords))
	fail.need(g.MaxConcurrentIncidents >= 1, at+"maxConcurrentIncidents", "must be at least 1; to act on nothing use mode: observe")
	q := g.MaxNodesQuarantined
	fail.need(q.Count != 0 || q.Percent != 0, at+"maxNodesQuarantined", "needs count, percent or both")
	fail.need(q.Percent >= 0 && q.Percent <= 100, at+"maxNodesQuarantined.percent", "must be above 0 and at most 100")
	for _, l := range []struct {
		name string
		n    int
	}{{"count", q.Count}, {"perRack", q.PerRack}, {"perPool", q.PerPool}, {"perJob", q.PerJob}} {
		fail.need(l.n >= 0, at+"maxNodesQuarantined."+l.name, "must be at least 1")
	}
	fail.need(g.ActionBudget.Count >= 1, at+"actionBudget.count", "must be at least 1; to act on nothing use mode: observe")
	fail.need(g.OneCause.Nodes == 0 || g.OneCause.Nodes >= 2, at+"oneCause.nodes", "must be at least 2, or 0 to group nothing")
	fail.need(g.OneCause.Within > 0 && g.OneCause.Within <= MaxGrouping, at+"oneCause.within", "must be longer than 0s and at most "+MaxGrouping.String())
	for _, d := range []struct {
		name string
		d    Duration
	}{{"actionBudget.per", g.ActionBudget.Per}, {"maxEventAge", g.MaxEventAge}, {"approvalWithin", g.ApprovalWithin}, {"kernelConditionMaxAge", g.KernelConditionMaxAge},
		{"deadlines.report", g.Deadlines.Report}, {"deadlines.wait", g.Deadlines.Wait}, {"deadlines.stopped", g.Deadlines.Stopped}} {
		fail.need(d.d > 0, at+d.name, "must be longer than 0s")
	}
	fail.need(g.KernelConditionMaxAge <= MaxKernelConditionAge, at+"kernelConditionMaxAge",
		"must be at most "+MaxKernelConditionAge.String()+": the ids of handled events are remembered that long")
	for _, end := range []struct {
		name string
		d    Duration
	}{{"wait", g.Deadlines.Wait}, {"stopped", g.Deadlines.Stopped}} {
		fail.need(g.Deadlines.Report <= end.d || end.d <= 0, at+"deadlines.report",
			"must not be longer than deadlines."+end.name+" ("+end.d.String()+"): the step would be given up before anybody is told")
	}
}

var (
	scopeWords     = words(PerPolicy, PerCluster)
	unsteeredWords = words(UnsteeredAllow, UnsteeredUndo)
)

// JSONSchema lists the scopes.
func (Scope) JSONSchema() *jsonschema.Schema { return enumSchema(scopeWords, PerPolicy) }

// JSONSchema lists what can happen.
func (Unsteered) JSONSchema() *jsonschema.Schema { return enumSchema(unsteeredWords, UnsteeredAllow) }
