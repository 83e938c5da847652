package detectorconnector

import (
	"errors"
	"io/fs"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/anomaly"
	"github.com/pitcrew/pitcrew/detector/durable"
	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/semconv"
)

// StatementSource is an extension that knows what people said of the findings made here: the pilot of an agent, statements of a gateway.
type StatementSource interface {
	FollowStatements(handle func([]bus.Statement)) (stop func())
}

// follow lets say hear what people said, where the collector has an extension that knows.
func follow(host component.Host, say func([]statement.Statement)) (stop func()) {
	for _, x := range host.GetExtensions() {
		if s, ok := x.(StatementSource); ok {
			return s.FollowStatements(func(all []bus.Statement) {
				out := make([]statement.Statement, len(all))
				for i, s := range all {
					out[i] = statement.Statement{Verb: statement.Verb(s.Verb), Node: s.Node, Key: s.Key, By: s.By, Reason: s.Reason, At: s.At, Until: s.Until}
				}
				say(out)
			})
		}
	}
	return func() {}
}

const (
	saveEvery  = time.Minute // what was learnt
	saveOpen   = time.Second // what is open, after it changed
	unknownInt = -1
)

// anomalies is the statistical part of a node: an engine and its state on disk. It has a lock of its own, so that a certain fault
// never waits for it.
type anomalies struct {
	self nodeID
	log  *zap.Logger
	now  func() time.Time

	mu    sync.Mutex
	e     *anomaly.Engine
	other int64 // values of other nodes, which are not judged

	unfollow func()
	file     *durable.File
}

func newAnomalies(cfg *Config, self nodeID, log *zap.Logger) (*anomalies, error) {
	e, err := anomaly.New(anomaly.Options{
		Cluster: self.cluster, Node: self.node, BootID: self.boot, Asked: cfg.Anomalies.AskedRate, MaxSeries: cfg.Anomalies.MaxSeries, MaxContexts: cfg.Anomalies.MaxContexts,
	})
	if err != nil {
		return nil, err
	}
	a := &anomalies{self: self, log: log, now: time.Now, e: e, unfollow: func() {}}
	a.file = durable.NewFile(durable.Options{
		Path: cfg.Anomalies.StateFile, After: saveOpen, Every: saveEvery,
		Content: func(bool) ([]byte, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.e.Snapshot(), nil
		},
		Failed: func(err error) {
			log.Warn("what was learned could not be saved; a new agent would learn it again", zap.String("path", cfg.Anomalies.StateFile), zap.Error(err))
		},
	})
	return a, nil
}

// start takes up what an earlier agent left, and gives the conditions that are to be set again.
func (a *anomalies) start(host component.Host) (found []finding.Finding) {
	err := a.file.Read(func(b []byte) (err error) {
		found, err = a.e.Restore(b)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without it series are unknown for a while, and a lasting finding may be said again
		a.log.Warn("what was learnt of before could not be read; learning anew", zap.Error(err))
	}
	a.file.Start()
	a.unfollow = follow(host, a.say)
	return found
}

func (a *anomalies) stop() {
	a.unfollow()
	a.file.Stop()
}

func (a *anomalies) say(all []statement.Statement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.e.Say(all)
}

// judge takes in one batch. Values of another node than this one are counted and not judged.
func (a *anomalies) judge(md pmetric.Metrics) []finding.Finding {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, rm := range md.ResourceMetrics().All() {
		res := rm.Resource().Attributes()
		if node := text(res, semconv.K8sNodeName); node != "" && node != a.self.node {
			a.other++
			continue
		}
		base := anomaly.Labels{Rank: unknownInt, Local: unknownInt}
		read(&base, res, "")
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				known := anomaly.Lookup(m.Name())
				if known == nil {
					continue
				}
				for _, p := range points(m).All() {
					if p.Flags().NoRecordedValue() || partial(p.Attributes()) {
						continue
					}
					l := base
					read(&l, p.Attributes(), known.Attr)
					a.e.Put(known, l, int64(p.Timestamp()), value(p))
				}
			}
		}
	}
	found := a.e.End(a.now())
	if a.e.Changed() {
		a.file.Changed()
	}
	return found
}

// partial says whether a value is of a part of a GPU that no signal is about: a MIG instance, an encoder or a decoder.
func partial(attrs pcommon.Map) bool {
	if _, instance := attrs.Get(semconv.HWParent); instance {
		return true
	}
	task, ok := attrs.Get(semconv.HWGPUTask)
	return ok && task.Str() != "general"
}

// read takes the labels of a point or resource in one pass.
func read(l *anomaly.Labels, attrs pcommon.Map, own string) {
	for k, v := range attrs.All() {
		switch k {
		case semconv.HWID:
			l.GPU = v.AsString()
		case semconv.HWPCI:
			l.PCI = v.AsString()
		case semconv.K8sPodUID:
			l.PodUID = v.AsString()
		case semconv.K8sPodName:
			l.Pod = v.AsString()
		case semconv.K8sNamespaceName:
			l.Namespace = v.AsString()
		case semconv.Rank:
			l.Rank = whole(v)
		case semconv.LocalRank:
			l.Local = whole(v)
		case semconv.WorldSize:
			l.WorldSize = whole(v)
		case semconv.Attempt:
			l.Attempt = max(whole(v), 0)
		}
		if k == own && own != "" {
			l.Value = v.AsString()
		}
	}
}

func whole(v pcommon.Value) int64 {
	switch v.Type() {
	case pcommon.ValueTypeInt:
		return v.Int()
	case pcommon.ValueTypeDouble:
		return int64(v.Double())
	}
	return unknownInt
}

// counts are the engine's, for the collector's own metrics.
func (a *anomalies) counts() (anomaly.Counts, []anomaly.SignalCounts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.e.Counts()
	c.Refused += a.other
	return c, a.e.Signals()
}
