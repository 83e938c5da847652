package torchreceiver

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/semconv"
)

// FleetProvider is an extension that already watches the node's training pods. Where the host has one, the receiver reads
// through it, so that each socket has one connection.
type FleetProvider interface{ Fleet() *hook.Fleet }

type torchReceiver struct {
	cfg     *Config
	log     *zap.Logger
	obs     *receiverhelper.ObsReport
	refused metric.Int64Counter
	forget  func()
	bootID  string
	clock   clock
	claims  claims
	ration  *ration
	shedder *shedder

	metrics consumer.Metrics // nil: in no such pipeline
	logs    consumer.Logs

	start, stop sync.Once
	fleet       *hook.Fleet
	ownFleet    bool
	unsubscribe func()
	cancel      context.CancelFunc
	tasks       sync.WaitGroup
	said        map[string]*saying // of pods, of the event goroutine
	reported    time.Time          // when excesses were reported as metrics; of the sampling goroutine
}

func newReceiver(set receiver.Settings, cfg *Config, forget func()) (*torchReceiver, error) {
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{ReceiverID: set.ID, Transport: "file", ReceiverCreateSettings: set})
	if err != nil {
		return nil, err
	}
	refused, err := set.MeterProvider.Meter(ScopeName).Int64Counter(semconv.TorchRefused, metric.WithUnit("{problem}"),
		metric.WithDescription("Rings, sockets and messages that were refused or could not be read"))
	if err != nil {
		return nil, fmt.Errorf("metric pitcrew.torch.refused: %w", err)
	}
	r := &torchReceiver{
		cfg: cfg, log: set.Logger, obs: obs, refused: refused, forget: forget, bootID: bootID(), said: map[string]*saying{}, ration: newRation(cfg),
	}
	r.shedder = newShedder(cfg.MemoryLimitMiB, r.ration)
	return r, nil
}

// bootID names this boot of the kernel; the clock of the rings starts with it. Empty where the kernel does not tell.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Start implements component.Component. The first of the pipelines starts the instance.
func (r *torchReceiver) Start(_ context.Context, host component.Host) error {
	r.start.Do(func() {
		for _, e := range host.GetExtensions() {
			if p, ok := e.(FleetProvider); ok {
				r.fleet = p.Fleet()
				break
			}
		}
		if r.fleet == nil {
			r.fleet, r.ownFleet = hook.NewFleet(hook.FleetOptions{KubeletRoot: r.cfg.KubeletRoot, Budget: r.cfg.Budget}), true
			r.fleet.Start()
		}
		var ctx context.Context
		ctx, r.cancel = context.WithCancel(context.Background())
		r.unsubscribe = r.fleet.Subscribe(func(e hook.Event) { r.event(ctx, e) })
		if r.metrics != nil {
			r.tasks.Go(func() { r.sampleEvery(ctx) })
		}
	})
	return nil
}

// Shutdown implements component.Component.
func (r *torchReceiver) Shutdown(context.Context) error {
	r.stop.Do(func() {
		r.forget()
		if r.cancel == nil {
			return // never started
		}
		r.cancel()
		r.unsubscribe()
		r.tasks.Wait()
		if r.ownFleet {
			r.fleet.Close()
		}
	})
	return nil
}

func (r *torchReceiver) resource(to pcommon.Resource) {
	for name, value := range map[string]string{semconv.K8sClusterName: r.cfg.Cluster, semconv.K8sNodeName: r.cfg.Node, semconv.HostBootID: r.bootID} {
		if value != "" {
			to.Attributes().PutStr(name, value)
		}
	}
}

// Bounds of logging what was refused: a pod chooses how often, and with which words, it goes wrong.
const (
	sayEvery = time.Minute // each pod has sayBurst lines in it
	sayBurst = 10
	maxSaid  = 1000 // pods that are remembered
	maxText  = 255  // bytes of one problem
)

// saying is what was logged of one pod since a time.
type saying struct {
	since time.Time
	lines map[string]bool
	more  int // lines that were left out
}

// problem counts what was refused and logs it: of one pod, each text at most once a minute and ten texts at most.
func (r *torchReceiver) problem(pod string, err error) {
	r.refused.Add(context.Background(), 1)
	now, text := time.Now(), hook.Clip(err.Error(), maxText)
	s := r.said[pod]
	if s == nil || now.Sub(s.since) >= sayEvery {
		if s != nil && s.more > 0 {
			r.log.Warn("more problems of this pod were not logged", zap.String(semconv.K8sPodUID, pod), zap.Int("problems", s.more))
		}
		if len(r.said) >= maxSaid {
			clear(r.said)
		}
		s = &saying{since: now, lines: map[string]bool{}}
		r.said[pod] = s
	}
	if s.lines[text] {
		return
	}
	if len(s.lines) >= sayBurst {
		s.more++
		return
	}
	s.lines[text] = true
	r.log.Warn("refused", zap.String(semconv.K8sPodUID, pod), zap.String("error", text))
}
