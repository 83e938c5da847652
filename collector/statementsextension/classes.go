package statementsextension

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/semconv"
)

const (
	classesEvery = 5 * time.Minute  // at which what changed is given
	classesAgain = 10 * time.Second // after which what broke is tried again: the bucket may not be there yet
)

// exchange gives a gateway's records of classes to the cluster's other gateways, and takes in theirs.
type exchange struct {
	log    *zap.Logger
	reg    metric.Registration
	given  atomic.Int64
	taken  atomic.Int64
	failed atomic.Int64 // refused
}

func newExchange(log *zap.Logger, meter metric.Meter) (*exchange, error) {
	x := &exchange{log: log}
	given, err1 := meter.Int64ObservableCounter(semconv.ClassesGiven, metric.WithUnit("{record}"), metric.WithDescription("Records of runs that were given to other gateways, each version"))
	taken, err2 := meter.Int64ObservableCounter(semconv.ClassesTaken, metric.WithUnit("{record}"), metric.WithDescription("Records of runs that were taken in, each version, the gateway's own of before among them"))
	failed, err3 := meter.Int64ObservableCounter(semconv.ClassesRefused, metric.WithUnit("{record}"), metric.WithDescription("Records that are malformed, of another version, of the future, or lie where another gateway may write"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("classes' own metrics: %w", err)
	}
	var err error
	x.reg, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(given, x.given.Load())
		o.ObserveInt64(taken, x.taken.Load())
		o.ObserveInt64(failed, x.failed.Load())
		return nil
	}, given, taken, failed)
	return x, err
}

// ExchangeClasses exchanges what k keeps until stop, which waits for its end. The extension has to be started.
func (g *gateway) ExchangeClasses(k bus.ClassKeeper) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	known := make(chan struct{}) // what is there was taken in: it tells what need not be given
	var once sync.Once
	work.Go(func() {
		g.classes.keepOn(ctx, "the records of other gateways cannot be followed", func() error {
			if err := g.bus.Wait(ctx); err != nil {
				return err
			}
			return g.bus.WatchClasses(ctx, func() { once.Do(func() { close(known) }) }, func(r bus.ClassRecord) { g.classes.take(k, r) }, g.classes.refuse)
		})
	})
	work.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-known:
		}
		t := time.NewTicker(g.every)
		defer t.Stop()
		for {
			g.classes.keepOn(ctx, "records of runs cannot be given to other gateways", func() error { return g.classes.give(ctx, g.bus, k) })
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
		}
	})
	return func() {
		cancel()
		work.Wait()
	}
}

// keepOn does until it succeeds or ctx ends. Trouble is said when it begins.
func (x *exchange) keepOn(ctx context.Context, what string, do func() error) {
	for said := false; ctx.Err() == nil; {
		err := do()
		if err == nil || ctx.Err() != nil {
			return
		}
		if !said {
			said = true
			x.log.Warn(what+"; trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(classesAgain):
		}
	}
}

func (x *exchange) take(k bus.ClassKeeper, r bus.ClassRecord) {
	if err := k.Take(r); err != nil {
		x.refuse(r.Gateway+" "+r.ID, err)
		return
	}
	x.taken.Add(1)
}

func (x *exchange) refuse(key string, err error) {
	if x.failed.Add(1) == 1 { // the count tells of the others: who forges one can forge many
		x.log.Warn("a record of a run is refused; pitcrew.classes.refused counts those after it", zap.String("key", key), zap.Error(err))
	}
}

func (x *exchange) give(ctx context.Context, b *bus.Bus, k bus.ClassKeeper) error {
	offers := k.Offers()
	for _, o := range offers {
		var err error
		if o.Gone {
			err = b.RemoveClass(ctx, o.Gateway, o.ID)
		} else {
			err = b.SetClass(ctx, o.ClassRecord)
		}
		if err != nil {
			return err
		}
		k.Given(o)
		x.given.Add(1)
	}
	if len(offers) >= bus.OffersMost {
		return x.give(ctx, b, k)
	}
	return nil
}
