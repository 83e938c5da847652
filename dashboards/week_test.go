package dashboards

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/pitcrew/pitcrew/rules/catalog"
	"github.com/pitcrew/pitcrew/rules/metrics"
	"github.com/pitcrew/pitcrew/rules/ruletest"
)

// A synthetic week: two nodes of four GPUs that train and serve, one spare, scraped every two minutes. In its last five hours GPU 2 of n2 shows
// an Xid, is throttled and slows rank 6, and an incident recovers.
const (
	scrape  = 2 * time.Minute
	samples = int(7 * 24 * time.Hour / scrape)
)

var (
	begin   = time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)
	end     = begin.Add(time.Duration(samples-1) * scrape)
	trouble = samples - 150 // five hours before the end
)

// synthetic is a metric of the week: value of its n-th series at the i-th scrape. NaN is no sample.
type synthetic struct {
	name   string
	labels []labels.Labels
	value  func(n, i int) float64
}

func wave(mid, swing float64) func(n, i int) float64 {
	return func(n, i int) float64 { return mid + swing*math.Sin(float64(i)/90+float64(n)) }
}

func flat(v float64) func(n, i int) float64 { return func(int, int) float64 { return v } }

// counter grows by perScrape.
func counter(perScrape float64) func(n, i int) float64 {
	return func(n, i int) float64 { return math.Floor(perScrape * float64(i) * (1 + float64(n)/10)) }
}

// after is absent, or 0 of a gauge, until the trouble.
func after(before float64, then func(n, i int) float64) func(n, i int) float64 {
	return func(n, i int) float64 {
		if i < trouble {
			return before
		}
		return then(n, i)
	}
}

var absent = math.NaN()

// each joins labels: every base with every addition.
func each(base []labels.Labels, name string, values ...string) (out []labels.Labels) {
	for _, b := range base {
		for _, v := range values {
			out = append(out, labels.NewBuilder(b).Set(name, v).Labels())
		}
	}
	return out
}

// week makes the series of every metric that boards and recordings read.
func week() []synthetic {
	one := []labels.Labels{labels.FromStrings("cluster", "c1")}
	var nodes, dcgm, otel, holders, ranks, ports, switches, instances []labels.Labels
	for n := 1; n <= 3; n++ {
		node := fmt.Sprintf("n%d", n)
		nodes = append(nodes, labels.FromStrings("cluster", "c1", "k8s_node_name", node))
		instances = append(instances, labels.FromStrings("cluster", "c1", "instance", node+":8888", "node", node))
		switches = append(switches, labels.FromStrings("cluster", "c1", "k8s_node_name", node, "hw_id", "nvswitch-"+node))
		for p := range 2 {
			ports = append(ports, labels.FromStrings("cluster", "c1", "k8s_node_name", node, "hw_id", fmt.Sprintf("mlx5_%d/1", p), "hw_name", fmt.Sprintf("mlx5_%d/1", p), "pitcrew_fabric_layer", "InfiniBand"))
		}
		for g := range 4 {
			uuid := fmt.Sprintf("GPU-%s-%d", node, g)
			d := labels.NewBuilder(labels.FromStrings("cluster", "c1", "Hostname", node, "gpu", fmt.Sprint(g), "UUID", uuid, "modelName", "NVIDIA H100 80GB HBM3"))
			o := labels.NewBuilder(labels.FromStrings("cluster", "c1", "k8s_node_name", node, "hw_id", uuid))
			ns, pod, job := "train", "llm-"+fmt.Sprint(n-1), "llm"
			switch {
			case n == 2 && g == 3:
				ns, pod, job = "serve", "chat-7d9f-x2x", "chat"
			case n == 3:
				ns = ""
			}
			if ns != "" {
				d.Set("namespace", ns).Set("pod", pod).Set("container", "main")
				o.Set("k8s_namespace_name", ns).Set("k8s_pod_name", pod).Set("k8s_container_name", "main").Set("pitcrew_job_name", job)
				if g == 0 || ns == "serve" {
					holders = append(holders, labels.FromStrings("cluster", "c1", "k8s_node_name", node, "k8s_namespace_name", ns, "k8s_pod_name", pod, "k8s_container_name", "main", "pitcrew_job_name", job))
				}
			}
			if ns == "train" {
				ranks = append(ranks, labels.FromStrings("cluster", "c1", "k8s_node_name", node, "hw_id", uuid, "pitcrew_job_uid", "job-uid", "k8s_pod_uid", "pod-uid-"+node, "pitcrew_rank", fmt.Sprint((n-1)*4+g), "pitcrew_attempt", "0"))
			}
			dcgm, otel = append(dcgm, d.Labels()), append(otel, o.Labels())
		}
	}
	slow := func(v float64) func(n, i int) float64 { // the seventh rank, on GPU 2 of n2
		return func(n, i int) float64 {
			if n == 6 && i >= trouble && i < trouble+300 {
				v := v * 1.4
				return v + 0.01*math.Sin(float64(i))
			}
			return v + 0.02*v*math.Sin(float64(i)/7+float64(n))
		}
	}
	kube := func(pairs ...string) []labels.Labels {
		return []labels.Labels{labels.NewBuilder(labels.FromStrings(pairs...)).Set("cluster", "c1").Labels()}
	}
	gpuRes := "nvidia_com_gpu"
	kubeNodes := each(one, "node", "n1", "n2", "n3")
	pods := slices.Concat(kube("namespace", "train", "pod", "llm-0", "container", "main", "node", "n1", "resource", gpuRes), kube("namespace", "train", "pod", "llm-1", "container", "main", "node", "n2", "resource", gpuRes),
		kube("namespace", "serve", "pod", "chat-7d9f-x2x", "container", "main", "node", "n2", "resource", gpuRes), kube("namespace", "train", "pod", "next-0", "container", "main", "resource", gpuRes))
	phases := slices.Concat(kube("namespace", "train", "pod", "llm-0", "phase", "Running"), kube("namespace", "train", "pod", "llm-1", "phase", "Running"), kube("namespace", "serve", "pod", "chat-7d9f-x2x", "phase", "Running"), kube("namespace", "train", "pod", "next-0", "phase", "Pending"))
	llm := each(one, "namespace", "serve")
	llm = each(each(llm, "model_name", "chat-70b"), "pod", "chat-7d9f-x2x")
	resnet := each(each(each(one, "namespace", "serve"), "model", "rank-v2"), "pod", "triton-0")
	buckets := func(base []labels.Labels, bounds ...string) []labels.Labels {
		return each(base, "le", append(bounds, "+Inf")...)
	}
	cumulative := func(perScrape float64) func(n, i int) float64 {
		return func(n, i int) float64 { return math.Floor(perScrape * float64(i) * float64(n+1) / 4) }
	}
	policy := each(one, "policy", "gpu-hardware")
	states := each(one, "state", "detected", "correlated", "planned", "approved", "cordoned", "checkpointed", "placed", "restarted", "resumed", "verified")
	util := func(n, i int) float64 {
		if n == 7 || n > 7 { // the server is nearly idle, the spare is
			return math.Max(0, 4+3*math.Sin(float64(i)/90))
		}
		return 92 + 5*math.Sin(float64(i)/90+float64(n))
	}
	event := func(n, i int) float64 {
		if i < trouble {
			return absent
		}
		return 1 + float64((i-trouble)/200)
	}
	all := []synthetic{
		{"DCGM_FI_DEV_GPU_TEMP", dcgm, wave(62, 9)}, {"DCGM_FI_DEV_MEMORY_TEMP", dcgm, wave(74, 8)}, {"DCGM_FI_DEV_GPU_UTIL", dcgm, util},
		{"DCGM_FI_DEV_POWER_USAGE", dcgm, wave(560, 90)}, {"DCGM_FI_DEV_ENFORCED_POWER_LIMIT", dcgm, flat(700)},
		{"DCGM_FI_DEV_SM_CLOCK", dcgm, func(n, i int) float64 {
			if n == 6 && i >= trouble && i < trouble+300 {
				return 1100
			}
			return 1900 + 40*math.Sin(float64(i)/30+float64(n))
		}},
		{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", dcgm, func(n, i int) float64 { return util(n, i) / 250 }},
		{"DCGM_FI_DEV_FB_USED", dcgm, wave(61000, 3000)}, {"DCGM_FI_DEV_FB_FREE", dcgm, wave(19000, -3000)}, {"DCGM_FI_DEV_PCIE_LINK_WIDTH", dcgm, flat(16)},
		{"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", dcgm, counter(0.01)}, {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", dcgm, flat(0)},
		{"DCGM_FI_DEV_ROW_REMAP_PENDING", dcgm, flat(0)}, {"DCGM_FI_DEV_ROW_REMAP_FAILURE", dcgm, flat(0)}, {"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", dcgm, wave(210000, 20000)},
		{"DCGM_FI_DEV_XID_ERRORS", dcgm, after(0, func(n, _ int) float64 { return map[bool]float64{true: 79}[n == 6] })},
		{"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", dcgm, counter(0.02)}, {"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", dcgm, counter(0.01)}, {"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", dcgm, flat(0)},
		{"pitcrew_gpu_expected", nodes, flat(4)}, {"pitcrew_gpu_count", nodes, func(n, i int) float64 { return 4 - map[bool]float64{true: 1}[n == 1 && i >= trouble && i < trouble+60] }},
		{"pitcrew_dcgm_stale_seconds", nodes, wave(0.6, 0.3)},
		{"pitcrew_gpu_status_ratio", otel, func(n, i int) float64 { return 1 - map[bool]float64{true: 1}[n == 6 && i >= trouble && i < trouble+60] }},
		{"pitcrew_gpu_health_ratio", each(otel, "pitcrew_gpu_health_system", "all", "memory", "thermal"), func(n, i int) float64 { return map[bool]float64{true: 1}[n/3 == 5 && i%700 < 60] }},
		{"pitcrew_gpu_throttle_ratio", each(otel, "pitcrew_throttle_reason", "sw_power_cap", "hw_thermal", "gpu_idle"), func(n, i int) float64 { return map[bool]float64{true: 1}[n == 19 && i >= trouble && i < trouble+300] }},
		{"pitcrew_gpu_violation_time_seconds_total", each(otel, "pitcrew_violation", "power", "thermal"), counter(1)},
		{"pitcrew_nvlink_links", each(otel, "pitcrew_nvlink_state", "up", "down"), func(n, i int) float64 { return map[bool]float64{true: 18, false: 0}[n%2 == 0] }},
		{"pitcrew_gpu_fabric_health_ratio", otel, flat(1)}, {"pitcrew_nvswitch_status_ratio", switches, flat(1)}, {"pitcrew_nvswitch_temperature_celsius", switches, wave(48, 4)},
		{"pitcrew_nvswitch_sxid_ratio", each(switches, "pitcrew_sxid_class", "fatal", "non_fatal"), func(n, _ int) float64 { return map[bool]float64{true: 20034}[n == 1] }},
		{"hw_network_up_ratio", ports, func(n, i int) float64 { return 1 - map[bool]float64{true: 1}[n == 3 && i%900 < 30] }}, {"hw_network_io_bytes_total", each(ports, "network_io_direction", "transmit", "receive"), counter(2e12)},
		{"pitcrew_fabric_errors_total", each(ports, "error_type", "symbol_error", "link_error_recovery", "receive"), counter(0.05)}, {"pitcrew_fabric_congestion_total", each(ports, "pitcrew_fabric_signal", "transmit_wait", "ecn_marked"), counter(4000)},
		{"pitcrew_fabric_link_downs_total", ports, counter(0.002)},
		{"pitcrew_container_gpu_count", holders, func(n, _ int) float64 { return []float64{4, 3, 1}[n] }}, {"pitcrew_container_gpu_utilization_ratio", holders, func(n, i int) float64 { return []float64{0.9, 0.88, 0.04}[n] + 0.02*math.Sin(float64(i)/60) }},
		{"pitcrew_train_step_duration_seconds", ranks, func(n, i int) float64 { return slow(1.3)(6, i) + 0.01*float64(n) }}, {"pitcrew_train_compute_duration_seconds", ranks, slow(1)},
		{"pitcrew_train_communication_wait_seconds", ranks, func(n, i int) float64 { return math.Max(0.05, slow(1.3)(6, i)-slow(1)(n, i)-0.1) }},
		{"pitcrew_train_phase_duration_seconds", each(ranks, "pitcrew_phase", "data_wait", "forward", "backward", "optimizer"), func(n, i int) float64 {
			return []float64{0.04, 0.3, 0.75, 0.08}[n%4] * (1 + 0.05*math.Sin(float64(i)/40))
		}},
		{"pitcrew_train_step_age_seconds", ranks, wave(0.7, 0.5)}, {"pitcrew_train_checkpoint_age_seconds", ranks, func(_, i int) float64 { return float64(i%15) * 120 }},
		{"pitcrew_train_step", ranks, func(_, i int) float64 { return float64(i * 90) }}, {"pitcrew_train_mfu_ratio", ranks, wave(0.41, 0.02)},
		{"pitcrew_train_throughput_per_second", each(ranks, "pitcrew_unit", "tokens"), wave(52000, 3000)}, {"pitcrew_train_info_ratio", each(ranks, "pitcrew_workload", "model=gpt-7b;seq=4096"), flat(1)},
		{"pitcrew_kernel_events", slices.Concat(each(each(instances[1:2], "kind", "xid"), "code", "79", "13"), each(each(instances[:1], "kind", "sxid"), "code", "20034")), event},
		{"pitcrew_kernel_lines_lost", instances, flat(0)}, {"pitcrew_kernel_lines_malformed", instances, flat(0)}, {"pitcrew_nats_dropped", instances, flat(0)}, {"pitcrew_detector_lost", instances, flat(0)},
		{"pitcrew_nats_waiting", instances, flat(0)}, {"pitcrew_detector_samples", instances, counter(90000)}, {"pitcrew_detector_findings", instances, counter(0.01)}, {"pitcrew_anomaly_coverage", instances, wave(0.85, 0.02)},
		{"pitcrew_anomaly_onsets", each(instances, "pitcrew_signal", "sm-clock", "gpu-temperature"), counter(0.004)}, {"pitcrew_anomaly_asked", each(instances, "pitcrew_signal", "sm-clock", "gpu-temperature"), func(_, i int) float64 { return float64(i) * 0.002 }},
		{"otelcol_process_memory_rss", instances, wave(1.6e8, 1e7)}, {"pitcrew_nats_ack_duration_bucket", buckets(instances[:1], "0.005", "0.01", "0.1"), cumulative(0.5)},
		{"pitcrew_incidents_open", one, after(0, func(_, i int) float64 { return map[bool]float64{true: 1}[i < trouble+10] })}, {"pitcrew_incident_children_open", one, flat(0)}, {"pitcrew_incidents_need_person", one, flat(0)},
		{"pitcrew_incidents_closed_total", each(one, "outcome", "recovered", "observed", "refused"), func(n, i int) float64 {
			if n == 1 {
				return math.Floor(float64(i) / 240)
			}
			return after(absent, func(_, i int) float64 { return 1 + float64((i-trouble)/300) })(n, i)
		}},
		{"pitcrew_incident_phase_seconds_count", states, func(n, i int) float64 { return math.Floor(float64(i) / float64(100+n*20)) }}, {"pitcrew_incident_phase_seconds_sum", states, func(n, i int) float64 { return math.Floor(float64(i)/float64(100+n*20)) * float64(1+n%4) / 2 }},
		{"pitcrew_job_recovery_seconds_bucket", buckets(one, "2", "4", "10"), cumulative(0.02)}, {"pitcrew_lost_steps_total", one, counter(0.02)},
		{"pitcrew_incidents_waiting", each(one, "reason", "no-node", "approval"), after(absent, func(_, i int) float64 { return 1 })}, {"pitcrew_incident_waiting_seconds", each(one, "reason", "no-node", "approval"), after(absent, func(n, i int) float64 { return float64((i-trouble)%40) * 120 })},
		{"pitcrew_breaker_open", policy, after(0, func(_, i int) float64 { return map[bool]float64{true: 1}[i < trouble+100] })}, {"pitcrew_breaker_limit_nodes", policy, flat(2)}, {"pitcrew_nodes_quarantined", policy, after(0, flat(1))},
		{"pitcrew_action_budget_used", policy, wave(2, 2)}, {"pitcrew_action_budget_limit", policy, flat(10)}, {"pitcrew_incidents_acting", policy, flat(0)},
		{"pitcrew_events_waiting", each(one, "where", "delivered", "stream"), wave(1, 1)}, {"pitcrew_events_oldest_seconds", one, wave(0.2, 0.1)}, {"pitcrew_events_dropped_total", each(one, "reason", "forged", "malformed"), counter(0.001)},
		{"pitcrew_events_noted_total", each(one, "reason", "stale", "known"), counter(0.05)}, {"pitcrew_notices_total", each(each(one, "receiver", "alertmanager"), "result", "sent", "retried"), counter(0.02)},
		{"pitcrew_nats_logins_total", each(one, "result", "allowed"), counter(0.1)}, {"pitcrew_steered_pods_total", each(one, "result", "stamped", "passed"), counter(0.05)},
		{"kube_node_status_allocatable", each(kubeNodes, "resource", gpuRes), flat(8)}, {"kube_node_spec_unschedulable", kubeNodes, func(n, i int) float64 { return map[bool]float64{true: 1}[n == 1 && i >= trouble] }},
		{"kube_pod_container_resource_requests", pods, func(n, _ int) float64 { return []float64{4, 3, 1, 8}[n] }}, {"kube_pod_status_phase", phases, flat(1)},
		{"kube_daemonset_status_desired_number_scheduled", each(one, "daemonset", "pitcrew-node"), flat(3)}, {"kube_daemonset_status_number_ready", each(one, "daemonset", "pitcrew-node"), flat(3)},
		{"kueue_pending_workloads", each(one, "status", "active", "inadmissible"), wave(3, 2)}, {"kueue_evicted_workloads_total", each(one, "reason", "Preempted"), counter(0.02)},
		{"vllm:e2e_request_latency_seconds_bucket", buckets(llm, "1", "2.5", "10"), cumulative(40)}, {"vllm:time_to_first_token_seconds_bucket", buckets(llm, "0.1", "0.25", "1"), cumulative(40)},
		{"vllm:generation_tokens_total", llm, counter(90000)}, {"vllm:num_requests_waiting", llm, wave(4, 3)}, {"nv_inference_request_duration_us", resnet, counter(3e7)}, {"nv_inference_request_success", resnet, counter(2000)},
		{"ALERTS", kube("alertname", "GPUMissing", "alertstate", "firing", "severity", "critical", "area", "gpu"), after(absent, flat(1))},
	}
	return all
}

// selected gives the metrics that an expression reads.
func selected(expr parser.Expr) (names []string) {
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			names = append(names, v.Name)
		}
		return nil
	})
	return names
}

// filled is the week with all recordings evaluated over it.
var filled = sync.OnceValues(func() (*ruletest.Store, error) {
	s := &ruletest.Store{}
	for _, m := range week() {
		for n, l := range m.labels {
			named := labels.NewBuilder(l).Set(labels.MetricName, m.name).Labels()
			for i := range samples {
				if v := m.value(n, i); !math.IsNaN(v) {
					s.Add(named, begin.Add(time.Duration(i)*scrape), v)
				}
			}
		}
	}
	todo, err := catalog.Recordings()
	if err != nil {
		return nil, err
	}
	for len(todo) > 0 {
		var later []catalog.Recording
		open := map[string]bool{}
		for _, r := range todo {
			open[r.Name] = true
		}
		for _, r := range todo {
			expr, err := ruletest.PromQL.ParseExpr(r.Expr)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Name, err)
			}
			if slices.ContainsFunc(selected(expr), func(name string) bool { return open[name] && name != r.Name }) {
				later = append(later, r)
				continue
			}
			step := max(scrape, time.Duration(r.Interval))
			m, err := s.Range(r.Expr, begin, end, step)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Name, err)
			}
			for _, x := range m {
				named := labels.NewBuilder(x.Metric).Set(labels.MetricName, r.Name).Labels()
				for _, p := range x.Floats {
					s.Add(named, time.UnixMilli(p.T), p.F)
				}
			}
			delete(open, r.Name)
		}
		if len(later) == len(todo) {
			return nil, fmt.Errorf("recordings that read each other in a circle: %d", len(later))
		}
		todo = later
	}
	return s, nil
})

func filledWeek(t *testing.T) *ruletest.Store {
	t.Helper()
	s, err := filled()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ofScrape are labels that Prometheus adds.
var ofScrape = []string{"cluster", "instance", "job", "node"}

// A board that works on invented labels works nowhere else.
func TestTheWeeksSeriesHaveTheLabelsThatComponentsEmit(t *testing.T) {
	may, err := metrics.Components("..")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, m := range week() {
		allowed, ours := may[m.name]
		if !ours {
			continue
		}
		checked++
		for _, l := range m.labels {
			l.Range(func(x labels.Label) {
				if !slices.Contains(allowed.Labels, x.Name) && !slices.Contains(ofScrape, x.Name) {
					t.Errorf("%s has no label %s: it has %v", m.name, x.Name, allowed.Labels)
				}
			})
		}
	}
	if checked < 50 {
		t.Errorf("only %d metrics of ours were checked", checked)
	}
}
