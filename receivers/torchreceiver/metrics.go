package torchreceiver

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

// about is what a metric is called and means. metadata.yaml says the same; a test compares them.
type about struct {
	name, unit, text string
	kind             kind
}

type kind struct{ integer, sum bool }

var (
	double  = kind{}
	integer = kind{integer: true}
	counter = kind{integer: true, sum: true}
)

// stateMetric is a value of a ring's header.
type stateMetric struct {
	about
	value func(*hook.Snapshot) (v float64, known bool)
}

// stepMetric is a value of a step's record, one point a step, at the time of the step's end.
type stepMetric struct {
	about
	phase string // of pitcrew.train.phase.duration, else ""
	unit  bool   // with the attribute pitcrew.unit
	value func(*hook.Snapshot, *hook.Record) (v float64, known bool)
}

// The metrics.
var (
	// lifeMetrics are told at each look that may show that a rank stands: see cursor.
	lifeMetrics = []stateMetric{
		{about{semconv.TrainStepAge, "s", "Time since the last step was completed, or since the process started when none was", double},
			func(s *hook.Snapshot) (float64, bool) { return s.StepAge().Seconds(), s.StepMono > 0 }},
		{about{semconv.TrainHeartbeatAge, "s", "How long the heartbeat of the process has stood still", double},
			func(s *hook.Snapshot) (float64, bool) { return s.HeartbeatAge().Seconds(), s.HeartbeatMono > 0 }},
		{about{semconv.TrainSection, "1", "Section of the loop: 0 setup, 1 step, 2 checkpoint, 3 eval, 4 held, 5 out, 6 other", integer},
			func(s *hook.Snapshot) (float64, bool) { return float64(s.Section), true }},
	}
	// stateMetrics are told once a second.
	stateMetrics = []stateMetric{
		{about{semconv.TrainCheckpointStep, "{step}", "Step of the last checkpoint that the rank completed", integer},
			func(s *hook.Snapshot) (float64, bool) { return float64(s.CkptStep), s.CkptStep > 0 }},
		{about{semconv.TrainCheckpointAge, "s", "Time since the rank completed a checkpoint", double},
			func(s *hook.Snapshot) (float64, bool) { return s.Age(s.CkptMono).Seconds(), s.CkptMono > 0 }},
		{about{semconv.TrainCheckpointDuration, "s", "How long the last checkpoint took the rank to save", double},
			func(s *hook.Snapshot) (float64, bool) { return s.CkptDuration.Seconds(), s.CkptDuration > 0 }},
		{about{semconv.TrainCheckpointSize, "By", "Size of the rank's files of its last checkpoint", integer},
			func(s *hook.Snapshot) (float64, bool) { return float64(s.CkptBytes), s.CkptBytes > 0 }},
		{about{semconv.TrainNonfinite, "{value}", "Losses and gradient norms that were not finite, of those that were read", counter},
			func(s *hook.Snapshot) (float64, bool) { return float64(s.NonFinite), s.Flags&hook.FlagSettles != 0 }},
		memory("allocated", "Accelerator memory in use by tensors of the rank", func(s *hook.Snapshot) uint64 { return s.MemoryAllocated }),
		memory("reserved", "Accelerator memory that the rank's allocator holds", func(s *hook.Snapshot) uint64 { return s.MemoryReserved }),
		memory("peak", "Most accelerator memory in use by tensors of the rank so far", func(s *hook.Snapshot) uint64 { return s.MemoryPeak }),
		{about{semconv.TrainMemoryRetries, "{retry}", "Allocations that succeeded only after the allocator's cache was emptied", counter},
			func(s *hook.Snapshot) (float64, bool) { return float64(s.MemoryRetries), s.MemoryMono > 0 }},
	}
	// step is the last completed step: one point a step, at its end, and one with each look at its life while none ends.
	step = about{semconv.TrainStep, "{step}", "Last completed step", integer}
	// paceMetrics are final when a step ends; of steps before an agent's first sight only they are told.
	paceMetrics = []stepMetric{
		{about: step, value: func(_ *hook.Snapshot, r *hook.Record) (float64, bool) { return float64(r.Step), true }},
		{about: about{semconv.TrainStepDuration, "s", "Duration of a step", double}, value: seconds(func(r *hook.Record) time.Duration { return r.Duration })},
	}
	// detailMetrics may come some steps later, where a device has to be asked; they bear the time of their step's end all the same.
	detailMetrics = []stepMetric{
		phase("data_wait", func(r *hook.Record) time.Duration { return r.DataWait }),
		phase("forward", func(r *hook.Record) time.Duration { return r.Forward }),
		phase("backward", func(r *hook.Record) time.Duration { return r.Backward }),
		phase("optimizer", func(r *hook.Record) time.Duration { return r.Optimizer }),
		{about: about{semconv.TrainCommunicationWait, "s", "Time of a step spent waiting for gradients of other ranks that no computation hid", double},
			value: seconds(func(r *hook.Record) time.Duration { return r.Comm })},
		{about: about{semconv.TrainComputeDuration, "s", "Duration of a step less its wait for other ranks and, where that is measured, for data", double}, value: compute},
		{about: about{semconv.TrainLaunchLatency, "s", "Time from issuing a step's first work to its start on the accelerator, above the least seen lately", double},
			value: seconds(func(r *hook.Record) time.Duration { return r.LaunchLatency })},
		{about: about{semconv.TrainThroughput, "1/s", "Samples or tokens of the rank's step by its duration", double}, unit: true, value: throughput},
		{about: about{semconv.TrainMFU, "1", "Model FLOPs of a step by what the accelerator could have done meanwhile", double}, value: mfu},
		{about: about{semconv.TrainLoss, "1", "Loss of a step; not a number or infinite when the loss was", double},
			value: func(_ *hook.Snapshot, r *hook.Record) (float64, bool) { return r.Loss, r.Flags&hook.RecordLoss != 0 }},
		{about: about{semconv.TrainGradNorm, "1", "Gradient norm of a step", double},
			value: func(_ *hook.Snapshot, r *hook.Record) (float64, bool) {
				return r.GradNorm, r.Flags&hook.RecordGradNorm != 0
			}},
	}
)

func memory(name, text string, of func(*hook.Snapshot) uint64) stateMetric {
	return stateMetric{about{"pitcrew.train.memory." + name, "By", text, integer},
		func(s *hook.Snapshot) (float64, bool) { return float64(of(s)), s.MemoryMono > 0 }}
}

func seconds(of func(*hook.Record) time.Duration) func(*hook.Snapshot, *hook.Record) (float64, bool) {
	return func(_ *hook.Snapshot, r *hook.Record) (float64, bool) { d := of(r); return d.Seconds(), d > 0 }
}

func phase(name string, of func(*hook.Record) time.Duration) stepMetric {
	return stepMetric{about: about{semconv.TrainPhaseDuration, "s", "Time of a step spent in a phase, where the rank measures it", double}, phase: name, value: seconds(of)}
}

func compute(_ *hook.Snapshot, r *hook.Record) (float64, bool) {
	rest := r.Duration.Seconds() - r.DataWait.Seconds() - r.Comm.Seconds()
	return rest, r.Comm > 0 && rest > 0
}

func throughput(_ *hook.Snapshot, r *hook.Record) (float64, bool) {
	return float64(r.Count) / r.Duration.Seconds(), r.Count > 0 && r.Duration > 0
}

// mfu is FLOPs of the model by peak FLOP/s times duration (Chowdhery et al., PaLM, 2022, appendix B); recomputation does not count.
func mfu(s *hook.Snapshot, r *hook.Record) (float64, bool) {
	return s.StepFLOPs / (s.PeakFLOPS * r.Duration.Seconds()), s.StepFLOPs > 0 && s.PeakFLOPS > 0 && r.Duration > 0
}

const (
	// maxRecords bounds the steps of one rank in one sample: more is below 2 ms a step, and the newest count.
	maxRecords = 64
	// forgotten is how old the heartbeat of a rank that nobody answers for may be; then its series end.
	forgotten = time.Minute
)

// sampleEvery reads the rings of all ranks at each tick until ctx ends. On a node without a training pod nothing ticks.
func (r *torchReceiver) sampleEvery(ctx context.Context) {
	t := time.NewTicker(r.cfg.Interval)
	defer t.Stop()
	cursors := map[*hook.Ring]cursor{}
	var failing bool
	for {
		if len(cursors) == 0 && !r.fleet.AwaitPod(ctx) {
			return
		}
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

// sample reads the rings as far as their pods' budgets allow. cursors are the records told so far; the new ones hold only rings that are
// still there.
func (r *torchReceiver) sample(cursors map[*hook.Ring]cursor, now time.Time) (pmetric.Metrics, map[*hook.Ring]cursor) {
	b := newBatch(r, now)
	next := make(map[*hook.Ring]cursor, len(cursors))
	pods := r.fleet.Pods()
	r.shedder.look(pods, now)
	shares := r.ration.share(pods, now)
	for _, pod := range pods {
		share := shares[pod]
		before := b.count
		grant := func(wanted int) int { return r.ration.grant(pod, share, wanted) }
		for i, rank := range share.ranks {
			ring := rank.Ring()
			if ring == nil {
				continue
			}
			told, known := cursors[ring]
			much, every := share.of(i)
			if much == nothing || much == life && now.Sub(told.looked) < every {
				if known {
					next[ring] = told
				}
				continue
			}
			s, err := rank.Snapshot(ring)
			if err != nil {
				continue // the fleet names it when its process ends or its file changes
			}
			if !known {
				told.meet(pod.UID(), &s)
			}
			told.looked = now
			if much == life {
				next[ring] = b.life(told, rank, &s)
			} else {
				next[ring] = b.rank(told, known, grant, rank, ring, &s)
			}
		}
		pod.Charge(hook.Points, b.count-before)
	}
	r.excesses(b, pods)
	return b.md, next
}

// ended says whether nothing more is to be reported of a rank.
func ended(rank *hook.Rank, s *hook.Snapshot) bool {
	return s.Exit == hook.ExitClean || s.HeartbeatAge() > forgotten && !rank.Connected()
}

// life tells only whether a rank lives and which step it has reached. Its records are passed over.
func (b *batch) life(told cursor, rank *hook.Rank, s *hook.Snapshot) cursor {
	now := told
	now.pace, now.detail = s.Written, s.Settled
	if ended(rank, s) {
		return now
	}
	b.state(&told, s, lifeMetrics)
	b.put(&step, &told, s, pcommon.NewTimestampFromTime(b.now), float64(s.Step))
	now.section, now.alive = s.Section, b.now
	return now
}

// rank tells what is new of a rank, and gives how far it is told now.
func (b *batch) rank(told cursor, known bool, grant func(wanted int) int, rank *hook.Rank, ring *hook.Ring, s *hook.Snapshot) cursor {
	now := told
	now.pace, now.detail = s.Written, s.Settled
	if ended(rank, s) {
		return now
	}
	live := told.lifeDue(s, b.now)
	if live {
		b.state(&told, s, lifeMetrics)
		now.section, now.alive = s.Section, b.now
	}
	if told.stateDue(s, b.now) {
		b.state(&told, s, stateMetrics)
		b.info(&told, s)
		now.checkpoint, now.stated = s.CkptStep, b.now
	}
	if !known && s.Settled > 0 {
		// Of the steps before the first sight only the pace is news: an agent that replaces another must know it at once.
		told.detail = s.Settled - 1
	}
	since := min(told.pace, told.detail)
	wanted := int(min(s.Written-min(since, s.Written), maxRecords))
	records, err := ring.Records(s, since, grant(wanted))
	if err != nil {
		return now
	}
	stepped := false
	for i := range records {
		x := &records[i]
		if x.Seq > told.pace {
			b.step(&told, s, x, paceMetrics)
			stepped = true
		}
		if x.Seq > told.detail && x.Seq <= s.Settled {
			b.step(&told, s, x, detailMetrics)
		}
	}
	if live && !stepped { // the last step again, while none has ended
		b.put(&step, &told, s, pcommon.NewTimestampFromTime(b.now), float64(s.Step))
	}
	b.collectives(&told, rank, s)
	return now
}

// clock turns the rings' monotonic time into wall time. All values of one step bear the very same time, in whichever sample they
// come, so that they can be joined by it; a wall clock that was set moves it.
type clock struct {
	mu     sync.Mutex
	offset int64 // wall less monotonic, ns
}

// clockStep is how far the two clocks may drift apart before the offset is taken anew.
const clockStep = 50 * time.Millisecond

func (c *clock) at(now time.Time, nowMono, mono uint64) pcommon.Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fresh := now.UnixNano() - int64(nowMono); c.offset == 0 || time.Duration(fresh-c.offset).Abs() > clockStep {
		c.offset = fresh
	}
	return pcommon.Timestamp(max(c.offset+int64(min(mono, nowMono)), 0)) // no step ends in the future
}

// batch builds one export: of each job one metric for each name, one point for each rank.
type batch struct {
	r     *torchReceiver
	md    pmetric.Metrics
	jobs  map[string]*group // by UID
	now   time.Time
	count int // points of ranks so far
}

// group is the ranks of one job: a resource of its own, so that a job's series can be brought to one gateway.
type group struct {
	scope  pmetric.ScopeMetrics
	points map[string]pmetric.NumberDataPointSlice
}

func newBatch(r *torchReceiver, now time.Time) *batch {
	return &batch{r: r, md: pmetric.NewMetrics(), jobs: map[string]*group{}, now: now}
}

func (b *batch) group(job string) *group {
	g, ok := b.jobs[job]
	if !ok {
		rm := b.md.ResourceMetrics().AppendEmpty()
		b.r.resource(rm.Resource())
		if job != "" {
			rm.Resource().Attributes().PutStr(semconv.JobUID, job)
		}
		g = &group{rm.ScopeMetrics().AppendEmpty(), make(map[string]pmetric.NumberDataPointSlice, len(lifeMetrics)+len(stateMetrics)+len(detailMetrics))}
		g.scope.Scope().SetName(ScopeName)
		b.jobs[job] = g
	}
	return g
}

func (g *group) point(m *about) pmetric.NumberDataPoint {
	ps, ok := g.points[m.name]
	if !ok {
		p := g.scope.Metrics().AppendEmpty()
		p.SetName(m.name)
		p.SetUnit(m.unit)
		p.SetDescription(m.text)
		if m.kind.sum {
			sum := p.SetEmptySum()
			sum.SetIsMonotonic(true)
			sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
			ps = sum.DataPoints()
		} else {
			ps = p.SetEmptyGauge().DataPoints()
		}
		g.points[m.name] = ps
	}
	return ps.AppendEmpty()
}

// put adds a point of a rank. There is room for one attribute of its own: grown to, it would take twice the memory of all.
func (b *batch) put(m *about, c *cursor, s *hook.Snapshot, at pcommon.Timestamp, v float64) pmetric.NumberDataPoint {
	b.count++
	p := b.group(s.JobUID).point(m)
	p.SetTimestamp(at)
	if m.kind.sum && !s.StartUnix.IsZero() {
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(s.StartUnix))
	}
	if m.kind.integer {
		p.SetIntValue(int64(min(v, 1<<62)))
	} else {
		p.SetDoubleValue(v)
	}
	p.Attributes().EnsureCapacity(c.identity.Len() + 1)
	c.identity.CopyTo(p.Attributes())
	return p
}

func (b *batch) state(c *cursor, s *hook.Snapshot, metrics []stateMetric) {
	for i := range metrics {
		m := &metrics[i]
		if v, known := m.value(s); known {
			b.put(&m.about, c, s, pcommon.NewTimestampFromTime(b.now), v)
		}
	}
}

func (b *batch) step(c *cursor, s *hook.Snapshot, r *hook.Record, metrics []stepMetric) {
	at := b.r.clock.at(b.now, s.NowMono, r.EndMono)
	for i := range metrics {
		m := &metrics[i]
		v, known := m.value(s, r)
		if !known {
			continue
		}
		p := b.put(&m.about, c, s, at, v)
		if m.phase != "" {
			p.Attributes().PutStr(semconv.Phase, m.phase)
		}
		if m.unit {
			p.Attributes().PutStr(semconv.Unit, unitOf(s))
		}
	}
}

func unitOf(s *hook.Snapshot) string {
	if s.Flags&hook.FlagTokens != 0 {
		return "tokens"
	}
	return "samples"
}
