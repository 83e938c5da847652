package dcgmreceiver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/semconv"
)

// infoEvery is how often it is said which card is which; series that are not said for twice as long end on the agent's endpoint.
const infoEvery = 15 * time.Second

// run is one running receiver: the loop that asks, and what it remembers. All but kick belongs to the loop's goroutine.
type run struct {
	*dcgmReceiver
	host    component.Host
	src     Source
	worker  *worker
	session *session
	build   *builder
	fleet   fleet
	kick    chan struct{} // something happened: read the fast fields now

	results  chan round
	refused  bool // by the pipeline, and said
	idle     bool
	late     bool // the call under way is overdue; its answer will be discarded
	again    bool // a kick came while a round was under way
	good     time.Time
	infoDue  time.Time
	paths    []Path
	omitted  map[string]bool // reasons and fields, as last said
	retryAt  time.Time
	attempts int
	trouble  string // as last reported; empty when well
	ended    bool   // no retry can help
}

func newRun(r *dcgmReceiver, src Source, host component.Host) *run {
	w := newWorker(r.now)
	fields := r.cfg.fields()
	return &run{
		dcgmReceiver: r, host: host, src: src, worker: w,
		session: newSession(src, w, fields, r.cfg.Interval, r.cfg.MaxInterval, r.now),
		build:   newBuilder(r.cfg, r.hostname(), r.resource),
		fleet:   fleet{configured: r.cfg.ExpectedGPUs},
		kick:    make(chan struct{}, 1), results: make(chan round, 1),
		idle: true, good: r.now(), trouble: "starting",
	}
}

func (r *run) loop(ctx context.Context) {
	tick := time.NewTicker(r.cfg.Interval)
	defer tick.Stop()
	r.ask(false)
	for {
		select {
		case <-ctx.Done():
			r.end()
			return
		case <-tick.C:
			r.tick(ctx)
		case <-r.kick:
			if r.idle && r.session.connected { // idle: the session is nobody else's
				r.ask(true)
			} else {
				r.again = true
			}
		case rd := <-r.results:
			r.idle = true
			r.take(ctx, rd)
		}
	}
}

// ask starts a round. It must not be called while one is under way.
func (r *run) ask(live bool) {
	r.idle, r.again = false, false
	r.worker.jobs <- func() { r.results <- r.session.run(live) }
}

func (r *run) tick(ctx context.Context) {
	switch {
	case r.ended:
	case !r.idle:
		if call, overdue := r.worker.overdue(r.cfg.CallTimeout); overdue {
			r.late = true
			r.report(fmt.Errorf("dcgm %s has not answered for %v: the driver or nv-hostengine hangs; values are stale until it answers",
				call, r.cfg.CallTimeout))
			r.emitStale(ctx)
		}
	case r.now().Before(r.retryAt):
		r.emitStale(ctx)
	default:
		r.ask(false)
	}
}

// take judges a round's answer.
func (r *run) take(ctx context.Context, rd round) {
	if r.late { // what it read is as old as its question: ask anew, at once
		r.late = false
		if errors.Is(rd.err, ErrDisconnected) || rd.err == nil {
			r.ask(false)
			return
		}
	}
	if rd.listed {
		ds := rd.inv.Devices
		r.devices.Store(&ds)
	}
	if rd.rewatched {
		r.paths = rd.paths
		r.omit(rd.missing)
	}
	switch {
	case errors.Is(rd.err, errForGood):
		r.ended = true
		r.report(rd.err)
	case rd.err != nil:
		r.report(rd.err)
		if !rd.connected {
			r.retryAt = r.now().Add(r.backoff())
		}
	default:
		r.attempts, r.retryAt = 0, time.Time{}
		if !rd.blank {
			r.good = rd.at
			r.well()
		}
	}
	r.emit(ctx, rd)
	if r.again && rd.connected {
		r.ask(true)
	}
}

// backoff grows from the interval to retry_max, with half of it left to chance, so that a rack does not knock at once.
func (r *run) backoff() time.Duration {
	d := r.cfg.Interval << min(r.attempts, 16)
	if d > r.cfg.RetryMax || d <= 0 {
		d = r.cfg.RetryMax
	}
	r.attempts++
	return d/2 + time.Duration(r.jitter()*float64(d/2))
}

// report says a trouble once: in the log, and as the component's status.
func (r *run) report(err error) {
	if r.trouble == err.Error() {
		return
	}
	r.trouble = err.Error()
	r.log.Warn("dcgm: no good answer", zap.Error(err))
	if r.ended {
		componentstatus.ReportStatus(r.host, componentstatus.NewPermanentErrorEvent(err))
		return
	}
	componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
}

func (r *run) well() {
	if r.trouble == "" {
		return
	}
	r.trouble = ""
	r.log.Info("dcgm answers", zap.Int("gpus", r.fleet.most))
	componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
}

// emit sends what a round brought: values where there are some, and never a value where there are none.
func (r *run) emit(ctx context.Context, rd round) {
	md, t := r.build.begin(rd.at)
	var changed []transition
	if rd.listed {
		all, answering := r.fleet.update(rd.inv.Devices)
		r.build.forget(all, rd.inv)
		r.build.fleet(t, all, answering, r.fleet.expected())
		r.build.switchStatus(t, rd.inv.Switches)
		if !rd.at.Before(r.infoDue) || rd.rewatched {
			r.infoDue = rd.at.Add(infoEvery)
			r.build.info(t, all, rd.inv, r.paths)
		}
		if rd.err == nil {
			r.build.values(t, rd.inv, rd.values)
			if rd.health {
				r.build.health(t, rd.inv, rd.incidents)
			}
			if rd.linked {
				changed = r.build.links(t, rd.inv, rd.links)
			}
		}
	}
	r.build.stale(t, rd.at.Sub(r.good))
	r.tell(ctx, t.at, changed)
	r.send(ctx, md)
}

// omit says once, reason by reason, what is not watched.
func (r *run) omit(missing []Omission) {
	said := r.omitted
	r.omitted = map[string]bool{}
	by := map[string][]uint16{}
	for _, o := range missing {
		by[o.Why] = append(by[o.Why], o.Field)
	}
	for _, why := range slices.Sorted(maps.Keys(by)) {
		key := fmt.Sprint(why, by[why])
		if r.omitted[key] = true; said[key] {
			continue
		}
		if why == "" {
			r.log.Info("this DCGM does not know some fields; they are left out", zap.Uint16s("fields", by[why]))
			continue
		}
		r.log.Warn("dcgm: some fields are left out: "+why, zap.Uint16s("fields", by[why]))
	}
}

// emitStale says how old the last good answer is, and how many GPUs there should be: nothing that was not asked.
func (r *run) emitStale(ctx context.Context) {
	md, t := r.build.begin(r.now())
	r.build.stale(t, r.now().Sub(r.good))
	if n := r.fleet.expected(); n > 0 {
		t.own(semconv.GPUExpected).SetIntValue(int64(n))
	}
	r.send(ctx, md)
}

func (r *run) send(ctx context.Context, md pmetric.Metrics) {
	if r.metrics == nil {
		return
	}
	md.ResourceMetrics().At(0).ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool { return sm.Metrics().Len() == 0 })
	err := r.metrics.ConsumeMetrics(ctx, md)
	switch {
	case err != nil && !r.refused:
		r.log.Warn("dcgm: the pipeline refuses metrics (is the agent running?); readings go on, and this is said once", zap.Error(err))
	case err == nil && r.refused:
		r.log.Info("dcgm: the pipeline takes metrics again")
	}
	r.refused = err != nil
}

// end gives the connection up. Where a call hangs, nobody waits for it: the connection is given up when the call has ended, if
// ever it does, so that a later receiver of this process can have it.
func (r *run) end() {
	closed := make(chan struct{})
	r.worker.jobs <- func() { // after the one under way, whose answer has room in results
		defer close(closed)
		if err := r.src.Close(); err != nil {
			r.log.Debug("dcgm: close", zap.Error(err))
		}
	}
	r.worker.stop()
	wait := r.cfg.CallTimeout
	if !r.idle {
		wait = min(wait, time.Second)
	}
	select {
	case <-closed:
	case <-time.After(wait):
	}
}
