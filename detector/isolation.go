package detector

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

// Process is what was seen of a process that has a GPU open.
type Process struct {
	PID            int
	Start          int64 // tells it from a later one of the same number
	Name, Command  string
	GPU, PCI       string
	PodUID         string // empty: a process of the host
	Namespace, Pod string // where known
	Container      string
	Time           time.Time
	Ended          bool

	// Judged says that it is known who was given the GPU; Given that the process's pod was. Without the first nothing is concluded.
	Judged, Given bool
}

// hostPrograms are the programs of NVIDIA's and of ours that use a GPU outside of a pod, by their name as the kernel keeps it (15 bytes). A name
// proves little, and only for processes that are in no pod: who is root on the host needs no trick.
var hostPrograms = []string{
	"nvidia-persiste", "nv-hostengine", "nv-fabricmanage", "nvidia-smi", "nvidia-cuda-mps", "nvidia-powerd", "nvidia-imex", "nvidia-modprobe",
	"nvidia-sleep.sh", "nvidia-bug-repo", "nvsm*", "dcgmi", "dcgm-exporter", "dcgmproftester*", "pitcrew*", "Xorg",
}

// systemNamespaces are those whose pods look after GPUs and are given none.
var systemNamespaces = []string{"kube-system", "gpu-operator", "nvidia-*", "pitcrew-system"}

func matches(patterns []string, s string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { ok, err := path.Match(p, s); return ok && err == nil })
}

// foreign is the finding's name.
const foreign = "foreign-process"

// secondSightAfter is how far two sights of a process must lie apart: the kubelet's answer may be older than a pod that has just begun.
const secondSightAfter = 3 * time.Second

// secondSight reports whether the process was seen like this before.
func (e *Engine) secondSight(key string, at time.Time) bool {
	s, known := e.series.get(key)
	if !known {
		e.series.put(key, &gpuSeries{at: at})
		return false
	}
	return at.Sub(s.at) >= secondSightAfter
}

// unseenAfter ends a finding about a process that is not seen any more, where nobody saw its end: a receiver tells of each at least once a
// minute.
const unseenAfter = 5 * time.Minute

// Process judges one sight of a process: one that has a GPU open which its pod was not given, twice in a row, is a finding until it ends.
func (e *Engine) Process(p Process) []finding.Finding {
	e.tick(p.Time)
	if p.Time.IsZero() || p.GPU == "" || p.PID <= 0 {
		e.counts.Malformed++
		return e.take()
	}
	key := fmt.Sprintf("isolation/%s gpu/%s pid %d start %d", foreign, p.GPU, p.PID, p.Start)
	switch {
	case p.Ended:
		e.series.drop(key)
		e.end(key, event.Evidence{Signal: "process", Baseline: "table", Raw: "the process has ended or closed the GPU"})
	case !p.Judged:
	case p.Given || p.PodUID == "" && matches(hostPrograms, p.Name) || p.Namespace != "" && matches(systemNamespaces, p.Namespace):
		e.series.drop(key)
		e.end(key, event.Evidence{Signal: "process", Baseline: "table", Raw: "its pod holds the GPU now"})
	case !e.secondSight(key, p.Time):
	default:
		where := "outside of any pod"
		if p.PodUID != "" {
			where = fmt.Sprintf("in pod %s/%s (%s), container %s", p.Namespace, p.Pod, p.PodUID, p.Container)
		}
		e.begin(onset{
			key: key, target: event.Target{GPU: p.GPU, PCI: p.PCI, Namespace: p.Namespace, Pod: p.Pod, PodUID: p.PodUID},
			cause: event.Cause{Kind: "isolation", Name: foreign}, severity: event.Warning, at: p.Time,
			id: []string{e.o.BootID, key}, // one of each process and GPU, also across a new agent
			evidence: event.Evidence{Signal: "process", Baseline: "the kubelet's allocation", Value: num(float64(p.PID)), Unit: "pid",
				Raw: "process " + strconv.Itoa(p.PID) + " " + strconv.Quote(p.Name) + " " + where + " has the GPU open: " + strconv.Quote(p.Command)},
		})
	}
	return e.take()
}
