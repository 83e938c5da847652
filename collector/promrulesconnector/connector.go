package promrulesconnector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/collector/findings"
	"github.com/pitcrew/pitcrew/detector/durable"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/promrules"
)

// tick is how often it is looked whether a group is due.
const tick = time.Second

// maxPending bounds findings that the next consumer refused.
const maxPending = 1024

type rulesConnector struct {
	cfg    *Config
	log    *zap.Logger
	next   consumer.Logs
	runner *promrules.Runner // nil: no files
	now    func() time.Time
	own    *selfMetrics
	file   *durable.File

	mu    sync.Mutex // guards names
	names *namer

	eval    sync.Mutex // guards the runner's evaluation, and pending
	pending []finding.Finding

	stop  context.CancelFunc // nil: not started, or ended
	ended sync.WaitGroup
}

func newConnector(set connector.Settings, cfg *Config, next consumer.Logs) (*rulesConnector, error) {
	c := &rulesConnector{cfg: cfg, log: set.Logger, next: next, now: time.Now, names: newNamer()}
	c.file = c.newFile()
	files, err := cfg.found()
	if err != nil || len(files) == 0 {
		return c, err
	}
	node := cfg.Node
	if node == "" {
		if node, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("node has no name (set node): %w", err)
		}
	}
	c.runner, err = promrules.New(promrules.Options{
		Files: files, Cluster: cfg.Cluster, Speaker: node, Window: cfg.Window, Interval: cfg.Interval, MaxSeries: cfg.MaxSeries,
		Warn: func(rule string, err error) { set.Logger.Warn("rule", zap.String("rule", rule), zap.Error(err)) },
	})
	if err != nil {
		return nil, err
	}
	c.own, err = newSelfMetrics(set.TelemetrySettings, c.counts)
	return c, err
}

func (c *rulesConnector) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

// Start takes up what was firing before, and evaluates from then on.
func (c *rulesConnector) Start(context.Context, component.Host) error {
	if c.runner == nil {
		c.log.Info("no rule files are given (files); nothing is evaluated")
		return nil
	}
	if err := c.restore(); err != nil { // without it the worst is that a lasting alert is said again
		c.log.Warn("firing alerts of before could not be read; starting without them", zap.Error(err))
	}
	counts, _ := c.counts()
	c.log.Info("rules are loaded", zap.Int("groups", counts.Groups), zap.Int("rules", counts.Rules))
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	c.ended.Go(func() {
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				c.evaluate(ctx)
			}
		}
	})
	return nil
}

func (c *rulesConnector) evaluate(ctx context.Context) {
	c.eval.Lock()
	defer c.eval.Unlock()
	found := c.runner.Evaluate(ctx, c.now())
	if len(found) > 0 {
		defer c.file.Save()
	}
	if c.pending = append(c.pending, found...); len(c.pending) == 0 {
		return
	}
	logs, err := findings.Records(c.pending)
	if err != nil {
		c.log.Error("some findings were dropped", zap.Error(err))
	}
	if err := c.next.ConsumeLogs(ctx, logs); err != nil {
		c.log.Error("findings were refused; they are sent again with the next", zap.Int("findings", len(c.pending)), zap.Error(err))
		c.pending = c.pending[max(0, len(c.pending)-maxPending):]
		return
	}
	c.pending = nil
}

// ConsumeMetrics keeps the values that a rule asks for.
func (c *rulesConnector) ConsumeMetrics(_ context.Context, md pmetric.Metrics) error {
	if c.runner == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rm := range md.ResourceMetrics().All() {
		var res []string
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				name := c.names.metric(m)
				if name == "" {
					continue
				}
				w := writer{c: c, name: name, res: func() []string {
					if res == nil {
						res = c.names.add(make([]string, 0, 32), rm.Resource().Attributes())
					}
					return res
				}}
				w.write(m)
			}
		}
	}
	return nil
}

// Shutdown ends the evaluation and keeps what fires.
func (c *rulesConnector) Shutdown(context.Context) error {
	if c.stop == nil {
		return nil
	}
	c.stop()
	c.stop = nil
	c.ended.Wait()
	c.file.Save()
	return errors.Join(c.own.close(), c.runner.Close())
}

func (c *rulesConnector) restore() error {
	var open []promrules.Open
	err := c.file.Read(func(b []byte) error { return json.Unmarshal(b, &open) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		c.runner.Restore(open, c.now())
	}
	return err
}

// newFile keeps what fires. It is saved by whoever evaluates, or after that has ended.
func (c *rulesConnector) newFile() *durable.File {
	return durable.NewFile(durable.Options{
		Path: c.cfg.StateFile, Content: func(bool) ([]byte, error) { return json.Marshal(c.runner.Snapshot()) },
		Failed: func(err error) {
			c.log.Warn("firing alerts could not be kept; after a restart they would be reported again (make the folder writable)",
				zap.String("file", c.cfg.StateFile), zap.Error(err))
		},
	})
}

func (c *rulesConnector) counts() (promrules.Counts, promrules.WindowCounts) {
	c.eval.Lock()
	defer c.eval.Unlock()
	return c.runner.Counts()
}
