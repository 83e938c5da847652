package build

const needsPods = "needs pod labels on DCGM's metrics"

var utilizationBoard = board{
	uid: "pitcrew-utilization", title: "Utilization by team and job", from: "now-7d", vars: []variable{varCluster, varNamespace},
	about: "Who holds GPUs, who uses them, and who holds them idle. A team is a namespace.",
	rows: []row{
		{"Teams", []panel{
			{title: "GPUs held", about: "GPUs that the namespace's pods hold, of the ten namespaces with most.", kind: timeseries, unit: "short", stacked: true, to: toTeam,
				queries: []query{{`topk(10, namespace:pitcrew_gpus_held:count{@s})`, "{{namespace}}"}}, empty: needsPods},
			{title: "Held and idle", about: "GPUs that were less than 10 % busy for 30 minutes while a pod held them, of the ten namespaces with most.", kind: timeseries, unit: "short", stacked: true, to: toTeam, runbooks: []string{"GPUAllocatedIdle"},
				queries: []query{{`topk(10, namespace:pitcrew_gpus_idle:sum{@s})`, "{{namespace}}"}}, empty: needsPods},
			{title: "Utilization", about: "Mean utilization of held GPUs, of the ten namespaces with least.", kind: timeseries, unit: "percentunit", max: 1, to: toTeam,
				queries: []query{{`bottomk(10, namespace:pitcrew_gpu_utilization:avg{@s})`, "{{namespace}}"}}, empty: needsPods},
			{title: "Tensor cores active", about: "Share of time in which the tensor cores of held GPUs worked, of the ten namespaces with least. High utilization with idle tensor cores is rarely useful training.", kind: timeseries, unit: "percentunit", max: 1, to: toTeam, runbooks: []string{"TensorCoresUnused"},
				queries: []query{{`bottomk(10, namespace:pitcrew_gpu_tensor_active:avg{@s})`, "{{namespace}}"}}, empty: "needs profiling fields"},
			{title: "GPUs held now", about: "GPUs that the namespace's pods hold now, of twenty namespaces.", kind: barGauge, unit: "short", to: toTeam,
				queries: []query{{`topk(20, namespace:pitcrew_gpus_held:count{@s})`, "{{namespace}}"}}, empty: needsPods},
			{title: "Idle share now", about: "Share of the held GPUs that are idle, of twenty namespaces.", kind: barGauge, unit: "percentunit", max: 1, whole: true, to: toTeam, steps: []step{{0.1, warn, "one GPU in ten"}, {0.5, bad, "every second GPU"}}, runbooks: []string{"GPUAllocatedIdle"},
				queries: []query{{`topk(20, namespace:pitcrew_gpus_idle:sum{@s} / namespace:pitcrew_gpus_held:count{@s})`, "{{namespace}}"}}, empty: needsPods},
		}},
		{"Jobs and pods", []panel{
			{title: "Pods that hold idle GPUs", about: "The twenty pods with most GPUs that were less than 10 % busy for 30 minutes.", kind: table, unit: "short", columns: []string{"namespace", "pod"}, value: "idle GPUs", runbooks: []string{"GPUAllocatedIdle"}, to: toTeam,
				queries: []query{{`topk(20, max by (namespace, pod) (pod:pitcrew_gpus_idle:sum{@s}) > 0)`, ""}}, empty: "no pod holds an idle GPU"},
			{title: "Jobs with least use", about: "Mean utilization of the twenty jobs with least, of the GPUs that they have for themselves.", kind: table, unit: "percentunit", whole: true, columns: []string{"namespace", "job_name"}, value: "utilization", to: toJob, base: bad,
				steps:   []step{{0.3, warn, "mostly waiting below it"}, {0.6, good, "usual for training"}},
				queries: []query{{`bottomk(20, max by (namespace, job_name) (job:pitcrew_gpu_utilization:avg{@s}))`, ""}}, empty: "needs Pitcrew's agent"},
			{title: "GPUs by job", about: "GPUs that the ten largest jobs have for themselves.", kind: timeseries, unit: "short", stacked: true, to: toJob,
				queries: []query{{`topk(10, job:pitcrew_gpus_held:sum{@s})`, "{{namespace}} {{job_name}}"}}, empty: "needs Pitcrew's agent"},
			{title: "Utilization by job", about: "Mean utilization of the ten jobs with least.", kind: timeseries, unit: "percentunit", max: 1, to: toJob,
				queries: []query{{`bottomk(10, job:pitcrew_gpu_utilization:avg{@s})`, "{{namespace}} {{job_name}}"}}, empty: "needs Pitcrew's agent"},
		}},
		{"Fleet", []panel{
			{title: "Held, idle and free", about: "GPUs that report, that a pod holds, and that a pod holds without using them.", kind: timeseries, unit: "short",
				queries: []query{{`sum(cluster:pitcrew_gpus:count{@c})`, "report"}, {`sum(cluster:pitcrew_gpus_held:count{@c})`, "held"}, {`sum(namespace:pitcrew_gpus_idle:sum{@c})`, "held and idle"}}, empty: needsPods},
			{title: "Power", about: "Power of all GPUs.", kind: timeseries, unit: "watt", queries: []query{{`sum(cluster:pitcrew_gpu_power_watts:sum{@c})`, "GPUs"}}},
		}},
	},
}
