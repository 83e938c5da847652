package build

var tenantBoard = board{
	uid: "pitcrew-tenant", title: "Tenant", from: "now-24h", vars: []variable{varCluster, varTenant, varJob},
	about: "One namespace: its GPUs, its training jobs and its inference servers. It shows nothing of other namespaces.",
	rows: []row{
		{"GPUs", []panel{
			{title: "GPUs held", about: "GPUs that your pods hold.", kind: stat, unit: "short", w: 6, queries: []query{{`sum(namespace:pitcrew_gpus_held:count{@s})`, "held"}}, empty: needsPods},
			{title: "Utilization", about: "Mean utilization of the GPUs that your pods hold.", kind: stat, unit: "percentunit", w: 6, decimals: 1, base: bad, steps: []step{{0.3, warn, "mostly waiting below it"}, {0.6, good, "usual for training"}},
				queries: []query{{`avg(namespace:pitcrew_gpu_utilization:avg{@s})`, "utilization"}}, empty: needsPods},
			{title: "Held and idle", about: "GPUs that were less than 10 % busy for 30 minutes while your pods held them.", kind: stat, unit: "short", w: 6, runbooks: []string{"GPUAllocatedIdle"}, steps: []step{{1, warn, "others may wait for them"}},
				queries: []query{{`sum(namespace:pitcrew_gpus_idle:sum{@s})`, "idle"}}, empty: needsPods},
			{title: "GPUs asked for", about: "GPUs that your pods without a node ask for.", kind: stat, unit: "short", w: 6, runbooks: []string{"GPUPodPendingLong"}, steps: []step{{1, notes, "they wait for room"}},
				queries: []query{{`sum(namespace:pitcrew_gpus_pending:sum{@s}) or vector(0)`, "GPUs"}}, empty: needsState},
			{title: "Utilization by pod", about: "Utilization of each GPU of your pods, at most twenty.", kind: timeseries, unit: "percent", max: 100,
				queries: []query{{`topk(20, max by (namespace, pod, gpu) (DCGM_FI_DEV_GPU_UTIL{@s,pod!=""}))`, "{{namespace}} {{pod}} {{gpu}}"}}, empty: needsPods},
			{title: "Pods with idle GPUs", about: "Your pods with most GPUs that were less than 10 % busy for 30 minutes.", kind: table, unit: "short", columns: []string{"namespace", "pod"}, value: "idle GPUs",
				queries: []query{{`topk(20, max by (namespace, pod) (pod:pitcrew_gpus_idle:sum{@s}) > 0)`, ""}}, empty: "no pod holds an idle GPU"},
		}},
		{"Training", []panel{
			{title: "Step time", about: "Mean step time of the ranks, of ten jobs.", kind: timeseries, unit: "s", to: toJob, queries: []query{{`topk(10, job:pitcrew_step_seconds:avg{@j})`, "{{job_name}}"}}, empty: needsHook},
			{title: "Against its class", about: "Step time against the week's median of your jobs of the same class. 1.2 is 20 % slower.", kind: timeseries, unit: "short", to: toJob, steps: []step{{1.1, warn, "10 % slower than usual"}}, decimals: 2,
				queries: []query{{`topk(10, job:pitcrew_step_seconds:avg{@j} / on (cluster, namespace, job_name) job:pitcrew_class_step_seconds:p50_7d{@j})`, "{{job_name}}"}}, empty: "its ranks report no workload"},
			{title: "Since the last step", about: "Time since any rank finished a step, of ten jobs.", kind: timeseries, unit: "s", to: toJob, runbooks: []string{"TrainingStepStalled"}, steps: []step{{1800, bad, "the job makes no progress"}},
				queries: []query{{`topk(10, job:pitcrew_step_age_seconds:min{@j})`, "{{job_name}}"}}, empty: needsHook},
			{title: "Throughput", about: "Samples or tokens a second, of ten jobs.", kind: timeseries, unit: "short", to: toJob, queries: []query{{`topk(10, job:pitcrew_throughput:sum{@j})`, "{{job_name}} {{pitcrew_unit}}"}}, empty: "needs samples= or tokens= in step()"},
		}},
		{"Serving", []panel{
			{title: "Request latency", about: "95th percentile of vLLM's request latency, and the mean of Triton's, of ten models each.", kind: timeseries, unit: "s",
				queries: []query{{`topk(10, namespace:vllm_request_seconds:p95{@s})`, "{{model_name}} 95 %"}, {`topk(10, namespace:triton_request_seconds:avg{@s})`, "{{model}} mean"}}, empty: "no vLLM or Triton is scraped"},
			{title: "Time to the first token", about: "95th percentile of vLLM's time to the first token, of ten models.", kind: timeseries, unit: "s",
				queries: []query{{`topk(10, namespace:vllm_first_token_seconds:p95{@s})`, "{{model_name}}"}}, empty: "no vLLM is scraped"},
			{title: "Tokens and requests", about: "Tokens a second that vLLM generates, and requests a second that Triton answered, of ten models each.", kind: timeseries, unit: "short",
				queries: []query{{`topk(10, namespace:vllm_generation_tokens:rate5m{@s})`, "{{model_name}} tokens a second"}, {`topk(10, namespace:triton_requests:rate5m{@s})`, "{{model}} requests a second"}}, empty: "no vLLM or Triton is scraped"},
			{title: "Requests that wait", about: "Requests that wait for vLLM, of ten models. They rise before the latency does.", kind: timeseries, unit: "short",
				queries: []query{{`topk(10, namespace:vllm_requests_waiting:sum{@s})`, "{{model_name}}"}}, empty: "no vLLM is scraped"},
		}},
	},
}
