package detector

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
)

func sight(edit ...func(*Process)) Process {
	p := Process{PID: 42, Start: 100, Name: "python3", Command: "python3 miner.py", GPU: "GPU-1", PodUID: "u1", Namespace: "ns", Pod: "p", Container: "main", Time: at(1), Judged: true}
	for _, e := range edit {
		e(&p)
	}
	return p
}

// twice lets the engine see a process, and again five seconds later; it gives what both said.
func twice(e *Engine, p Process) []finding.Finding {
	got := e.Process(p)
	p.Time = p.Time.Add(5 * time.Second)
	return append(got, e.Process(p)...)
}

func TestAProcessOnAGpuThatItsPodWasNotGivenIsOneFinding(t *testing.T) {
	e := engine(t)
	got := twice(e, sight())
	want(t, got, "+isolation/foreign-process warning")
	d := got[0].Event.Data
	if d.Target.GPU != "GPU-1" || d.Target.Pod != "p" || d.Target.Namespace != "ns" || !strings.Contains(d.Evidence.Raw, `process 42 "python3" in pod ns/p (u1), container main has the GPU open: "python3 miner.py"`) {
		t.Errorf("data %+v", d)
	}
	want(t, e.Process(sight(func(p *Process) { p.Time = at(60) })))
	want(t, twice(e, sight(func(p *Process) { p.GPU = "GPU-2" })), "+isolation/foreign-process warning")
	want(t, twice(e, sight(func(p *Process) { p.Start = 200 })), "+isolation/foreign-process warning") // another process of that number
	want(t, e.Process(sight(func(p *Process) { p.Ended = true })), "-isolation/foreign-process")
	after := engine(t)
	if again := twice(after, sight(func(p *Process) { p.Time = at(99) })); again[0].Event.ID != got[0].Event.ID {
		t.Error("a new agent says it under another id")
	}
}

func TestWhoMayUseAGpuIsNoFinding(t *testing.T) {
	for name, edit := range map[string]func(*Process){
		"its pod was given it":             func(p *Process) { p.Given = true },
		"nobody knows who was given it":    func(p *Process) { p.Judged = false },
		"NVIDIA's daemon on the host":      func(p *Process) { p.PodUID, p.Namespace, p.Pod, p.Name = "", "", "", "nv-hostengine" },
		"our own":                          func(p *Process) { p.PodUID, p.Namespace, p.Pod, p.Name = "", "", "", "pitcrew-collect" },
		"the operator's pod":               func(p *Process) { p.Namespace = "gpu-operator" },
		"a pod of a namespace of NVIDIA's": func(p *Process) { p.Namespace = "nvidia-dra-driver-gpu" },
	} {
		if got := twice(engine(t), sight(edit)); len(got) != 0 {
			t.Errorf("%s: %+v", name, got[0].Event)
		}
	}
}

func TestANameIsNoExcuseInAPod(t *testing.T) {
	want(t, twice(engine(t), sight(func(p *Process) { p.Name = "nvidia-smi" })), "+isolation/foreign-process warning")
	want(t, twice(engine(t), sight(func(p *Process) { p.PodUID, p.Namespace, p.Pod = "", "", "" })), "+isolation/foreign-process warning")
}

func TestAPodThatIsGivenTheGpuLaterEndsTheFinding(t *testing.T) {
	e := engine(t)
	want(t, twice(e, sight()), "+isolation/foreign-process warning")
	want(t, e.Process(sight(func(p *Process) { p.Given = true })), "-isolation/foreign-process")
}

func TestOneSightProvesNothing(t *testing.T) {
	e := engine(t)
	want(t, e.Process(sight()))
	want(t, e.Process(sight(func(p *Process) { p.Time, p.Given = at(6), true }))) // the kubelet's answer had been older than the pod
	want(t, e.Process(sight(func(p *Process) { p.Time = at(60) })))
}

func TestAProcessWhoseEndNobodySawIsForgottenInFiveMinutes(t *testing.T) {
	e := engine(t)
	want(t, twice(e, sight()), "+isolation/foreign-process warning")
	e.Rank(sample(0, 200, 1, 0.1))
	want(t, e.Settle())
	e.Rank(sample(0, 400, 1, 0.1))
	want(t, e.Settle(), "-isolation/foreign-process")
}

func TestASightWithoutAGpuIsMalformed(t *testing.T) {
	e := engine(t)
	want(t, e.Process(Process{PID: 1, Time: at(1)}))
	want(t, e.Process(Process{GPU: "GPU-1", PID: 1}))
	if e.Counts().Malformed != 2 {
		t.Error("not counted")
	}
}
