package build

// healths are what DCGM's watches and the GPU's status say, as node:pitcrew_gpu_health:max counts them.
var healths = []naming{{"0", "healthy", good}, {"1", "warning", warn}, {"2", "failure", bad}, {"3", "GPU lost", "purple"}}

var fleetBoard = board{
	uid: "pitcrew-fleet", title: "Fleet", from: "now-24h", vars: []variable{varCluster},
	about: "How many GPUs there are, which are used, idle, lost or in quarantine, and what fires. Start here.",
	rows: []row{
		{"Now", []panel{
			{title: "GPUs", about: "GPUs that report.", kind: stat, unit: "short", queries: []query{{`sum(cluster:pitcrew_gpus:count{@c})`, "GPUs"}}, empty: "needs DCGM metrics"},
			{title: "Held by pods", about: "Share of the GPUs that a pod holds.", kind: stat, unit: "percentunit", decimals: 1,
				queries: []query{{`sum(cluster:pitcrew_gpus_held:count{@c}) / sum(cluster:pitcrew_gpus:count{@c})`, "held"}}, empty: "needs pod labels"},
			{title: "Use of held GPUs", about: "Mean share of time in which any kernel ran, of GPUs that a pod holds.", kind: stat, unit: "percentunit", decimals: 1, base: bad,
				steps:   []step{{0.3, warn, "held GPUs are mostly waiting below it"}, {0.6, good, "usual for training"}},
				queries: []query{{`avg(cluster:pitcrew_gpu_utilization:avg{@c})`, "utilization"}}, empty: "needs pod labels"},
			{title: "GPUs lost", about: "GPUs that nodes should have and that do not answer.", kind: stat, unit: "short",
				steps: []step{{1, bad, "a lost GPU takes its job with it"}}, runbooks: []string{"GPUMissing"},
				queries: []query{{`sum(cluster:pitcrew_gpus_lost:sum{@c})`, "lost"}}, empty: "needs Pitcrew's agent"},
			{title: "Nodes in quarantine", about: "Nodes that Pitcrew has cordoned and not given back.", kind: stat, unit: "short",
				steps:   []step{{1, warn, "each is capacity that is missing"}},
				queries: []query{{`sum(pitcrew_nodes_quarantined{@c})`, "nodes"}}, empty: "needs the remediator"},
			{title: "Need a person", about: "Open incidents that wait for a person.", kind: stat, unit: "short",
				steps: []step{{1, bad, "a job waits for an answer"}}, runbooks: []string{"PitcrewNeedsPerson"}, to: &target{"pitcrew-incidents", "Incidents", nil},
				queries: []query{{`sum(pitcrew_incidents_need_person{@c})`, "incidents"}}, empty: "needs the remediator"},
		}},
		{"What is wrong", []panel{
			{title: "Alerts that fire", about: "Alerts of the catalog that fire now. A click opens the runbook.", kind: table, unit: "short", w: 12, h: 9,
				columns: []string{"severity", "alertname", "area"}, value: "firing", empty: "nothing fires",
				queries: []query{{`sort_desc(count by (severity, alertname, area) (ALERTS{@c,alertstate="firing",area!=""}))`, ""}}},
			{title: "Nodes with trouble", about: "The nodes whose worst GPU is in the worst state. Healthy nodes fill up the twenty.", kind: stateTimeline, unit: "short", w: 12, h: 9,
				names: healths, to: toNode, queries: []query{{`topk(20, node:pitcrew_gpu_health:max{@c})`, "{{node}}"}}, empty: "needs Pitcrew's agent"},
		}},
		{"Use", []panel{
			{title: "GPUs in use", about: "GPUs that report, that a pod holds, and that a pod holds without using them (below 10 % for 30 minutes).", kind: timeseries, unit: "short",
				queries: []query{{`sum(cluster:pitcrew_gpus:count{@c})`, "report"}, {`sum(cluster:pitcrew_gpus_held:count{@c})`, "held"}, {`sum(namespace:pitcrew_gpus_idle:sum{@c})`, "held and idle"}}},
			{title: "Utilization of the nodes", about: "How many nodes have which utilization. A second band near 0 is idle capacity.", kind: heatmap, unit: "percentunit", max: 1,
				queries: []query{{`node:pitcrew_gpu_utilization:avg{@c}`, "{{node}}"}}},
			{title: "Power", about: "Power of all GPUs.", kind: timeseries, unit: "watt", queries: []query{{`sum(cluster:pitcrew_gpu_power_watts:sum{@c})`, "GPUs"}}},
			{title: "Hottest nodes", about: "The hottest GPU of the ten hottest nodes.", kind: timeseries, unit: "celsius", to: toNode,
				steps: []step{{85, bad, "cards slow down soon above it"}}, runbooks: []string{"GPUTemperatureHigh"},
				queries: []query{{`topk(10, node:pitcrew_gpu_temperature_celsius:max{@c})`, "{{node}}"}}},
			{title: "Memory errors that were corrected", about: "Corrected memory errors in an hour, of the ten nodes with most.", kind: timeseries, unit: "short", to: toNode,
				steps: []step{{100, warn, "operators' common limit, for one GPU"}}, runbooks: []string{"GPUCorrectableECCHigh"},
				queries: []query{{`topk(10, node:pitcrew_gpu_ecc_corrected:increase1h{@c})`, "{{node}}"}}},
			{title: "GPUs by model", about: "GPUs that report, by model.", kind: barGauge, unit: "short", queries: []query{{`sum by (modelName) (cluster:pitcrew_gpus:count{@c})`, "{{modelName}}"}}},
		}},
	},
}
