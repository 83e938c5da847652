package build

const needsHook = "needs the hook and a GPU that the pod has for itself"

var jobBoard = board{
	uid: "pitcrew-job", title: "Job", from: "now-6h", vars: []variable{varCluster, varNamespace, varJob},
	about: "One training job: is it stepping, how fast against its class, which rank is slow, and where each second went. Choose a job.",
	rows: []row{
		{"Now", []panel{
			{title: "Ranks", about: "Ranks that report.", kind: stat, unit: "short", queries: []query{{`sum(job:pitcrew_ranks:count{@j})`, "ranks"}}, empty: needsHook},
			{title: "Last step", about: "Last step that all ranks have finished.", kind: stat, unit: "locale", queries: []query{{`min(job:pitcrew_step:min{@j})`, "step"}}, empty: needsHook},
			{title: "Since the last step", about: "Time since any rank finished a step.", kind: stat, unit: "s", runbooks: []string{"TrainingStepStalled"},
				steps:   []step{{300, warn, "longer than most steps and checkpoints"}, {1800, bad, "the job makes no progress"}},
				queries: []query{{`max(job:pitcrew_step_age_seconds:min{@j})`, "age"}}, empty: needsHook},
			{title: "Step against its class", about: "Step time against the week's median of the jobs of the same class in the namespace. 1.2 is 20 % slower.", kind: stat, unit: "short", decimals: 2,
				steps:   []step{{1.1, warn, "10 % slower than usual"}, {1.3, bad, "30 % slower than usual"}},
				queries: []query{{`max(job:pitcrew_step_seconds:avg{@j} / on (cluster, namespace, job_name) job:pitcrew_class_step_seconds:p50_7d{@j})`, "against class"}}, empty: "its ranks report no workload"},
			{title: "Checkpoint age", about: "Age of the oldest last checkpoint of a rank: what a fault would cost.", kind: stat, unit: "s", runbooks: []string{"TrainingCheckpointOld"},
				steps:   []step{{3600, warn, "an hour of work is at risk"}, {14400, bad, "four hours of work are at risk"}},
				queries: []query{{`max(job:pitcrew_checkpoint_age_seconds:max{@j})`, "age"}}, empty: "no checkpoint yet"},
			{title: "MFU", about: "Model FLOPs utilization, mean of the ranks.", kind: stat, unit: "percentunit", decimals: 1, runbooks: []string{"TrainingMFULow"}, base: warn,
				steps:   []step{{0.1, quiet, "below it, the job barely computes"}, {0.3, good, "usual for large models"}},
				queries: []query{{`avg(job:pitcrew_mfu:avg{@j})`, "MFU"}}, empty: "needs flops_per_step"},
		}},
		{"Which rank is slow", []panel{
			{title: "Ranks against the job's median", about: "Compute time of the rank against the median of its job, of the forty slowest. A row that stays orange is a slow rank.", kind: statusHistory, unit: "percentunit", w: 16, h: 10, whole: true,
				steps: []step{{1.05, "yellow", "5 % slower than the median"}, {1.15, warn, "15 % slower: the whole job waits for it"}, {1.5, bad, "half as fast again"}}, to: toNode, runbooks: []string{"TrainingRankSlow"},
				queries: []query{{`topk(40, rank:pitcrew_compute:ratio{@j})`, "rank {{rank}} on {{node}}"}}, empty: needsHook},
			{title: "Slowest ranks", about: "The ten slowest ranks now, with the node to look at.", kind: table, unit: "percentunit", w: 8, h: 10, whole: true, to: toNode,
				columns: []string{"rank", "node", "namespace", "pod"}, value: "of median",
				steps:   []step{{1.15, warn, "15 % slower: the whole job waits for it"}},
				queries: []query{{`topk(10, max by (rank, node, namespace, pod) (rank:pitcrew_compute:ratio{@j}))`, ""}}, empty: needsHook},
			{title: "Spread of the ranks", about: "How many ranks have which step time. A second band is a slow node or switch.", kind: heatmap, unit: "s",
				queries: []query{{`rank:pitcrew_step_seconds:max{@j}`, "rank {{rank}}"}}, empty: needsHook},
			{title: "Ranks that stand still", about: "Time since the rank finished a step, of the ten that stand still longest.", kind: timeseries, unit: "s", runbooks: []string{"TrainingStepStalled"}, to: toNode,
				queries: []query{{`topk(10, rank:pitcrew_step_age_seconds:max{@j})`, "rank {{rank}} on {{node}}"}}, empty: needsHook},
		}},
		{"Speed", []panel{
			{title: "Step time against its class", about: "Mean step time of the ranks, and the week's median of the jobs of the same class in the namespace.", kind: timeseries, unit: "s",
				queries: []query{{`avg by (job_name) (job:pitcrew_step_seconds:avg{@j})`, "{{job_name}}"}, {`avg by (job_name) (job:pitcrew_class_step_seconds:p50_7d{@j})`, "class of {{job_name}}"}}, empty: needsHook},
			{title: "Where each second went", about: "A step's time by phase, mean of the ranks. Backward excludes the wait for other ranks. Other is what no probe measures.", kind: timeseries, unit: "s", stacked: true, runbooks: []string{"TrainingDataWaitHigh", "TrainingCommunicationHigh"},
				queries: []query{
					{`avg by (pitcrew_phase) (job:pitcrew_phase_seconds:avg{@j,pitcrew_phase!="backward"})`, "{{pitcrew_phase}}"},
					{`avg(job:pitcrew_phase_seconds:avg{@j,pitcrew_phase="backward"}) - (avg(job:pitcrew_communication_wait_seconds:avg{@j}) or vector(0))`, "backward"},
					{`avg(job:pitcrew_communication_wait_seconds:avg{@j})`, "wait for other ranks"},
					{`clamp_min(avg(job:pitcrew_step_seconds:avg{@j}) - sum(avg by (pitcrew_phase) (job:pitcrew_phase_seconds:avg{@j})), 0)`, "other"}}, empty: needsHook},
			{title: "Throughput", about: "Samples or tokens a second, of all ranks.", kind: timeseries, unit: "short",
				queries: []query{{`sum by (pitcrew_unit) (job:pitcrew_throughput:sum{@j})`, "{{pitcrew_unit}} a second"}}, empty: "needs samples= or tokens= in step()"},
			{title: "Utilization of its GPUs", about: "Mean utilization of the GPUs that the job's containers have for themselves.", kind: timeseries, unit: "percentunit", max: 1,
				queries: []query{{`topk(10, job:pitcrew_gpu_utilization:avg{@j})`, "{{job_name}}"}}, empty: "needs Pitcrew's agent"},
			{title: "Progress", about: "Last step that all ranks have finished. A fall is a restart from a checkpoint: its height is the work lost.", kind: timeseries, unit: "locale",
				queries: []query{{`min by (job_name) (job:pitcrew_step:min{@j})`, "{{job_name}}"}}, empty: needsHook},
			{title: "Checkpoint age", about: "Age of the oldest last checkpoint of a rank.", kind: timeseries, unit: "s",
				queries: []query{{`max by (job_name) (job:pitcrew_checkpoint_age_seconds:max{@j})`, "{{job_name}}"}}, empty: "no checkpoint yet"},
		}},
	},
}
