package agentbench

import (
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// scraped is one scrape as Prometheus keeps it: what the endpoint says, with the target's own labels where they are not taken.
type scraped struct {
	at     time.Time
	series []sampled
}

type sampled struct {
	labels labels.Labels
	value  float64
}

// target is what a scrape of the agent's pod adds, with honor_labels as docs/dcgm.md asks for.
var target = labels.FromStrings("job", "pitcrew-agent", "instance", "10.0.0.7:9400", "namespace", "pitcrew-system", "pod", "pitcrew-agent-x7k", "container", "agent")

// parse reads the text as Prometheus' own parser does.
func parse(t *testing.T, text string) scraped {
	t.Helper()
	p := textparse.NewPromParser([]byte(text), labels.NewSymbolTable(), false)
	s := scraped{at: time.Now()}
	for {
		e, err := p.Next()
		if errors.Is(err, io.EOF) {
			return s
		}
		if err != nil {
			t.Fatalf("the endpoint's text: %v", err)
		}
		if e != textparse.EntrySeries {
			continue
		}
		_, _, v := p.Series()
		var ls labels.Labels
		p.Labels(&ls)
		s.series = append(s.series, sampled{ls, v})
	}
}

// Querier implements storage.Queryable.
func (s scraped) Querier(int64, int64) (storage.Querier, error) { return querier{s}, nil }

type querier struct{ scraped }

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, ms ...*labels.Matcher) storage.SeriesSet {
	var out []storage.Series
	for _, s := range q.series {
		b := labels.NewBuilder(s.labels)
		target.Range(func(l labels.Label) {
			if s.labels.Get(l.Name) == "" {
				b.Set(l.Name, l.Value)
			}
		})
		ls := b.Labels()
		if !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(ls.Get(m.Name)) }) {
			out = append(out, promql.NewStorageSeries(promql.Series{Metric: ls, Floats: []promql.FPoint{{T: q.at.UnixMilli(), F: s.value}}}))
		}
	}
	slices.SortFunc(out, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &set{out, -1}
}

// set is a storage.SeriesSet of a list.
type set struct {
	all []storage.Series
	at  int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *set) At() storage.Series                { return s.all[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

// ask runs a query as Prometheus does. Series that cannot be told apart are an error here.
func (s scraped) ask(t *testing.T, query string) promql.Vector {
	t.Helper()
	e := promql.NewEngine(promql.EngineOpts{MaxSamples: 1 << 20, Timeout: time.Minute})
	defer e.Close()
	q, err := e.NewInstantQuery(t.Context(), s, nil, query, s.at)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer q.Close()
	r := q.Exec(t.Context())
	if r.Err != nil {
		t.Fatalf("%s: %v", query, r.Err)
	}
	v, err := r.Vector()
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return append(promql.Vector{}, v...)
}

// boards are queries of the dashboards made for dcgm-exporter, NVIDIA's own (Grafana 12239) first, and how many series each answers on
// a node whose eight GPUs are held as the test below has it: ten holders of seven GPUs, and one GPU that is free.
var boards = []struct {
	query string
	want  int
}{
	{`DCGM_FI_DEV_GPU_TEMP{instance=~"10.0.0.7:9400", gpu=~"0|1"}`, 2},
	{`avg(DCGM_FI_DEV_GPU_TEMP{instance=~".+", gpu=~".*"})`, 1},
	{`DCGM_FI_DEV_POWER_USAGE{instance=~".+", gpu=~".*"}`, 11},
	{`sum(DCGM_FI_DEV_POWER_USAGE{instance=~".+", gpu=~".*"})`, 1},
	{`DCGM_FI_DEV_SM_CLOCK{instance=~".+", gpu=~".*"} * 1000000`, 11},
	{`DCGM_FI_DEV_GPU_UTIL{instance=~".+", gpu=~".*"}`, 11},
	{`DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~".+", gpu=~".*"}`, 11},
	{`DCGM_FI_DEV_FB_USED{instance=~".+", gpu=~".*"}`, 11},
	{`DCGM_FI_DEV_MEM_COPY_UTIL`, 11},
	{`DCGM_FI_DEV_MEM_CLOCK`, 11},
	{`DCGM_FI_DEV_MEMORY_TEMP`, 11},
	{`DCGM_FI_DEV_XID_ERRORS`, 11},
	{`DCGM_FI_DEV_XID_ERRORS == 79`, 1},
	{`DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL`, 11},
	{`DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION`, 11},
	{`DCGM_FI_DEV_PCIE_REPLAY_COUNTER`, 11},
	{`DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS`, 11},
	{`DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS`, 11},
	{`DCGM_FI_DEV_ROW_REMAP_FAILURE`, 11},
	{`DCGM_FI_PROF_GR_ENGINE_ACTIVE`, 11},
	{`DCGM_FI_PROF_DRAM_ACTIVE`, 11},
	{`DCGM_FI_PROF_PCIE_TX_BYTES`, 11},
	{`DCGM_FI_PROF_PCIE_RX_BYTES`, 11},
	{`DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)`, 11}, // fails on duplicates
	{`count by (Hostname) (count by (Hostname, gpu) (DCGM_FI_DEV_GPU_TEMP))`, 1},
	{`avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL{namespace="train"})`, 1},
	{`DCGM_FI_DEV_GPU_UTIL{namespace="infer"}`, 2},
	{`max by (modelName) (DCGM_FI_DEV_GPU_TEMP{modelName=~"NVIDIA H100.*"})`, 1},
	{`{__name__=~"DCGM_FI_.*", exported_pod!=""}`, 0},
	{`{__name__=~"DCGM_FI_.*", otel_scope_name!=""}`, 0},
}

func TestTheQueriesOfDcgmExportersDashboardsAnswerFromTheAgentsEndpoint(t *testing.T) {
	n := startNode(t, "PITCREW_DCGM_EXTRA_FIELDS=[204, 251, 1001, 1004, 1005, 1009, 1010]", "PITCREW_DCGM_MAX_INTERVAL=1s")
	uuid := func(i int) string { return n.gpus.GPUs()[i].UUID }
	n.kubelet.give("train", "llm-0", "torch", uuid(0), uuid(1))
	n.kubelet.give("infer", "a", "server", uuid(2)+"::0")
	n.kubelet.give("infer", "b", "server", uuid(2)+"::1")
	n.kubelet.give("mig", "old", "main", "MIG-"+uuid(3)+"/5/0")
	n.kubelet.give("mig", "gke", "main", "nvidia4/gi3")
	n.kubelet.give("mig", "gke-shared", "main", "nvidia4/gi4/vgpu1", "nvidia4/gi4/vgpu0")
	n.kubelet.give("mig", "opaque", "main", "MIG-0d1e2f3a-0000-1111-2222-333344445555") // nobody but the driver knows whose
	n.kubelet.claim("dra", "whole", "main", "gpu-5")
	n.kubelet.claim("dra", "part", "main", "gpu-6-mig-1g10gb-14-0")
	n.kubelet.claim("dra", "part-2", "main", "gpu-6-mig-1g10gb-14-1")
	if err := n.gpus.XID(7, 79); err != nil { // the free one
		t.Fatal(err)
	}
	var s scraped
	n.eventually("every holder and the XID on the endpoint", func() bool {
		s = parse(t, n.scrape())
		return len(s.ask(t, `DCGM_FI_DEV_GPU_TEMP{namespace!="pitcrew-system"}`)) == 10 && len(s.ask(t, `DCGM_FI_DEV_XID_ERRORS == 79`)) == 1 &&
			len(s.ask(t, `DCGM_FI_PROF_PCIE_RX_BYTES{namespace!="pitcrew-system"}`)) == 10 && len(s.ask(t, `DCGM_FI_DEV_FB_FREE{namespace!="pitcrew-system"}`)) == 10
	})
	for _, b := range boards {
		if got := s.ask(t, b.query); len(got) != b.want {
			t.Errorf("%s answers %d series, want %d: %v", b.query, len(got), b.want, got)
		}
	}
	the := func(query string) labels.Labels {
		v := s.ask(t, query)
		if len(v) != 1 {
			t.Fatalf("%s answers %v", query, v)
		}
		return v[0].Metric
	}
	for query, want := range map[string][2]string{
		`DCGM_FI_DEV_GPU_UTIL{gpu="1"}`:            {"train", "llm-0"},
		`DCGM_FI_DEV_GPU_UTIL{gpu="2", pod="a"}`:   {"infer", "a"},
		`DCGM_FI_DEV_GPU_UTIL{gpu="2", pod="b"}`:   {"infer", "b"},
		`DCGM_FI_DEV_GPU_UTIL{gpu="3"}`:            {"mig", "old"},
		`DCGM_FI_DEV_GPU_UTIL{pod="gke-shared"}`:   {"mig", "gke-shared"},
		`DCGM_FI_DEV_GPU_UTIL{gpu="5"}`:            {"dra", "whole"},
		`DCGM_FI_DEV_GPU_UTIL{gpu="6",pod="part"}`: {"dra", "part"},
		`DCGM_FI_DEV_GPU_UTIL{gpu="7"}`:            {"pitcrew-system", "pitcrew-agent-x7k"}, // held by nobody: the target's own
	} {
		if ls := the(query); ls.Get("namespace") != want[0] || ls.Get("pod") != want[1] {
			t.Errorf("%s is %s", query, ls)
		}
	}
	all := labels.FromStrings("__name__", "DCGM_FI_DEV_GPU_UTIL", "gpu", "1", "UUID", uuid(1), "device", "nvidia1", "modelName", "NVIDIA H100 80GB HBM3",
		"Hostname", "node-a", "pci_bus_id", n.gpus.GPUs()[1].PCI, "namespace", "train", "pod", "llm-0", "container", "torch")
	for _, x := range s.series {
		if x.labels.Get("__name__") == "DCGM_FI_DEV_GPU_UTIL" && x.labels.Get("gpu") == "1" && !labels.Equal(x.labels, all) {
			t.Errorf("the endpoint says %s, want %s", x.labels, all)
		}
	}
	taken := regexp.MustCompile(`^(exported_.*|job|instance)$`)
	seen := map[string]bool{}
	for _, x := range s.series {
		x.labels.Range(func(l labels.Label) {
			if taken.MatchString(l.Name) {
				t.Errorf("%s has the label %s, which is the scraper's", x.labels, l.Name)
			}
		})
		if n := x.labels.Len(); n > 20 { // Prometheus refuses a sample of more than 30 by a common limit, and the scrape adds its own
			t.Errorf("%s has %d labels", x.labels, n)
		}
		if k := x.labels.String(); seen[k] {
			t.Errorf("%s is there twice", k)
		} else {
			seen[k] = true
		}
	}
}

func TestTheOpenTelemetrySpellingNamesThePodAndTheNode(t *testing.T) {
	n := startNode(t, "PITCREW_DCGM_MAX_INTERVAL=1s")
	n.kubelet.give("train", "llm-0", "torch", n.gpus.GPUs()[0].UUID)
	query := `hw_power_watts{hw_id="` + n.gpus.GPUs()[0].UUID + `", k8s_namespace_name="train", k8s_pod_name="llm-0", k8s_container_name="torch", k8s_node_name="node-a"}`
	n.eventually(query, func() bool { return len(parse(t, n.scrape()).ask(t, query)) == 1 })
	if left := parse(t, n.scrape()).ask(t, `hw_power_watts{k8s_pod_name=""}`); len(left) != gpus-1 {
		t.Errorf("%d series are without a pod, want %d", len(left), gpus-1)
	}
	if !strings.Contains(n.scrape(), "pitcrew_dcgm_stale_seconds") {
		t.Error("the endpoint does not say how old DCGM's answers are")
	}
}
