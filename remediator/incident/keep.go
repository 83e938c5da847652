package incident

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

const (
	keepEvery = time.Hour
	keepFor   = 90 * 24 * time.Hour // closed incidents, and at most closedKept of them
)

// keep bounds what the buckets hold: old closed incidents, and attempts of jobs that are no more.
func (e *Engine) keep(ctx context.Context) {
	for {
		if err := errors.Join(e.keepIncidents(ctx), e.keepAttempts(ctx)); err != nil && ctx.Err() == nil {
			e.Log.Warn("tidy the buckets; will retry", "error", err)
		}
		if !pause(ctx, keepEvery) {
			return
		}
	}
}

func (e *Engine) keepIncidents(ctx context.Context) error {
	all, err := e.Store.List(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c bus.Change[Incident]) bool { return c.Value.Open() })
	slices.SortFunc(all, func(a, b bus.Change[Incident]) int { return b.Value.ClosedAt.Compare(a.Value.ClosedAt) })
	var errs []error
	for k, c := range all {
		if k >= closedKept || e.Now().Sub(c.Value.ClosedAt) > keepFor {
			errs = append(errs, e.Store.Delete(ctx, c.Key, c.Rev))
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) keepAttempts(ctx context.Context) error {
	all, err := e.Attempts.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range all {
		_, err := e.Cluster.Gang(ctx, c.Value.Job)
		if errors.Is(err, cluster.ErrNotFound) || errors.Is(err, cluster.ErrStale) {
			errs = append(errs, e.Attempts.Delete(ctx, c.Key, c.Rev))
		}
	}
	return errors.Join(errs...)
}

// forget deletes the attempts of a job that is no more.
func (e *Engine) forget(ctx context.Context, job string) error {
	_, rev, err := e.Attempts.Get(ctx, job)
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return e.Attempts.Delete(ctx, job, rev)
}
