package detectorconnector

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// learner is a gateway that keeps its classes in a file, on a clock of its own.
type learner struct {
	*jobs
	t    *testing.T
	sink *sink
	logs *observer.ObservedLogs
	at   atomic.Int64 // Unix ns

	listed []event.Event // not said
	people *people       // who speak to a keeper
}

func newLearner(t *testing.T, file string) *learner {
	t.Helper()
	return learnerAt(t, Jobs{ClassesFile: file}, t0.UnixNano())
}

// learnerAt begins at a time, Unix ns; people may speak to it.
func learnerAt(t *testing.T, files Jobs, at int64) *learner {
	t.Helper()
	return learnerNamed(t, "gw-0", files, at, nil)
}

// learnerNamed is a gateway of a name, beside an extension.
func learnerNamed(t *testing.T, name string, files Jobs, at int64, beside component.Component) *learner {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.Cluster, cfg.Node, cfg.Scope, cfg.Jobs.ClassesFile, cfg.Jobs.StateFile = "c", name, ScopeJobs, files.ClassesFile, files.StateFile
	core, logs := observer.New(zapcore.InfoLevel)
	set := connectortest.NewNopSettings(Type)
	set.Logger = zap.New(core)
	l := &learner{t: t, sink: &sink{}, logs: logs, people: &people{}}
	c, err := NewFactory().CreateMetricsToLogs(t.Context(), set, cfg, l.sink)
	if err != nil {
		t.Fatal(err)
	}
	l.jobs = c.(*jobs)
	l.at.Store(at)
	l.now = func() time.Time { return time.Unix(0, l.at.Load()) }
	var around component.Host = host{l.people}
	if beside != nil {
		around = extensions{component.MustNewID("statements"): beside}
	}
	if err := l.Start(t.Context(), around); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *learner) end() {
	l.t.Helper()
	if err := l.Shutdown(l.t.Context()); err != nil {
		l.t.Error(err)
	}
}

// run makes steps of a job of four ranks on one node, which tells once a second what it runs, where it knows.
func (l *learner) run(job, workload string, steps int, took float64) {
	l.t.Helper()
	rng := rand.New(rand.NewPCG(5, uint64(len(job))))
	for i := 1; i <= steps; i++ {
		d := took * math.Exp(0.005*rng.NormFloat64())
		at := time.Unix(0, l.at.Add(int64(d*1e9)))
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("k8s.node.name", "n1")
		rm.Resource().Attributes().PutStr("pitcrew.job.uid", job)
		sm := rm.ScopeMetrics().AppendEmpty()
		for rank := range 4 {
			point := func(name string, v float64, more map[string]any) {
				m := sm.Metrics().AppendEmpty()
				m.SetName(name)
				p := m.SetEmptyGauge().DataPoints().AppendEmpty()
				p.SetTimestamp(pcommon.NewTimestampFromTime(at))
				p.SetDoubleValue(v)
				attrs := map[string]any{"k8s.pod.uid": "pod-" + job, "pitcrew.rank": rank, "pitcrew.world_size": 4, "pitcrew.attempt": 0}
				for k, v := range more {
					attrs[k] = v
				}
				if err := p.Attributes().FromRaw(attrs); err != nil {
					panic(err)
				}
			}
			point("pitcrew.train.step", float64(i), nil)
			point("pitcrew.train.step.duration", d, nil)
			if workload != "" && i%5 == 0 {
				point(workMetric, 1, map[string]any{"pitcrew.workload": workload, "pitcrew.framework": "torch 2.9.0", "hw.model": "H100", "hw.driver_version": "570"})
			}
		}
		if err := l.ConsumeMetrics(l.t.Context(), md); err != nil {
			l.t.Fatal(err)
		}
		if i%5 == 0 {
			l.emit(l.t.Context(), func() []finding.Finding { return l.engine.Tick(l.now()) })
		}
	}
}

func (l *learner) said() (words []string, es []event.Event) {
	l.t.Helper()
	l.listed = nil
	for _, ld := range l.sink.AllLogs() {
		for _, r := range ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().All() {
			e, err := event.Decode(r.Body().Bytes().AsRaw())
			if err != nil {
				l.t.Fatal(err)
			}
			if only, ok := r.Attributes().Get(semconv.ConditionOnly); ok && only.Bool() {
				l.listed = append(l.listed, e)
				continue
			}
			words, es = append(words, e.Data.Cause.Signal()), append(es, e)
		}
	}
	return words, es
}

const gptWork = "model=gpt-124m;tokens=524288;seq=1024"

func TestANewGatewayKnowsTheClassesOfTheOneBefore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep", "classes")
	first := newLearner(t, file)
	first.run("job-1", gptWork, 300, 0.2)
	if c, _ := first.counts(); c.Classes != 1 || c.Classed != 1 {
		t.Fatalf("counts %+v", c)
	}
	first.end()

	second := newLearner(t, file)
	defer second.end()
	if n := second.logs.FilterMessage("workloads of before are known").FilterField(zap.Int64("runs", 1)).Len(); n != 1 {
		t.Errorf("it does not say what it loaded: %+v", second.logs.All())
	}
	second.run("job-2", gptWork, 100, 0.26)
	words, es := second.said()
	if len(words) != 1 || words[0] != "job/slowdown" || es[0].Data.Evidence.Baseline != "class(1)" || es[0].Data.Target.Job.UID != "job-2" {
		t.Errorf("said %v: %+v", words, es)
	}
}

func TestACorruptFileOfClassesIsRefusedAndTheOlderOneUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "classes")
	first := newLearner(t, file)
	first.run("job-1", gptWork, 200, 0.2)
	first.file.Save()
	first.run("job-2", gptWork, 200, 0.2)
	first.end()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	second := newLearner(t, file)
	defer second.end()
	c, _ := second.counts()
	if c.ClassRuns != 1 || second.logs.FilterLevelExact(zapcore.WarnLevel).Len() != 1 || second.logs.FilterMessageSnippet("are known").FilterField(zap.Int64("runs", 1)).Len() != 1 {
		t.Errorf("%d runs; %+v", c.ClassRuns, second.logs.All())
	}
	for _, f := range []string{file, file + ".old"} {
		if err := os.WriteFile(f, []byte("no snapshot"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	third := newLearner(t, file)
	defer third.end()
	if c, _ := third.counts(); c.ClassRuns != 0 || third.logs.FilterMessageSnippet("learning anew").Len() != 1 {
		t.Errorf("%d runs; %+v", c.ClassRuns, third.logs.All())
	}
}

func TestClassesAreSavedOnlyWhenTheyChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "classes")
	l := newLearner(t, file)
	defer l.end()
	l.file.Save()
	if _, err := os.Stat(file); err == nil {
		t.Error("nothing was learnt, and it is saved")
	}
	l.run("job-1", gptWork, 200, 0.2)
	l.file.Save()
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	l.file.Save()
	if _, err := os.Stat(file); err == nil {
		t.Error("saved again, without a change")
	}
	l.run("job-2", gptWork, 200, 0.2)
	l.file.Save()
	if after, err := os.ReadFile(file); err != nil || bytes.Equal(before, after) {
		t.Errorf("what was learnt since is not there: %v", err)
	}
}

func TestWithoutAFileOrAWorkloadNothingIsWritten(t *testing.T) {
	dir := t.TempDir()
	for what, c := range map[string]struct{ file, workload string }{"no file": {"", gptWork}, "no workload": {filepath.Join(dir, "classes"), ""}} {
		l := newLearner(t, c.file)
		l.run("job-1", c.workload, 100, 0.2)
		if n, _ := l.counts(); n.Classes != int64(map[bool]int{true: 1}[c.workload != ""]) {
			t.Errorf("%s: %+v", what, n)
		}
		l.end()
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestBoundsOfClassesThatCannotBeAreRefusedByName(t *testing.T) {
	for name, change := range map[string]func(*Jobs){
		"max_runs": func(j *Jobs) { j.Classes.MaxRuns = -1 }, "per_class": func(j *Jobs) { j.Classes.PerClass = 1 }, "max_steps": func(j *Jobs) { j.Classes.MaxSteps = 1 << 30 },
	} {
		cfg := createDefaultConfig().(*Config)
		cfg.Scope = ScopeJobs
		change(&cfg.Jobs)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "jobs: classes: "+name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

func TestWhatAPointOfInfoSaysIsTakenAsItIsOrNotAtAll(t *testing.T) {
	l := newLearner(t, "")
	defer l.end()
	l.run("job-1", gptWork, 100, 0.2)
	md := pmetric.NewMetrics()
	sm := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty()
	for i, workload := range []any{strings.Repeat("x", 1<<16), 7, []byte{0}, "model=a"} {
		m := sm.Metrics().AppendEmpty()
		m.SetName(workMetric)
		p := m.SetEmptySum().DataPoints().AppendEmpty()
		if err := p.Attributes().FromRaw(map[string]any{"pitcrew.workload": workload, "k8s.pod.uid": fmt.Sprint("p", i), "pitcrew.rank": 0, "pitcrew.world_size": 1}); err != nil {
			t.Fatal(err)
		}
	}
	sm.Metrics().AppendEmpty().SetName(workMetric)
	if err := l.ConsumeMetrics(t.Context(), md); err != nil {
		t.Error(err)
	}
	if c, _ := l.counts(); c.Malformed != 1 || c.Jobs != 1 || c.Classed != 1 {
		t.Errorf("counts %+v", c)
	}
}
