package natsexporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/collector/findings"
	"github.com/pitcrew/pitcrew/event"
)

const sayMissingAfter = 2 * time.Second // that NATS is not there

type natsExporter struct {
	cfg     *Config
	log     *zap.Logger
	slog    *slog.Logger
	metrics *selfMetrics

	bus        *bus.Bus
	publisher  *bus.Publisher
	memory     *bus.Publisher // takes what the spool cannot, for example on a full disk; the same one without a spool
	conditions *conditions
	ready      atomic.Bool // all above is set
	stop       context.CancelFunc
	group      sync.WaitGroup
}

func newExporter(set exporter.Settings, cfg *Config) (*natsExporter, error) {
	x := &natsExporter{cfg: cfg, log: set.Logger, slog: slog.New(zapHandler{log: set.Logger})}
	var err error
	x.metrics, err = newSelfMetrics(set.TelemetrySettings, x.counts)
	return x, err
}

// Start connects in the background: a missing NATS is no error.
func (x *natsExporter) Start(_ context.Context, host component.Host) error {
	b, err := bus.Connect(bus.Options{
		URL: x.cfg.URL, Cluster: x.cfg.Cluster, Name: "pitcrew-collector " + x.cfg.Node, Creds: x.cfg.Creds, Token: string(x.cfg.Token), TokenFile: x.cfg.TokenFile,
		Replicas: x.cfg.Replicas, Logger: x.slog,
	})
	if err != nil {
		return err
	}
	x.bus = b
	ack := func(_ event.Message, d time.Duration) { x.metrics.acked(d) }
	if x.memory, err = b.NewPublisher("", ack); err != nil {
		b.Close()
		return err
	}
	x.publisher = x.memory
	if x.cfg.Spool != "" {
		if p, err := b.NewPublisher(x.cfg.Spool, ack); err != nil {
			x.log.Warn("findings are kept in memory only and would not survive a restart (make the spool folder writable)", zap.Error(err))
		} else {
			x.publisher = p
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	x.stop = cancel
	x.conditions = newConditions(b, x.log)
	x.ready.Store(true)
	x.group.Go(func() { x.conditions.run(ctx) })
	x.group.Go(func() { x.greet(ctx, host) })
	return nil
}

// greet says in one line what is missing, or that nothing is.
func (x *natsExporter) greet(ctx context.Context, host component.Host) {
	short, cancel := context.WithTimeout(ctx, sayMissingAfter)
	defer cancel()
	err := x.bus.Wait(short)
	if err == nil || ctx.Err() != nil {
		return
	}
	err = fmt.Errorf("findings wait until NATS is there (PITCREW_NATS): %w", err)
	x.log.Warn(err.Error(), zap.String("spool", x.cfg.Spool))
	componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(err))
	if x.bus.Wait(ctx) == nil {
		x.log.Info("connected to NATS", zap.String("url", bus.Redacted(x.cfg.URL)))
		componentstatus.ReportStatus(host, componentstatus.NewEvent(componentstatus.StatusOK))
	}
}

func (x *natsExporter) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// ConsumeLogs takes findings. It does not wait for NATS; only what can never be published is an error, and is said and counted
// here, since sending it again would not help.
func (x *natsExporter) ConsumeLogs(_ context.Context, ld plog.Logs) error {
	for _, rl := range ld.ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, r := range sl.LogRecords().All() {
				x.consume(r)
			}
		}
	}
	return nil
}

func (x *natsExporter) consume(r plog.LogRecord) {
	f, err := findings.Read(r)
	if err != nil {
		x.refuse(r, err)
		return
	}
	if !f.ConditionOnly {
		if err := x.publisher.PublishMessage(f.Message); err != nil {
			x.log.Error("finding could not be spooled; it is kept in memory", zap.String("id", f.ID), zap.Error(err))
			_ = x.memory.PublishMessage(f.Message) // without a spool nothing can fail
		}
	}
	if f.Key != "" {
		x.conditions.set(bus.Condition{
			Node: f.Node, Gateway: event.GatewayOf(f.Source), Key: f.Key, Active: f.Active, Since: f.Time, BootID: f.BootID, Raw: f.Raw,
		})
	}
}

func (x *natsExporter) refuse(r plog.LogRecord, err error) {
	x.metrics.refused.Add(1)
	x.log.Error("log record is no finding; dropped", zap.String("event_name", r.EventName()), zap.Error(err))
}

// Shutdown flushes for as long as the configuration allows; what is left stays in the spool.
func (x *natsExporter) Shutdown(ctx context.Context) error {
	defer x.metrics.close()
	if !x.ready.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, x.cfg.FlushTimeout)
	defer cancel()
	x.conditions.flush(ctx)
	x.stop()
	x.group.Wait()
	err := x.publisher.Close(ctx)
	if x.memory != x.publisher {
		err = errors.Join(err, x.memory.Close(ctx))
	}
	x.bus.Close()
	if err != nil {
		x.log.Warn("NATS did not take everything before the end", zap.String("spool", x.cfg.Spool), zap.Error(err))
	}
	return nil
}

func (x *natsExporter) counts() (c bus.Counts, waiting int64) {
	if !x.ready.Load() {
		return c, 0
	}
	c = x.publisher.Counts()
	if x.memory != x.publisher {
		m := x.memory.Counts()
		c.Sent, c.Acked, c.Failed, c.Dropped, c.Waiting = c.Sent+m.Sent, c.Acked+m.Acked, c.Failed+m.Failed, c.Dropped+m.Dropped, c.Waiting+m.Waiting
	}
	return c, x.conditions.waiting()
}
