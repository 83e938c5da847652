package build

import "strings"

const needsRemediator = "needs the remediator"

// acted are outcomes of incidents on which Pitcrew acted or tried to; observed ones are shown apart.
const acted = `outcome!="observed"`

var incidentBoard = board{
	uid: "pitcrew-incidents", title: "Incidents and remediation", from: "now-7d", vars: []variable{varCluster},
	about: "What was detected, decided, done and verified, what waits, and which guard blocked. Observe mode is shown apart.",
	rows: []row{
		{"Now", []panel{
			{title: "Open", about: "Incidents under way. Incidents of one cause count once.", kind: stat, unit: "short", runbooks: []string{"PitcrewIncident"}, steps: []step{{1, notes, "something is being handled"}},
				queries: []query{{`sum(pitcrew_incidents_open{@c})`, "open"}}, empty: needsRemediator},
			{title: "Need a person", about: "Open incidents that wait for a person.", kind: stat, unit: "short", runbooks: []string{"PitcrewNeedsPerson"}, steps: []step{{1, bad, "a job waits for an answer"}},
				queries: []query{{`sum(pitcrew_incidents_need_person{@c})`, "waiting"}}, empty: needsRemediator},
			{title: "Recovered in a day", about: "Incidents after which every rank stepped past the checkpoint.", kind: stat, unit: "short", whole: true,
				queries: []query{{`sum(cluster:pitcrew_incidents_closed:increase1d{@c,outcome="recovered"})`, "recovered"}}, empty: "none yet"},
			{title: "Without a person", about: "Share of a day's incidents on which Pitcrew could act that it closed without a person.", kind: stat, unit: "percentunit", runbooks: []string{"PitcrewAutonomyLow"}, base: bad,
				steps:   []step{{0.8, warn, "below the objective"}, {0.95, good, "the objective"}},
				queries: []query{{`avg(cluster:pitcrew_recovered_without_person:ratio1d{@c})`, "share"}}, empty: "no incident in a day"},
			{title: "Recovery, median", about: "From the fault to the first step of every rank, median of a day.", kind: stat, unit: "s", runbooks: []string{"PitcrewRecoverySlow"}, steps: []step{{120, warn, "the objective"}},
				queries: []query{{`max(cluster:pitcrew_recovery_seconds:p50_1d{@c} > 0)`, "median"}}, empty: "no recovery in a day"},
			{title: "Recovery, 95 %", about: "From the fault to the first step of every rank, 95th percentile of a day.", kind: stat, unit: "s", runbooks: []string{"PitcrewRecoverySlow"}, steps: []step{{120, warn, "the objective"}},
				queries: []query{{`max(cluster:pitcrew_recovery_seconds:p95_1d{@c} > 0)`, "95 %"}}, empty: "no recovery in a day"},
		}},
		{"Detected, decided, acted, verified", []panel{
			{title: "How far incidents came", about: "How many incidents of a day took each step: detected, planned (decided), cordoned to restarted (acted), resumed and verified. Observed incidents end at planned.", kind: barGauge, unit: "short", whole: true,
				queries: phases(`sum(cluster:pitcrew_incident_phases:increase1d{@c,state="%s"})`), empty: "no incident in a day"},
			{title: "How long each step took", about: "Mean time of each step, of a day.", kind: barGauge, unit: "s", decimals: 2, runbooks: []string{"PitcrewRecoverySlow"},
				queries: phases(`avg(cluster:pitcrew_incident_phase_seconds:avg_1d{@c,state="%s"})`), empty: "no incident in a day"},
			{title: "Outcomes of what Pitcrew acted on", whole: true, about: "Incidents closed in a day, by outcome, without observe mode.", kind: timeseries, unit: "short", stacked: true, runbooks: []string{"PitcrewIncidentsFailing"},
				queries: []query{{`sum by (outcome) (cluster:pitcrew_incidents_closed:increase1d{@c,` + acted + `})`, "{{outcome}}"}}, empty: "nothing acted on yet"},
			{title: "Observe mode", whole: true, about: "Incidents of a day for which Pitcrew only recorded what it would have done. Nothing was changed.", kind: timeseries, unit: "short",
				queries: []query{{`sum by (outcome) (cluster:pitcrew_incidents_closed:increase1d{@c,outcome="observed"})`, "{{outcome}}: would have acted"}}, empty: "no policy observes"},
			{title: "Time to recover", about: "From the fault to the first step of every rank: median and 95th percentile of a day.", kind: timeseries, unit: "s", runbooks: []string{"PitcrewRecoverySlow"}, steps: []step{{120, warn, "the objective"}},
				queries: []query{{`max(cluster:pitcrew_recovery_seconds:p50_1d{@c})`, "median"}, {`max(cluster:pitcrew_recovery_seconds:p95_1d{@c})`, "95 %"}}, empty: "no recovery in a day"},
			{title: "Steps repeated", about: "Optimizer steps that had to be repeated since the remediator started: the work that faults cost.", kind: timeseries, unit: "short",
				queries: []query{{`sum(pitcrew_lost_steps_total{@c})`, "steps"}}, empty: needsRemediator},
		}},
		{"What waits, and which guard blocked", []panel{
			{title: "What incidents wait for", about: "Incidents that wait, by reason.", kind: timeseries, unit: "short", stacked: true, runbooks: []string{"PitcrewIncidentWaitsLong"},
				queries: []query{{`sum by (reason) (pitcrew_incidents_waiting{@c})`, "{{reason}}"}}, empty: "nothing waits"},
			{title: "Longest wait", about: "How long the incident that has waited longest has waited, by reason.", kind: timeseries, unit: "s", runbooks: []string{"PitcrewIncidentWaitsLong"}, steps: []step{{1800, warn, "somebody should look"}},
				queries: []query{{`max by (reason) (pitcrew_incident_waiting_seconds{@c})`, "{{reason}}"}}, empty: "nothing waits"},
			{title: "Breakers", about: "Whether a policy's breaker refuses new cordons.", kind: stateTimeline, unit: "short", names: []naming{{"0", "closed", good}, {"1", "open: no new cordons", bad}}, runbooks: []string{"PitcrewBreakerOpen"},
				queries: []query{{`max by (policy) (pitcrew_breaker_open{@c})`, "{{policy}}"}}, empty: needsRemediator},
			{title: "Budgets", about: "Disruptive actions that count against a policy's budget, and the budget.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewActionBudgetExhausted"},
				queries: []query{{`max by (policy) (pitcrew_action_budget_used{@c})`, "{{policy}} used"}, {`max by (policy) (pitcrew_action_budget_limit{@c})`, "{{policy}} limit"}}, empty: needsRemediator},
			{title: "Nodes in quarantine", about: "Nodes that carry Pitcrew's quarantine, and how many the breaker allows.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewBreakerOpen"},
				queries: []query{{`max by (policy) (pitcrew_nodes_quarantined{@c})`, "{{policy}}"}, {`max by (policy) (pitcrew_breaker_limit_nodes{@c})`, "{{policy}} limit"}}, empty: needsRemediator},
			{title: "Refused", whole: true, about: "Incidents of a day that a guard refused permanently, that gave up, or that failed.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewIncidentsFailing"},
				queries: []query{{`sum by (outcome) (cluster:pitcrew_incidents_closed:increase1d{@c,outcome=~"refused|gave-up|failed"})`, "{{outcome}}"}}, empty: "none"},
			{title: "Events that opened nothing", about: "Events an hour that opened no incident, by reason: stale, known, of another node.", kind: timeseries, unit: "short",
				queries: []query{{`3600 * sum by (reason) (rate(pitcrew_events_noted_total{@c}[$__rate_interval]))`, "{{reason}}"}}, empty: "none"},
			{title: "Children", about: "Incidents for which a parent speaks: many nodes, one cause.", kind: timeseries, unit: "short",
				queries: []query{{`sum(pitcrew_incident_children_open{@c})`, "open"}}, empty: needsRemediator},
		}},
	},
}

// phases makes a query for each step of an incident, in their order.
func phases(format string) (out []query) {
	for _, s := range [][2]string{
		{"detected", "1 detected"}, {"planned", "2 planned (decided)"}, {"cordoned", "3 cordoned (acted)"}, {"checkpointed", "4 checkpointed"},
		{"placed", "5 placed"}, {"restarted", "6 restarted"}, {"resumed", "7 resumed"}, {"verified", "8 verified"},
	} {
		out = append(out, query{strings.ReplaceAll(format, "%s", s[0]), s[1]})
	}
	return out
}
