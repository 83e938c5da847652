package detectorconnector

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/collector/findings"
	"github.com/pitcrew/pitcrew/collector/podresources"
	"github.com/pitcrew/pitcrew/detector"
	"github.com/pitcrew/pitcrew/detector/durable"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/rules"
	"github.com/pitcrew/pitcrew/semconv"
)

const (
	maxNodes   = 1024 // engines; an agent has one
	maxPending = 1024 // findings that the next consumer refused
)

type nodeID struct{ cluster, node, boot string }

// core is what the instances of one configuration share. mu guards all below it.
type core struct {
	cfg     *Config
	log     *zap.Logger
	rules   *rules.Tables
	pods    *podresources.Client
	state   *durable.File
	metrics *selfMetrics

	anomalies *anomalies // nil: off

	instances int // guarded by shared.mu
	release   func() (last bool)

	turn sync.Mutex // from judging to sending; taken before mu

	mu      sync.Mutex
	started bool
	self    nodeID
	engines map[nodeID]*detector.Engine
	saved   map[string][]finding.Open // of the state file, by node, until its engine takes it up
	uuids   map[string]string         // PCI address → GPU UUID, learnt from metrics
	ranks   map[string]rankSeen       // by the GPU that they say they use
	pending []finding.Finding
	lost    int64 // findings dropped because pending was full
}

func newCore(set connector.Settings, cfg *Config) (*core, error) {
	t, err := rules.Builtin()
	if err == nil && cfg.RulesOverride != "" {
		t, err = t.LoadOverride(cfg.RulesOverride)
	}
	if err != nil {
		return nil, err
	}
	c := &core{
		cfg: cfg, log: set.Logger, rules: t, engines: map[nodeID]*detector.Engine{}, uuids: map[string]string{}, ranks: map[string]rankSeen{},
		self: nodeID{cluster: cfg.Cluster, node: cfg.Node},
	}
	if c.self.node == "" {
		if c.self.node, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("node has no name (set node): %w", err)
		}
	}
	boot, err := os.ReadFile(cfg.BootIDFile)
	if err != nil {
		return nil, fmt.Errorf("boot_id_file: %w", err)
	}
	c.self.boot = strings.TrimSpace(string(boot))
	api := cfg.Kubernetes
	api.Node = c.self.node
	if c.pods, err = podresources.Open(cfg.PodResourcesSocket, api, set.Logger); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	c.state = newStateFile(cfg.StateFile, c.snapshot, set.Logger)
	if cfg.Anomalies.Enabled && cfg.Scope == ScopeNode {
		if c.anomalies, err = newAnomalies(cfg, c.self, set.Logger); err != nil {
			return nil, err
		}
	}
	c.metrics, err = newSelfMetrics(set.TelemetrySettings, c.sum, c.anomalies)
	return c, err
}

// Start is called by each instance; the first one starts the core.
func (c *core) Start(_ context.Context, host component.Host) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		return nil
	}
	c.started = true
	var err error
	if c.saved, err = loadState(c.state); err != nil { // without it the worst is that a lasting fault is said again
		c.log.Warn("open findings of before could not be read; starting without them", zap.Error(err))
	}
	c.state.Start()
	c.pods.Start()
	if c.anomalies != nil {
		c.pending = append(c.pending, c.anomalies.start(host)...)
	}
	return nil
}

// Shutdown is called by each instance; the last one ends the core.
func (c *core) Shutdown(context.Context) error {
	if !c.release() {
		return nil
	}
	c.state.Stop()
	if c.anomalies != nil {
		c.anomalies.stop()
	}
	c.pods.Stop()
	return c.metrics.close()
}

// engine gives the engine of the node that the resource names; nil beyond the bound. The caller holds mu.
func (c *core) engine(res pcommon.Map) *detector.Engine {
	id := c.self
	if v := text(res, semconv.K8sClusterName); v != "" {
		id.cluster = v
	}
	if v := text(res, semconv.K8sNodeName); v != "" && v != id.node {
		id.node, id.boot = v, text(res, semconv.HostBootID)
	}
	if e, ok := c.engines[id]; ok {
		return e
	}
	if len(c.engines) >= maxNodes {
		return nil
	}
	e := detector.New(detector.Options{
		Cluster: id.cluster, Node: id.node, BootID: id.boot, Rules: c.rules, StallFloor: c.cfg.StallFloor, StallFactor: c.cfg.StallFactor,
		SetupLimit: c.cfg.SetupLimit, HeartbeatLimit: c.cfg.HeartbeatLimit, MaxSeries: c.cfg.MaxSeries,
	})
	back := e.Restore(c.saved[id.node])
	for _, f := range back { // a line of the kernel log may have the address alone
		if t := f.Event.Data.Target; t.PCI != "" && t.GPU != "" && len(c.uuids) < detector.DefaultMaxSeries {
			c.uuids[t.PCI] = t.GPU
		}
	}
	c.pending = append(c.pending, back...) // they go out with what this call finds
	delete(c.saved, id.node)
	c.engines[id] = e
	return e
}

// emit judges and sends on what it finds, with what was refused before. One call at a time: if the end of a finding overtook its beginning, its
// condition would stay set. What is refused waits for the next call: the engine will not find it again. The caller does not hold mu.
func (c *core) emit(ctx context.Context, next consumer.Logs, find func() []finding.Finding) {
	c.turn.Lock()
	defer c.turn.Unlock()
	news := find()
	c.mu.Lock()
	found := append(c.pending, news...)
	c.pending = nil
	c.mu.Unlock()
	if len(found) == 0 {
		return
	}
	err := next.ConsumeLogs(ctx, c.records(ctx, found))
	c.state.Changed()
	if err == nil {
		return
	}
	c.log.Error("findings were refused; they are sent again with the next", zap.Int("findings", len(found)), zap.Error(err))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = append(found, c.pending...)
	if over := len(c.pending) - maxPending; over > 0 {
		c.pending = c.pending[over:]
		c.lost += int64(over)
	}
}

func (c *core) records(ctx context.Context, found []finding.Finding) plog.Logs {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	for i := range found {
		c.enrich(ctx, &found[i].Event)
	}
	logs, err := findings.Records(found)
	if err != nil {
		c.log.Error("findings dropped", zap.Error(err))
	}
	return logs
}

// snapshot lists what is open, by node.
func (c *core) snapshot() map[string][]finding.Open {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string][]finding.Open{}
	for node, open := range c.saved { // not taken up yet
		out[node] = open
	}
	for id, e := range c.engines {
		if open := e.Snapshot(); len(open) > 0 {
			out[id.node] = append(out[id.node], open...)
		}
	}
	return out
}
