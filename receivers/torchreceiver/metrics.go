package torchreceiver

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/hook"
)

// stateMetric is a value of a ring's header, one point a sample.
type stateMetric struct {
	name, unit, about string
	integer           bool
	value             func(*hook.Snapshot) (v float64, known bool)
}

// stepMetric is a value of a step's record, one point a step, at the time of the step's end.
type stepMetric struct {
	name, unit, about string
	integer           bool
	phase             string // of pitcrew.train.phase.duration, else ""
	value             func(*hook.Record) (v float64, known bool)
}

// The metrics. metadata.yaml says the same; a test compares them.
var (
	stateMetrics = []stateMetric{
		{"pitcrew.train.step", "{step}", "Last completed step", true, func(s *hook.Snapshot) (float64, bool) { return float64(s.Step), true }},
		{"pitcrew.train.step.age", "s", "Time since the last step was completed, or since the process started when none was", false,
			func(s *hook.Snapshot) (float64, bool) { return s.StepAge().Seconds(), s.StepMono > 0 }},
		{"pitcrew.train.heartbeat.age", "s", "How long the heartbeat of the process has stood still", false,
			func(s *hook.Snapshot) (float64, bool) { return s.HeartbeatAge().Seconds(), s.HeartbeatMono > 0 }},
		{"pitcrew.train.section", "1", "Section of the loop: 0 setup, 1 step, 2 checkpoint, 3 eval, 4 held, 5 out, 6 other", true,
			func(s *hook.Snapshot) (float64, bool) { return float64(s.Section), true }},
		{"pitcrew.train.checkpoint.step", "{step}", "Step of the last checkpoint that the rank completed", true,
			func(s *hook.Snapshot) (float64, bool) { return float64(s.CkptStep), s.CkptStep > 0 }},
		{"pitcrew.train.checkpoint.age", "s", "Time since the rank completed a checkpoint", false,
			func(s *hook.Snapshot) (float64, bool) { return s.Age(s.CkptMono).Seconds(), s.CkptMono > 0 }},
		{"pitcrew.train.checkpoint.duration", "s", "How long the last checkpoint took the rank to save", false,
			func(s *hook.Snapshot) (float64, bool) { return s.CkptDuration.Seconds(), s.CkptDuration > 0 }},
	}
	stepMetrics = []stepMetric{
		{"pitcrew.train.step.duration", "s", "Duration of a step", false, "", seconds(func(r *hook.Record) time.Duration { return r.Duration })},
		phase("data_wait", func(r *hook.Record) time.Duration { return r.DataWait }),
		phase("forward", func(r *hook.Record) time.Duration { return r.Forward }),
		phase("backward", func(r *hook.Record) time.Duration { return r.Backward }),
		phase("optimizer", func(r *hook.Record) time.Duration { return r.Optimizer }),
		phase("communication", func(r *hook.Record) time.Duration { return r.Comm }),
		phase("launch", func(r *hook.Record) time.Duration { return r.LaunchLatency }),
		{"pitcrew.train.loss", "1", "Loss of a step; not a number or infinite when the loss was", false, "",
			func(r *hook.Record) (float64, bool) { return r.Loss, r.Flags&hook.RecordLoss != 0 }},
		{"pitcrew.train.grad_norm", "1", "Gradient norm of a step", false, "",
			func(r *hook.Record) (float64, bool) { return r.GradNorm, r.Flags&hook.RecordGradNorm != 0 }},
		{"pitcrew.train.memory.allocated", "By", "Accelerator memory that the rank had allocated at the end of a step", true, "",
			func(r *hook.Record) (float64, bool) { return float64(r.MemoryAllocated), r.MemoryAllocated > 0 }},
	}
)

func seconds(of func(*hook.Record) time.Duration) func(*hook.Record) (float64, bool) {
	return func(r *hook.Record) (float64, bool) { d := of(r); return d.Seconds(), d > 0 }
}

func phase(name string, of func(*hook.Record) time.Duration) stepMetric {
	return stepMetric{"pitcrew.train.phase.duration", "s", "Time of a step spent in a phase, where the rank measures it", false, name, seconds(of)}
}

const (
	// maxRecords bounds the steps of one rank in one sample: more is below 2 ms a step, and the newest count.
	maxRecords = 64
	// forgotten is how old the heartbeat of a rank that nobody answers for may be; then its series end.
	forgotten = time.Minute
	// paceMetrics is how many of stepMetrics tell a rank's pace: the duration of a step.
	paceMetrics = 1
)

// sampleEvery reads the rings of all ranks at each tick until ctx ends.
func (r *torchReceiver) sampleEvery(ctx context.Context) {
	t := time.NewTicker(r.cfg.Interval)
	defer t.Stop()
	cursors := map[*hook.Ring]uint64{}
	var failing bool
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		md, next := r.sample(cursors, time.Now())
		cursors = next
		if md.DataPointCount() == 0 {
			continue
		}
		octx := r.obs.StartMetricsOp(ctx)
		n := md.DataPointCount()
		err := r.metrics.ConsumeMetrics(octx, md)
		r.obs.EndMetricsOp(octx, Type.String(), n, err)
		if err != nil && !failing {
			r.log.Warn("metrics dropped; the next sample is tried again", zap.Error(err))
		}
		failing = err != nil
	}
}

// sample reads every ring once. cursors are the records read so far; the new ones hold only rings that are still there.
func (r *torchReceiver) sample(cursors map[*hook.Ring]uint64, now time.Time) (pmetric.Metrics, map[*hook.Ring]uint64) {
	b := newBatch(r)
	next := make(map[*hook.Ring]uint64, len(cursors))
	for _, pod := range r.fleet.Pods() {
		for _, rank := range pod.Ranks() {
			ring := rank.Ring()
			if ring == nil {
				continue
			}
			s, err := ring.Snapshot()
			if err != nil {
				continue // the fleet names it when its process ends or its file changes
			}
			since, known := cursors[ring]
			next[ring] = s.Written
			if s.Exit == hook.ExitClean || s.HeartbeatAge() > forgotten && !rank.Connected() {
				continue
			}
			b.state(pod.UID(), &s, now)
			records, err := ring.Records(&s, since, maxRecords)
			if err != nil {
				continue
			}
			for i := range records {
				// Of the steps before the first sight only the pace is news: an agent that replaces another must know it at once.
				metrics := stepMetrics
				if !known && i < len(records)-1 {
					metrics = stepMetrics[:paceMetrics]
				}
				b.step(pod.UID(), &s, &records[i], metrics, now)
			}
		}
	}
	return b.md, next
}

// batch builds one export: one metric for each name, one point for each rank.
type batch struct {
	md     pmetric.Metrics
	scope  pmetric.ScopeMetrics
	points map[string]pmetric.NumberDataPointSlice
}

func newBatch(r *torchReceiver) *batch {
	b := &batch{md: pmetric.NewMetrics(), points: make(map[string]pmetric.NumberDataPointSlice, len(stateMetrics)+len(stepMetrics))}
	rm := b.md.ResourceMetrics().AppendEmpty()
	r.resource(rm.Resource())
	b.scope = rm.ScopeMetrics().AppendEmpty()
	b.scope.Scope().SetName(ScopeName)
	return b
}

func (b *batch) point(name, unit, about string) pmetric.NumberDataPoint {
	ps, ok := b.points[name]
	if !ok {
		m := b.scope.Metrics().AppendEmpty()
		m.SetName(name)
		m.SetUnit(unit)
		m.SetDescription(about)
		ps = m.SetEmptyGauge().DataPoints()
		b.points[name] = ps
	}
	return ps.AppendEmpty()
}

func set(p pmetric.NumberDataPoint, integer bool, v float64) {
	if integer {
		p.SetIntValue(int64(min(v, 1<<62)))
	} else {
		p.SetDoubleValue(v)
	}
}

// label sets what tells one rank's series from another's. The process's number is not among it: it changes nothing but the
// number of series.
func label(a pcommon.Map, pod string, s *hook.Snapshot) {
	id := s.Identity
	id.PID = 0
	putIdentity(a, pod, id, s.GPUUUID)
}

func (b *batch) state(pod string, s *hook.Snapshot, now time.Time) {
	for i := range stateMetrics {
		m := &stateMetrics[i]
		v, known := m.value(s)
		if !known {
			continue
		}
		p := b.point(m.name, m.unit, m.about)
		p.SetTimestamp(pcommon.NewTimestampFromTime(now))
		set(p, m.integer, v)
		label(p.Attributes(), pod, s)
	}
}

func (b *batch) step(pod string, s *hook.Snapshot, r *hook.Record, metrics []stepMetric, now time.Time) {
	at := pcommon.NewTimestampFromTime(now.Add(-s.Age(r.EndMono)))
	for i := range metrics {
		m := &metrics[i]
		v, known := m.value(r)
		if !known {
			continue
		}
		p := b.point(m.name, m.unit, m.about)
		p.SetTimestamp(at)
		set(p, m.integer, v)
		label(p.Attributes(), pod, s)
		if m.phase != "" {
			p.Attributes().PutStr("pitcrew.phase", m.phase)
		}
	}
}
