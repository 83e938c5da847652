package build

const needsFabric = "needs the fabric receiver"

var fabricBoard = board{
	uid: "pitcrew-fabric", title: "Fabric", from: "now-6h", vars: []variable{varCluster, varNode},
	about: "InfiniBand, RoCE, NVLink and NVSwitch: what is down, what flaps, what is congested.",
	rows: []row{
		{"Now", []panel{
			{title: "Ports down", about: "Ports that are not ACTIVE.", kind: stat, unit: "short", w: 6, runbooks: []string{"FabricPortDown"}, steps: []step{{1, bad, "a rail is missing: collectives slow down or hang"}},
				queries: []query{{`sum(node:pitcrew_fabric_ports_down:sum{@n})`, "ports"}}, empty: needsFabric},
			{title: "Link downs in an hour", about: "How often ports went down.", kind: stat, unit: "short", w: 6, runbooks: []string{"FabricLinkFlapping"}, steps: []step{{1, warn, "a cable or a transceiver"}, {3, bad, "it flaps"}}, whole: true,
				queries: []query{{`sum(node:pitcrew_fabric_link_downs:increase1h{@n})`, "times"}}, empty: needsFabric},
			{title: "NVLinks down", about: "Links of GPUs and switches that are down.", kind: stat, unit: "short", w: 6, runbooks: []string{"GPUNVLinkDown"}, steps: []step{{1, bad, "collectives take another way, or hang"}},
				queries: []query{{`sum(node:pitcrew_nvlinks_down:sum{@n})`, "links"}}, empty: "needs Pitcrew's agent"},
			{title: "Port errors in an hour", about: "Errors of all kinds that ports counted.", kind: stat, unit: "short", w: 6, steps: []step{{120, warn, "symbol errors of one bad link reach it"}}, whole: true,
				queries: []query{{`sum(node:pitcrew_fabric_errors:increase1h{@n})`, "errors"}}, empty: needsFabric},
		}},
		{"Ports", []panel{
			{title: "Ports of the chosen nodes", about: "Up or down, for forty ports.", kind: stateTimeline, unit: "short", w: 24, h: 9, names: []naming{{"0", "down", bad}, {"1", "up", good}},
				queries: []query{{`bottomk(40, max by (k8s_node_name, hw_name) (hw_network_up_ratio{@k}))`, "{{k8s_node_name}} {{hw_name}}"}}, empty: needsFabric},
			{title: "Traffic", about: "Bytes a second over all ports, by direction.", kind: timeseries, unit: "Bps",
				queries: []query{{`sum by (network_io_direction) (node:pitcrew_fabric_bytes:rate5m{@n})`, "{{network_io_direction}}"}}, empty: needsFabric},
			{title: "Nodes with most traffic", about: "Bytes a second sent, of the ten nodes with most. One node of a job below the others is its slow rail.", kind: timeseries, unit: "Bps", to: toNode,
				queries: []query{{`topk(10, node:pitcrew_fabric_bytes:rate5m{@n,network_io_direction="transmit"})`, "{{node}}"}}, empty: needsFabric},
			{title: "Errors by counter", whole: true, about: "Errors in an hour, by the port's own counter.", kind: timeseries, unit: "short", runbooks: []string{"FabricSymbolErrors"},
				queries: []query{{`sum by (error_type) (node:pitcrew_fabric_errors:increase1h{@n})`, "{{error_type}}"}}, empty: needsFabric},
			{title: "Nodes with most errors", whole: true, about: "Errors in an hour, of the ten nodes with most.", kind: timeseries, unit: "short", to: toNode,
				queries: []query{{`topk(10, sum by (node) (node:pitcrew_fabric_errors:increase1h{@n}))`, "{{node}}"}}, empty: needsFabric},
			{title: "Congestion", about: "Signs of congestion a second: PFC waits, CNPs, ECN marks.", kind: timeseries, unit: "cps",
				queries: []query{{`sum by (pitcrew_fabric_signal) (node:pitcrew_fabric_congestion:rate5m{@n})`, "{{pitcrew_fabric_signal}}"}}, empty: needsFabric},
			{title: "Links that flap", whole: true, about: "How often ports went down in an hour, of the ten nodes with most.", kind: timeseries, unit: "short", to: toNode, runbooks: []string{"FabricLinkFlapping"},
				queries: []query{{`topk(10, node:pitcrew_fabric_link_downs:increase1h{@n})`, "{{node}}"}}, empty: needsFabric},
		}},
		{"NVLink and NVSwitch", []panel{
			{title: "NVLink errors", whole: true, about: "CRC, replay and recovery errors in an hour, of the ten nodes with most.", kind: timeseries, unit: "short", to: toNode, runbooks: []string{"GPUNVLinkReplays"},
				queries: []query{{`topk(10, node:pitcrew_nvlink_errors:increase1h{@n})`, "{{node}}"}}, empty: "needs DCGM's NVLink fields"},
			{title: "Temperature of the switches", about: "The hottest NVSwitch of each chosen node, of the ten hottest.", kind: timeseries, unit: "celsius",
				queries: []query{{`topk(10, max by (k8s_node_name) (pitcrew_nvswitch_temperature_celsius{@k}))`, "{{k8s_node_name}}"}}, empty: "no NVSwitch, or no agent"},
			{title: "NVSwitches", about: "Whether the host engine lists the switch.", kind: stateTimeline, unit: "short", names: []naming{{"0", "gone", bad}, {"1", "there", good}}, runbooks: []string{"NVSwitchLost"},
				queries: []query{{`bottomk(40, min by (k8s_node_name, hw_id) (pitcrew_nvswitch_status_ratio{@k}))`, "{{k8s_node_name}} {{hw_id}}"}}, empty: "no NVSwitch, or no agent"},
			{title: "Fabric health of the GPUs", about: "Registration with the fabric, the worst GPU of each chosen node.", kind: stateTimeline, unit: "short", names: []naming{{"1", "healthy", good}, {"2", "unhealthy", bad}, {"3", "limited", warn}}, runbooks: []string{"GPUFabricUnhealthy"},
				queries: []query{{`topk(40, max by (k8s_node_name) (pitcrew_gpu_fabric_health_ratio{@k}))`, "{{k8s_node_name}}"}}, empty: "no fabric manager"},
		}},
	},
}
