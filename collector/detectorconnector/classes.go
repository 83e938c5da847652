package detectorconnector

import (
	"errors"
	"io/fs"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/detector/class"
	"github.com/pitcrew/pitcrew/detector/durable"
	"github.com/pitcrew/pitcrew/detector/job"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/semconv"
)

// Classes bound what is remembered of workloads; 0 takes the default.
type Classes struct {
	MaxRuns  int `mapstructure:"max_runs"`  // of all classes; default 4096, of some 12 KiB each at most
	PerClass int `mapstructure:"per_class"` // runs of one; default 16
	MaxSteps int `mapstructure:"max_steps"` // entries of a run; default 4096, a longer run halves its resolution
}

// bounds are those of a store; the gateway's name tells its records from those of others.
func (c *Classes) bounds(gateway string) class.Config {
	return class.Config{Writer: gateway, MaxRuns: c.MaxRuns, PerClass: c.PerClass, MaxSteps: c.MaxSteps}
}

// workMetric bears in its attributes what a rank runs and on what.
const workMetric = semconv.TrainInfo

// told is what a rank says of its work.
type told struct {
	job    string
	target event.Target
	work   job.Work
}

func worksOf(rm pmetric.ResourceMetrics) (works []told) {
	res := rm.Resource().Attributes()
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			if m.Name() != workMetric {
				continue
			}
			for _, p := range points(m).All() {
				a := both{p.Attributes(), res}
				s := stepOf(a, p.Timestamp().AsTime())
				works = append(works, told{s.Job, s.Target, job.Work{
					Workload: a.text(semconv.Workload), GPU: a.text(semconv.HWModel), Driver: a.text(semconv.HWDriverVersion), Framework: a.text(semconv.Framework),
				}})
			}
		}
	}
	return works
}

// classFile keeps what was learnt of workloads across restarts.
type classFile struct {
	*durable.File
	path  string
	log   *zap.Logger
	saved int64 // steps that were known when it was written
}

// load takes up what an earlier gateway left. Without it runs are compared with none until their class is known anew.
func (f *classFile) load(s *class.Store) {
	if f.path == "" {
		return
	}
	err := f.Read(func(b []byte) error {
		err := s.Restore(b)
		if err != nil {
			f.log.Warn("what was learnt of workloads is refused; an older one is tried", zap.String("path", f.path), zap.Error(err))
		}
		return err
	})
	n := s.Counts()
	switch {
	case err == nil:
		f.log.Info("workloads of before are known", zap.String("path", f.path), zap.Int64("classes", n.Classes), zap.Int64("runs", n.Runs))
	case errors.Is(err, fs.ErrNotExist):
		f.log.Info("no workloads of before are known", zap.String("path", f.path))
	default:
		f.log.Warn("what was learnt of workloads could not be read; learning anew", zap.Error(err))
	}
}

// ClassExchange is an extension that brings gateways' records of classes to each other.
type ClassExchange interface {
	ExchangeClasses(k bus.ClassKeeper) (stop func())
}

// exchange lets k exchange what it keeps, where the collector has an extension that does.
func exchange(host component.Host, k bus.ClassKeeper) (stop func()) {
	for _, x := range host.GetExtensions() {
		if e, ok := x.(ClassExchange); ok {
			return e.ExchangeClasses(k)
		}
	}
	return func() {}
}

// classKeeper is the store of classes as other gateways see it.
type classKeeper struct{ j *jobs }

// Offers implements bus.ClassKeeper.
func (k classKeeper) Offers() (out []bus.ClassOffer) {
	k.j.mu.Lock()
	defer k.j.mu.Unlock()
	set, gone := k.j.store.Changed(&k.j.ledger, bus.OffersMost)
	k.j.offered = map[string]class.Piece{}
	for _, p := range set {
		k.j.offered[p.ID] = p
		out = append(out, bus.ClassOffer{ClassRecord: bus.ClassRecord{Gateway: k.j.name, ID: p.ID, Raw: p.Raw}})
	}
	for _, id := range gone {
		out = append(out, bus.ClassOffer{ClassRecord: bus.ClassRecord{Gateway: k.j.name, ID: id}, Gone: true})
	}
	return out
}

// Given implements bus.ClassKeeper.
func (k classKeeper) Given(o bus.ClassOffer) {
	k.j.mu.Lock()
	defer k.j.mu.Unlock()
	if o.Gone {
		k.j.ledger.Forgot(o.ID)
		return
	}
	if p, ok := k.j.offered[o.ID]; ok {
		k.j.ledger.Gave(p)
		delete(k.j.offered, o.ID)
	}
}

// Take implements bus.ClassKeeper.
func (k classKeeper) Take(r bus.ClassRecord) error {
	k.j.mu.Lock()
	defer k.j.mu.Unlock()
	return k.j.store.Take(&k.j.ledger, r.Gateway, r.ID, r.Raw, k.j.now().UnixNano())
}

// newClassFile saves what was learned, if anything was since the last time.
func (j *jobs) newClassFile(path string) *durable.File {
	observed := int64(0)
	return durable.NewFile(durable.Options{
		Path: path, Every: saveEvery,
		Content: func(bool) ([]byte, error) {
			j.mu.Lock()
			defer j.mu.Unlock()
			if observed = j.store.Counts().Observed; observed == j.file.saved {
				return nil, nil
			}
			return j.store.Snapshot(), nil
		},
		Written: func() { j.file.saved = observed },
		Failed: func(err error) {
			j.log.Warn("what was learned of workloads could not be saved; a new gateway would learn it again", zap.String("path", path), zap.Error(err))
		},
	})
}
