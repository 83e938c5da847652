package detectorconnector

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/collector/findings"
	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/job"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Jobs bounds the comparison of ranks. The connector's node is the gateway's own name then.
type Jobs struct {
	MaxJobs  int           `mapstructure:"max_jobs"`  // attempts of jobs at once
	MaxRanks int           `mapstructure:"max_ranks"` // of all of them; about 5 KB each
	Absent   time.Duration `mapstructure:"absent"`    // silence, while its peers go on, after which a rank is absent; at least three rounds
	Forget   time.Duration `mapstructure:"forget"`    // silence after which an attempt is over

	StateFile string `mapstructure:"state_file"` // what is known of running jobs, and what is open, across restarts; empty: none

	ClassesFile string  `mapstructure:"classes_file"` // what earlier runs of workloads showed, across restarts; empty: none
	Classes     Classes `mapstructure:"classes"`
}

// Validate reports all faults of the block at once.
func (j *Jobs) Validate() error {
	var errs []error
	if _, err := class.New(j.Classes.bounds("")); err != nil {
		errs = append(errs, fmt.Errorf("jobs: %w", err))
	}
	for _, c := range []struct {
		name string
		ok   bool
	}{{"max_jobs", j.MaxJobs > 0}, {"max_ranks", j.MaxRanks > 0}, {"absent", j.Absent > 0}, {"forget", j.Forget > j.Absent}} {
		if !c.ok {
			errs = append(errs, fmt.Errorf("jobs: %s must be above 0, and forget above absent", c.name))
		}
	}
	return errors.Join(errs...)
}

// jobsTick is how often time passes for jobs of which nothing comes.
const jobsTick = time.Second

// jobs compares ranks of whole jobs, whose points a gateway receives.
type jobs struct {
	cfg     *Config
	log     *zap.Logger
	next    consumer.Logs
	name    string // the gateway's
	now     func() time.Time
	metrics *jobsMetrics
	stop    context.CancelFunc
	unheed  func() // ends the hearing of what people say
	parted  func() // ends the exchange of classes
	group   sync.WaitGroup
	file    classFile
	running jobsFile

	mu      sync.Mutex
	engine  *job.Engine
	store   *class.Store // the engine's
	ledger  class.Ledger // of what other gateways were given
	offered map[string]class.Piece
	pending []finding.Finding
	lost    int64
}

func newJobs(set connector.Settings, cfg *Config, next consumer.Logs) (*jobs, error) {
	name := cfg.Node
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("gateway has no name (set node): %w", err)
		}
	}
	store, err := class.New(cfg.Jobs.Classes.bounds(name))
	if err != nil {
		return nil, err
	}
	j := &jobs{cfg: cfg, log: set.Logger, next: next, name: name, now: time.Now, store: store, file: classFile{path: cfg.Jobs.ClassesFile, log: set.Logger}}
	j.running = jobsFile{path: cfg.Jobs.StateFile, log: set.Logger}
	j.file.File, j.running.File = j.newClassFile(cfg.Jobs.ClassesFile), j.newJobsFile(cfg.Jobs.StateFile)
	j.engine = job.New(job.Options{
		Cluster: cfg.Cluster, Gateway: name, MaxJobs: cfg.Jobs.MaxJobs, MaxRanks: cfg.Jobs.MaxRanks, Absent: cfg.Jobs.Absent, Forget: cfg.Jobs.Forget, Classes: store,
	})
	j.metrics, err = newJobsMetrics(set.TelemetrySettings, j.counts)
	return j, err
}

func (j *jobs) counts() (job.Counts, int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.engine.Counts(), j.lost
}

// Capabilities implements consumer.Metrics.
func (j *jobs) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// Start lets time pass until Shutdown.
func (j *jobs) Start(_ context.Context, host component.Host) error {
	ctx, cancel := context.WithCancel(context.Background())
	j.stop = cancel
	j.file.load(j.store)
	j.running.load(j.now(), j.engine)
	j.unheed = follow(host, j.say)
	j.parted = exchange(host, classKeeper{j})
	j.running.Start()
	j.file.Start()
	j.group.Go(func() {
		t := time.NewTicker(jobsTick)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				j.emit(ctx, func() []finding.Finding { return j.engine.Tick(j.now()) })
			}
		}
	})
	return nil
}

// Shutdown implements component.Component.
func (j *jobs) Shutdown(context.Context) error {
	if j.stop != nil {
		j.unheed()
		j.parted()
		j.stop()
		j.group.Wait()
		j.running.Stop()
		j.file.Stop()
	}
	return j.metrics.close()
}

// say hears what people said of findings; it takes effect within a second.
func (j *jobs) say(all []statement.Statement) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.engine.Say(all)
}

// ConsumeMetrics compares what ranks say of their steps.
func (j *jobs) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	now := j.now()
	for _, rm := range md.ResourceMetrics().All() {
		samples, works, claims := stepsOf(rm), worksOf(rm), collectivesOf(rm)
		if len(samples)+len(works)+len(claims) == 0 {
			continue
		}
		j.emit(ctx, func() (found []finding.Finding) {
			for i := range samples {
				found = append(found, j.engine.Add(now, samples[i])...)
			}
			for _, w := range works {
				j.engine.Tell(now, w.job, w.target, w.work)
			}
			for _, c := range claims {
				j.engine.Collective(now, c.job, c.target, c.collective)
			}
			return found
		})
	}
	return nil
}

// emit sends on what find finds, with what was refused before.
func (j *jobs) emit(ctx context.Context, find func() []finding.Finding) {
	j.mu.Lock()
	found := append(j.pending, find()...)
	j.pending = nil
	j.mu.Unlock()
	if len(found) == 0 {
		return
	}
	logs, err := findings.Records(found)
	if err != nil {
		j.log.Error("findings dropped", zap.Error(err))
	}
	if err = j.next.ConsumeLogs(ctx, logs); err == nil {
		return
	}
	j.log.Error("findings were refused; they are sent again with the next", zap.Int("findings", len(found)), zap.Error(err))
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = append(found, j.pending...)
	if over := len(j.pending) - maxPending; over > 0 {
		j.pending = j.pending[over:]
		j.lost += int64(over)
	}
}

// stepMetrics say where each metric goes in a sample.
var stepMetrics = map[string]func(*job.Sample, float64){
	semconv.TrainStep:              func(s *job.Sample, v float64) { s.Step = int64(max(-1, min(v, 1<<62))) },
	semconv.TrainStepDuration:      func(s *job.Sample, v float64) { s.Duration = v },
	semconv.TrainComputeDuration:   func(s *job.Sample, v float64) { s.Compute = v },
	semconv.TrainCommunicationWait: func(s *job.Sample, v float64) { s.Wait = v },
	semconv.TrainLaunchLatency:     func(s *job.Sample, v float64) { s.Launch = v },
	semconv.TrainThroughput:        func(s *job.Sample, v float64) { s.Rate = v },
}

// stepKey tells one step of one rank: all its points have the same time.
type stepKey struct {
	pod           string
	rank, attempt int64
	at            pcommon.Timestamp
}

// stepsOf joins the points of a resource to steps, in the order in which they come.
func stepsOf(rm pmetric.ResourceMetrics) (samples []job.Sample) {
	res := rm.Resource().Attributes()
	at := map[stepKey]int{}
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			set := stepMetrics[m.Name()]
			if set == nil {
				continue
			}
			for _, p := range points(m).All() {
				if p.Flags().NoRecordedValue() || p.Timestamp() == 0 {
					continue
				}
				a := both{p.Attributes(), res}
				k := stepKey{short(a, semconv.K8sPodUID), a.number(semconv.Rank, -1), a.number(semconv.Attempt, 0), p.Timestamp()}
				i, ok := at[k]
				if !ok {
					i = len(samples)
					at[k] = i
					samples = append(samples, stepOf(a, p.Timestamp().AsTime()))
				}
				set(&samples[i], value(p))
			}
		}
	}
	nan := math.IsNaN
	for i := range samples { // a step that is told alone did not end now
		s := &samples[i]
		s.Stands = s.Step >= 0 && nan(s.Duration) && nan(s.Compute) && nan(s.Wait) && nan(s.Launch) && nan(s.Rate)
	}
	return samples
}

func stepOf(a both, at time.Time) job.Sample {
	nan := math.NaN()
	t := rankTarget(a)
	t = event.Target{
		Node: short(a, semconv.K8sNodeName), PodUID: short(a, semconv.K8sPodUID), Namespace: short(a, semconv.K8sNamespaceName), Pod: short(a, semconv.K8sPodName),
		GPU: short(a, semconv.HWID), Rank: t.Rank, LocalRank: t.LocalRank, WorldSize: t.WorldSize, Attempt: t.Attempt,
	}
	return job.Sample{
		Job: a.text(semconv.JobUID), Role: roleOf(a), Target: t, Step: -1, Time: at,
		Duration: nan, Wait: nan, Compute: nan, Launch: nan, Rate: nan,
	}
}

// roleAttributes tell the role of ranks whose sender has no name for it.
var roleAttributes = []string{"pitcrew.pipeline.stage", "pitcrew.tensor.index", "pitcrew.worker.type"}

func roleOf(a both) string {
	if role := a.text(semconv.Role); role != "" {
		return role
	}
	var parts []string
	for _, name := range roleAttributes {
		if v := a.text(name); v != "" {
			parts = append(parts, strings.TrimPrefix(name, "pitcrew.")+"="+v)
		}
	}
	return strings.Join(parts, "/")
}

// maxName bounds names that are kept and said again; Kubernetes has none that is longer.
const maxName = 253

func short(a both, name string) string {
	if v := a.text(name); len(v) <= maxName {
		return v
	}
	return ""
}
