package build

const needsSelf = "needs Pitcrew's own endpoints: monitoring.podMonitor"

var selfBoard = board{
	uid: "pitcrew-self", title: "Pitcrew itself", from: "now-24h", vars: []variable{varCluster},
	about: "Whether Pitcrew sees every node, judges, delivers and decides in time.",
	rows: []row{
		{"Now", []panel{
			{title: "Nodes read", about: "Nodes whose agent reports.", kind: stat, unit: "short", runbooks: []string{"PitcrewAgentMissing"}, queries: []query{{`sum(cluster:pitcrew_nodes_read:count{@c})`, "nodes"}}, empty: "needs Pitcrew's agent"},
			{title: "Agents missing", about: "Nodes on which the agent should run and does not.", kind: stat, unit: "short", runbooks: []string{"PitcrewAgentMissing"}, steps: []step{{1, bad, "faults there are not seen"}},
				queries: []query{{`sum(kube_daemonset_status_desired_number_scheduled{@c,daemonset="pitcrew-node"} - kube_daemonset_status_number_ready{@c,daemonset="pitcrew-node"})`, "agents"}}, empty: needsState},
			{title: "DCGM silent for", about: "Longest time since a node's host engine gave a good answer.", kind: stat, unit: "s", runbooks: []string{"DCGMStale"}, steps: []step{{60, bad, "values are old: the engine or the driver hangs"}},
				queries: []query{{`max(cluster:pitcrew_dcgm_stale_seconds:max{@c})`, "stale"}}, empty: "needs Pitcrew's agent"},
			{title: "Oldest event", about: "Age of the oldest event that was delivered and is not dealt with.", kind: stat, unit: "s", runbooks: []string{"PitcrewEventsBehind"}, steps: []step{{5, warn, "the objective"}, {60, bad, "decisions are late"}}, decimals: 1,
				queries: []query{{`max(pitcrew_events_oldest_seconds{@c})`, "age"}}, empty: needsRemediator},
			{title: "Coverage", about: "Lowest share of the catalog's signals that an agent judges.", kind: stat, unit: "percentunit", runbooks: []string{"PitcrewAnomalyCoverageLow"}, base: bad, steps: []step{{0.5, warn, "half of the signals are missing below it"}, {0.8, good, "usual without profiling fields"}},
				queries: []query{{`min(cluster:pitcrew_anomaly_coverage:min{@c})`, "coverage"}}, empty: needsSelf},
			{title: "Findings lost", about: "Findings of an hour that agents dropped because nobody took them.", kind: stat, unit: "short", runbooks: []string{"PitcrewFindingsDropped", "PitcrewDetectorLost"}, steps: []step{{1, bad, "a fault may have been missed"}}, whole: true,
				queries: []query{{`sum(cluster:pitcrew_findings_lost:increase1h{@c})`, "findings"}}, empty: needsSelf},
		}},
		{"From the fault to the decision", []panel{
			{title: "Events that wait", about: "Events that are not dealt with: delivered to the remediator, or behind those in the stream.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewEventsBacklog"},
				queries: []query{{`sum by (where) (pitcrew_events_waiting{@c})`, "{{where}}"}}, empty: needsRemediator},
			{title: "Oldest event", about: "Age of the oldest event that was delivered and is not dealt with.", kind: timeseries, unit: "s", runbooks: []string{"PitcrewDecidesLateFast"}, steps: []step{{5, warn, "the objective"}},
				queries: []query{{`max(pitcrew_events_oldest_seconds{@c})`, "age"}}, empty: needsRemediator},
			{title: "Time to NATS", about: "95th percentile of the time from a finding to its place in JetStream.", kind: timeseries, unit: "s",
				queries: []query{{`max(cluster:pitcrew_nats_ack_seconds:p95{@c})`, "95 %"}}, empty: "no finding lately"},
			{title: "Findings that wait for NATS", about: "Findings that agents have sent and NATS has not acknowledged.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewFindingsNotSent"},
				queries: []query{{`sum(cluster:pitcrew_nats_waiting:sum{@c})`, "findings"}}, empty: needsSelf},
			{title: "Events dropped", about: "Events an hour that were not dealt with, by reason.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewEventsDropped"},
				queries: []query{{`3600 * sum by (reason) (rate(pitcrew_events_dropped_total{@c}[$__rate_interval]))`, "{{reason}}"}}, empty: "none"},
			{title: "Notices", about: "Notices an hour, by what became of them.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewNoticesFailing"},
				queries: []query{{`3600 * sum by (result) (rate(pitcrew_notices_total{@c}[$__rate_interval]))`, "{{result}}"}}, empty: "no receiver, or no notice"},
		}},
		{"Detection", []panel{
			{title: "Values judged", about: "Values and records a second that detectors judge. A fall without fewer nodes is a source that ended.", kind: timeseries, unit: "cps",
				queries: []query{{`sum(cluster:pitcrew_detector_samples:rate5m{@c})`, "values"}}, empty: needsSelf},
			{title: "Findings", whole: true, about: "Findings of an hour.", kind: timeseries, unit: "short", queries: []query{{`sum(cluster:pitcrew_detector_findings:increase1h{@c})`, "findings"}}, empty: needsSelf},
			{title: "Anomalies by signal", whole: true, about: "Onsets of anomalies in a day, of the ten signals with most.", kind: timeseries, unit: "short", stacked: true,
				queries: []query{{`topk(10, sum by (pitcrew_signal) (cluster:pitcrew_anomaly_onsets:increase1d{@c}))`, "{{pitcrew_signal}}"}}, empty: "no anomaly in a day"},
			{title: "Anomalies against the rate asked for", about: "Onsets of a day, and the false ones that the configured rate allows. Onsets far above it are real, or the baselines are wrong.", kind: timeseries, unit: "short",
				queries: []query{{`sum(cluster:pitcrew_anomaly_onsets:increase1d{@c})`, "onsets"}, {`sum(cluster:pitcrew_anomaly_asked:increase1d{@c})`, "false ones allowed"}}, empty: needsSelf},
			{title: "Memory of the largest collector", about: "Resident memory of the collector process that has most.", kind: timeseries, unit: "bytes", runbooks: []string{"PitcrewAgentMemoryHigh"}, steps: []step{{1073741824, warn, "its limit is near"}},
				queries: []query{{`max(cluster:pitcrew_agent_memory_bytes:max{@c})`, "largest"}}, empty: needsSelf},
			{title: "NATS logins", about: "Clients an hour about which NATS asked the remediator, by result.", kind: timeseries, unit: "short",
				queries: []query{{`3600 * sum by (result) (rate(pitcrew_nats_logins_total{@c}[$__rate_interval]))`, "{{result}}"}}, empty: "NATS has no access control"},
		}},
	},
}
