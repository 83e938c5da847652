package fabricreceiver

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/semconv"
)

const (
	listEvery   = 30 * time.Second // for adapters that come and go
	maxAdapters = 64
	endWithin   = 2 * time.Second // Shutdown waits no longer for an adapter that hangs
	sayAgain    = time.Hour       // of trouble that stands as it was said
)

// fabricReceiver serves the metrics and the logs pipeline of one configuration.
type fabricReceiver struct {
	set     receiver.Settings
	cfg     *Config
	now     func() time.Time
	metrics consumer.Metrics
	logs    consumer.Logs
	forget  func()

	startOnce, stopOnce sync.Once
	host                component.Host
	cancel              context.CancelFunc
	dir                 string
	listing             sync.WaitGroup
	workers             sync.WaitGroup

	mu     sync.Mutex
	read   map[string]context.CancelFunc // adapters that are read, by name
	failed map[string]failure            // those of which the last attempt failed
}

// failure is what was last said of an adapter's trouble.
type failure struct {
	text string
	at   time.Time
}

func newReceiver(set receiver.Settings, cfg *Config) *fabricReceiver {
	return &fabricReceiver{set: set, cfg: cfg, now: time.Now, forget: func() {}, read: map[string]context.CancelFunc{}, failed: map[string]failure{}}
}

// Start begins to read the adapters that there are, and to look for new ones. It is called once for each pipeline.
func (r *fabricReceiver) Start(_ context.Context, host component.Host) error {
	r.startOnce.Do(func() {
		r.host = host
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		r.listing.Go(func() {
			t := time.NewTicker(listEvery)
			defer t.Stop()
			for {
				r.list(ctx)
				select {
				case <-ctx.Done():
					return
				case <-t.C:
				}
			}
		})
	})
	return nil
}

// Shutdown ends the reading. An adapter whose firmware hangs is not waited for: its goroutine ends when the kernel lets it go.
func (r *fabricReceiver) Shutdown(context.Context) error {
	r.stopOnce.Do(func() {
		r.forget()
		if r.cancel == nil {
			return
		}
		r.cancel()
		r.listing.Wait()
		ended := make(chan struct{})
		go func() { r.workers.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(endWithin):
			r.set.Logger.Warn("an adapter does not answer; its last question is left behind")
		}
		_ = os.RemoveAll(r.dir)
	})
	return nil
}

// list begins to read adapters that are new, and ends it for those that are gone.
func (r *fabricReceiver) list(ctx context.Context) {
	names, err := adapters(r.cfg.Sys)
	if err != nil {
		r.trouble("", err)
		return
	}
	if len(names) > 0 && r.dir == "" {
		if r.dir, err = os.MkdirTemp("", "pitcrew-fabric-"); err != nil {
			r.trouble("", err)
			return
		}
	}
	r.trouble("", nil)
	for name, err := range r.take(ctx, names) {
		r.trouble(name, err)
	}
}

// take begins and ends the reading by who is there, and returns the trouble of those that cannot be opened; nil where one that could not is gone.
func (r *fabricReceiver) take(ctx context.Context, names []string) map[string]error {
	here, troubles := map[string]bool{"": true}, map[string]error{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		here[name] = true
		if _, known := r.read[name]; known || len(r.read) >= maxAdapters {
			continue
		}
		a, err := openAdapter(r.cfg.Sys, r.dir, name)
		if err != nil {
			troubles[name] = fmt.Errorf("adapter %s cannot be opened: %w", name, err)
			continue
		}
		own, cancel := context.WithCancel(ctx)
		r.read[name] = cancel
		r.workers.Go(func() { r.follow(ctx, own, a) })
	}
	for name, cancel := range r.read {
		if !here[name] {
			cancel()
			delete(r.read, name)
			here[name] = true // its goroutine says its end
		}
	}
	for name := range r.failed {
		if !here[name] {
			troubles[name] = nil
		}
	}
	return troubles
}

// follow reads one adapter until own ends. Where that is because the adapter is gone, and not everything with ctx, it says so last.
func (r *fabricReceiver) follow(ctx, own context.Context, a *adapter) {
	t := time.NewTicker(r.cfg.StateInterval)
	defer t.Stop()
	for {
		r.look(own, a)
		select {
		case <-own.Done():
		case <-t.C:
		}
		if own.Err() == nil {
			continue
		}
		if ctx.Err() == nil {
			a.resume = time.Time{}
			r.look(ctx, a)
			r.trouble(a.name, nil)
		}
		return
	}
}

// look reads an adapter's states and, when they are due, its counters.
func (r *fabricReceiver) look(ctx context.Context, a *adapter) {
	now := r.now()
	changes, err := a.states(now)
	r.say(ctx, a, changes, now)
	if err == nil && !now.Before(a.next) {
		d, more, cerr := a.counters(now)
		if err = cerr; d != nil {
			a.next = now.Add(r.cfg.Interval)
			r.say(ctx, a, more, now)
			if r.metrics != nil {
				if err := r.metrics.ConsumeMetrics(ctx, r.metricsOf(a, d, now)); err != nil && ctx.Err() == nil {
					r.set.Logger.Debug("metrics dropped", zap.Error(err))
				}
			}
		}
	}
	if !now.Before(a.resume) || err != nil {
		r.trouble(a.name, err)
	}
}

// trouble keeps the component's status: one adapter that fails is trouble, and said once until it is another, well again, or an hour has passed.
func (r *fabricReceiver) trouble(adapter string, err error) {
	now := r.now()
	r.mu.Lock()
	last, was := r.failed[adapter]
	say := false
	if err == nil {
		delete(r.failed, adapter)
	} else if say = last.text != err.Error() || now.Sub(last.at) >= sayAgain; say {
		r.failed[adapter] = failure{err.Error(), now}
	}
	left := len(r.failed)
	r.mu.Unlock()
	switch {
	case say:
		r.set.Logger.Warn("the fabric cannot be read", zap.String("adapter", adapter), zap.Error(err))
		componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
	case err == nil && was && left == 0:
		componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
	}
}

func (r *fabricReceiver) say(ctx context.Context, a *adapter, changes []change, now time.Time) {
	if r.logs == nil || len(changes) == 0 {
		return
	}
	logs := plog.NewLogs()
	rl := logs.ResourceLogs().AppendEmpty()
	r.resource(rl.Resource())
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(scope)
	for _, c := range changes {
		rec := sl.LogRecords().AppendEmpty()
		rec.SetEventName(semconv.EventFabricPort)
		rec.SetTimestamp(pcommon.NewTimestampFromTime(now))
		rec.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
		rec.SetSeverityNumber(plog.SeverityNumberInfo)
		to := rec.Attributes()
		a.identify(to, c.port, c.layer)
		if n, err := strconv.ParseInt(c.port, 10, 32); err == nil {
			to.PutInt(semconv.FabricPort, n)
		}
		to.PutStr(semconv.FabricState, c.state)
		if c.phys != "" {
			to.PutStr(semconv.FabricPhysState, c.phys)
		}
		if c.before != "" {
			to.PutStr(semconv.FabricStateBefore, c.before)
		}
		if c.downs > 0 {
			to.PutInt(semconv.Count, int64(min(c.downs, 1<<31)))
		}
	}
	if err := r.logs.ConsumeLogs(ctx, logs); err != nil && ctx.Err() == nil {
		r.set.Logger.Warn("the pipeline did not take a change of a port", zap.Error(err))
		for _, c := range changes { // so that the next look says it again
			if p := a.ports[c.port]; p != nil && c.downs == 0 {
				p.state = c.before
			}
		}
	}
}

func (r *fabricReceiver) resource(to pcommon.Resource) {
	for _, kv := range [][2]string{{semconv.K8sClusterName, r.cfg.Cluster}, {semconv.K8sNodeName, r.cfg.Node}} {
		if kv[1] != "" {
			to.Attributes().PutStr(kv[0], kv[1])
		}
	}
}
