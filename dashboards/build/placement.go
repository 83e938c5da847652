package build

const needsState = "needs kube-state-metrics"

var placementBoard = board{
	uid: "pitcrew-placement", title: "Placement and reservations", from: "now-24h", vars: []variable{varCluster, varNode},
	about: "Where a replacement could go: free GPUs, cordoned nodes, what waits for a node, and what queues ask for.",
	rows: []row{
		{"Now", []panel{
			{title: "Free GPUs", about: "GPUs that nobody has, on nodes that are not cordoned.", kind: stat, unit: "short", base: bad, steps: []step{{1, warn, "one GPU is not a node"}, {8, good, "room for one node of eight"}},
				queries: []query{{`sum(node:pitcrew_gpus_free:sum{@n})`, "free"}}, empty: needsState},
			{title: "Empty nodes", about: "Nodes with at least eight GPUs, all free: spares for a gang.", kind: stat, unit: "short", base: bad, steps: []step{{1, good, "a gang that loses a node can continue"}},
				queries: []query{{`sum((node:pitcrew_gpus_free:sum{@n} == bool on (cluster, node) node:pitcrew_gpus_allocatable:sum{@n}) * on (cluster, node) (node:pitcrew_gpus_allocatable:sum{@n} >= bool 8))`, "nodes"}}, empty: needsState},
			{title: "Wait for a node", about: "Incidents that wait because no equivalent node is free, or another has just taken it.", kind: stat, unit: "short", runbooks: []string{"PitcrewIncidentWaitsLong"}, steps: []step{{1, bad, "a job is stopped or slow"}},
				queries: []query{{`sum(pitcrew_incidents_waiting{@c,reason=~"no-node|reserved"}) or vector(0)`, "incidents"}}, empty: needsRemediator},
			{title: "Hold a place", about: "Incidents that hold one of their policy's places: a node is reserved or a job is being moved.", kind: stat, unit: "short",
				queries: []query{{`sum(pitcrew_incidents_acting{@c})`, "incidents"}}, empty: needsRemediator},
			{title: "In quarantine", about: "Nodes that Pitcrew has cordoned and not given back.", kind: stat, unit: "short", runbooks: []string{"NodeCordonedLong"}, steps: []step{{1, warn, "each is capacity that is missing"}},
				queries: []query{{`sum(pitcrew_nodes_quarantined{@c})`, "nodes"}}, empty: needsRemediator},
			{title: "GPUs asked for", about: "GPUs that pods without a node ask for.", kind: stat, unit: "short", runbooks: []string{"GPUPodPendingLong"}, steps: []step{{1, notes, "somebody waits"}},
				queries: []query{{`sum(namespace:pitcrew_gpus_pending:sum{@c}) or vector(0)`, "GPUs"}}, empty: needsState},
		}},
		{"Room", []panel{
			{title: "GPUs by use", about: "GPUs that the scheduler may give, that pods have, and that are free.", kind: timeseries, unit: "short",
				queries: []query{{`sum(node:pitcrew_gpus_allocatable:sum{@n})`, "allocatable"}, {`sum(node:pitcrew_gpus_requested:sum{@n})`, "requested"}, {`sum(node:pitcrew_gpus_free:sum{@n})`, "free"}}, empty: needsState},
			{title: "Nodes with most room", about: "Free GPUs of the twenty nodes with most.", kind: barGauge, unit: "short", max: 8, to: toNode,
				queries: []query{{`topk(20, node:pitcrew_gpus_free:sum{@n})`, "{{node}}"}}, empty: needsState},
			{title: "Cordoned nodes", about: "GPU nodes that are unschedulable for any reason. `pitcrew node list` lists those of Pitcrew.", kind: table, unit: "short", to: toNode, columns: []string{"node"}, value: "GPUs", runbooks: []string{"NodeCordonedLong"},
				queries: []query{{`topk(50, (max by (cluster, node) (kube_node_spec_unschedulable{@n}) == 1) * on (cluster, node) group_right () node:pitcrew_gpus_allocatable:sum{@n})`, ""}}, empty: "no node is cordoned"},
			{title: "What incidents wait for", about: "Incidents that wait, by reason.", kind: timeseries, unit: "short", stacked: true, runbooks: []string{"PitcrewIncidentWaitsLong"},
				queries: []query{{`sum by (reason) (pitcrew_incidents_waiting{@c})`, "{{reason}}"}}, empty: "nothing waits"},
		}},
		{"Queues", []panel{
			{title: "GPUs asked for, by namespace", about: "GPUs that pods without a node ask for, of the ten namespaces with most.", kind: timeseries, unit: "short", stacked: true, to: toTeam, runbooks: []string{"GPUPodPendingLong"},
				queries: []query{{`topk(10, namespace:pitcrew_gpus_pending:sum{@c})`, "{{namespace}}"}}, empty: "nothing waits"},
			{title: "Kueue: workloads that wait", about: "Workloads in the queues: active ones wait for room, inadmissible ones cannot be admitted as they are.", kind: timeseries, unit: "short", runbooks: []string{"KueueBacklogHigh", "KueueInadmissibleWorkloads"},
				queries: []query{{`sum by (status) (kueue_pending_workloads{@c})`, "{{status}}"}}, empty: "needs Kueue"},
			{title: "Kueue: evictions", about: "Workloads evicted an hour, by reason.", kind: timeseries, unit: "short", runbooks: []string{"KueueEvictionsHigh"},
				queries: []query{{`3600 * sum by (reason) (rate(kueue_evicted_workloads_total{@c}[$__rate_interval]))`, "{{reason}}"}}, empty: "needs Kueue"},
			{title: "Replacements that were steered", about: "Pods an hour about which the API server asked the placement webhook, by result.", kind: timeseries, unit: "short",
				queries: []query{{`3600 * sum by (result) (rate(pitcrew_steered_pods_total{@c}[$__rate_interval]))`, "{{result}}"}}, empty: "the admission policy steers: Kubernetes 1.36 and later"},
		}},
	},
}
