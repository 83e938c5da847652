package build

const needsKernel = "no event in the kernel log, or no agent with the label node"

var xidBoard = board{
	uid: "pitcrew-xid", title: "XID and SXid timeline", from: "now-7d", vars: []variable{varCluster, varNode},
	about: "What GPUs and switches wrote to the kernel log: when, where and how often. `pitcrew xid explain CODE` explains a code.",
	rows: []row{
		{"When", []panel{
			{title: "Events by code", about: "Events in an hour by kind and code, of the twenty codes with most.", kind: statusHistory, unit: "short", w: 24, h: 9, base: quiet,
				steps:   []step{{0.5, warn, "it happened in this hour"}, {10, bad, "it keeps happening"}},
				queries: []query{{`topk(20, sum by (kind, code) (node:pitcrew_kernel_events:increase1h{@n}))`, "{{kind}} {{code}}"}}, empty: needsKernel},
			{title: "Events by node", about: "Events in an hour, of the twenty nodes with most.", kind: statusHistory, unit: "short", w: 24, h: 9, base: quiet, to: toNode,
				steps:   []step{{0.5, warn, "it happened in this hour"}, {10, bad, "it keeps happening"}},
				queries: []query{{`topk(20, sum by (node) (node:pitcrew_kernel_events:increase1h{@n}))`, "{{node}}"}}, empty: needsKernel},
		}},
		{"Where", []panel{
			{title: "Events of the last hour", whole: true, about: "Node, kind and code of what happened in the last hour.", kind: table, unit: "short", to: toNode, columns: []string{"node", "kind", "code"}, value: "events",
				queries: []query{{`topk(50, sum by (node, kind, code) (node:pitcrew_kernel_events:increase1h{@n}) > 0)`, ""}}, empty: "nothing in the last hour"},
			{title: "Repeat offenders", about: "Hours of the last week in which a node had an event. A node with many hours is replaced sooner than repaired again.", kind: table, unit: "short", to: toNode, columns: []string{"node"}, value: "hours with an event",
				steps:   []step{{3, warn, "it came back"}},
				queries: []query{{`topk(20, node:pitcrew_kernel_event_hours:sum7d{@n} > 0)`, ""}}, empty: "no node had an event in the last week"},
			{title: "SXids of switches", about: "Events in an hour that NVSwitches reported, by code.", kind: timeseries, unit: "short", runbooks: []string{"NVSwitchLost"},
				queries: []query{{`topk(10, sum by (code) (node:pitcrew_kernel_events:increase1h{@n,kind="sxid"}))`, "SXid {{code}}"}}, empty: "no SXid"},
			{title: "Last code of DCGM", about: "DCGM's last Xid of each GPU of the chosen nodes. It never clears. With dcgm-exporter alone, this is all there is.", kind: table, unit: "none", columns: []string{"Hostname", "gpu", "UUID"}, value: "Xid", to: toHost,
				queries: []query{{`topk(50, max by (Hostname, gpu, UUID) (DCGM_FI_DEV_XID_ERRORS{@c,Hostname=~"$node"}) > 0)`, ""}}, empty: "no Xid since the driver was loaded"},
			{title: "Last code of the switches", about: "DCGM's last SXid of each NVSwitch, by class. It never clears.", kind: table, unit: "none", columns: []string{"k8s_node_name", "hw_id", "pitcrew_sxid_class"}, value: "SXid",
				queries: []query{{`topk(50, max by (k8s_node_name, hw_id, pitcrew_sxid_class) (pitcrew_nvswitch_sxid_ratio{@k}) > 0)`, ""}}, empty: "no SXid since the driver was loaded, or no NVSwitch"},
			{title: "Kernel lines that were not read", about: "Lines in an hour that were lost or could not be read. An Xid among them is missed.", kind: timeseries, unit: "short", runbooks: []string{"PitcrewKernelLinesLost", "PitcrewKernelLinesMalformed"}, steps: []step{{1, warn, "the timeline above has a gap"}},
				queries: []query{{`sum(cluster:pitcrew_kernel_lines_unread:increase1h{@c})`, "lines"}}, empty: "needs Pitcrew's agent"},
		}},
	},
}
