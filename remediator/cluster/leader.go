package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaderOptions configure a candidate.
type LeaderOptions struct {
	Identity string        // unique to this process, also across its restarts; required
	Name     string        // of the Lease in Pitcrew's namespace; default pitcrew-remediator
	Duration time.Duration // a silent leader is replaced after this; default 15 s
	Renew    time.Duration // a leader that could not renew for this long gives up; default two thirds of Duration
	Retry    time.Duration // between tries; default two fifteenths of Duration
}

// Lead is a term of leadership. Its token grows with every change of leader: a smaller one belongs to a leader that was replaced.
type Lead struct {
	Identity string
	Token    int64

	lease *lease
}

// Valid reports whether the lease of this term has not run out, so that nobody else can lead yet. It needs no API server and no timer: a
// process that was stopped for a while sees it at once. A Lead that Leader did not hand out is never valid.
func (l Lead) Valid() bool { return l.lease != nil && !l.lease.expired() }

// Leader runs for leadership until ctx ends and calls lead in each term it wins. The context of lead ends with the term; only when lead has
// returned does the next candidacy begin, or Leader return. A leader that ends in order gives the lease back, so the next one need not wait.
// Nothing is written once the lease has run out, even before the context of lead has ended, nor between two terms: ErrDeposed.
func (c *Cluster) Leader(ctx context.Context, o LeaderOptions, lead func(context.Context, Lead) error) error {
	if o.Identity == "" {
		return errors.New("leader election: the candidate has no identity")
	}
	if o.Name == "" {
		o.Name = fieldManager
	}
	if o.Duration == 0 {
		o.Duration = 15 * time.Second
	}
	if o.Renew == 0 {
		o.Renew, o.Retry = o.Duration*2/3, o.Duration*2/15
	}
	for ctx.Err() == nil {
		if err := c.term(ctx, o, lead); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// lease is the lock, and knows whether it was won and until when it holds.
type lease struct {
	*resourcelock.LeaseLock
	won      atomic.Bool
	duration time.Duration
	now      func() time.Time
	renewed  atomic.Pointer[time.Time] // when the last write of it that was accepted had been begun
	token    atomic.Int64              // of the term
	over     atomic.Bool               // the term has ended
}

func (l *lease) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.renew(func() error { return l.LeaseLock.Create(ctx, r) })
}

func (l *lease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.renew(func() error { return l.LeaseLock.Update(ctx, r) })
}

func (l *lease) renew(write func() error) error {
	began := l.now()
	err := write()
	if err == nil {
		l.renewed.Store(&began)
	}
	return err
}

// expired reports that another may lead by now.
func (l *lease) expired() bool { return l.left() <= 0 }

// left is how long nobody else can lead for certain.
func (l *lease) left() time.Duration {
	at := l.renewed.Load()
	if at == nil || l.over.Load() {
		return 0
	}
	return l.duration - l.now().Sub(*at)
}

// RecordEvent is called by the elector the moment it has won, and when it stops.
func (l *lease) RecordEvent(string) { l.won.Store(true) }

func (c *Cluster) lease(o LeaderOptions) *lease {
	return &lease{duration: o.Duration, now: c.opts.Now, LeaseLock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Name: o.Name, Namespace: c.opts.Namespace},
		Client: c.lock, LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity}}}
}

// term is one candidacy and, where it is won, the term that follows. The election's context outlives ctx for as long as lead needs to
// return, so that the lease is renewed until then, and only then given back: two leaders never work at once.
func (c *Cluster) term(ctx context.Context, o LeaderOptions, lead func(context.Context, Lead) error) error {
	election, resign := context.WithCancel(c.logged(context.WithoutCancel(ctx)))
	defer resign()
	lock, result := c.lease(o), make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		if !lock.won.Load() {
			resign()
		}
	})()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: o.Name, LeaseDuration: o.Duration, RenewDeadline: o.Renew, RetryPeriod: o.Retry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) { // runs in a goroutine of its own, always when the lease was won
				defer resign()
				term, end := context.WithCancel(term)
				defer end()
				defer context.AfterFunc(ctx, end)()
				c.holds.Store(lock)
				err := c.inTerm(term, o, lock, lead)
				lock.over.Store(true) // what lead left running writes nothing any more
				result <- err
			},
			OnStoppedLeading: func() {},
		}})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(election)
	if !lock.won.Load() {
		return nil // ctx has ended
	}
	err = <-result
	c.giveBack(context.WithoutCancel(ctx), o)
	return err
}

// giveBack lets the next leader begin at once. Without it, it waits for the lease's duration.
func (c *Cluster) giveBack(ctx context.Context, o LeaderOptions) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.CallTimeout)
	defer cancel()
	lock := c.lease(o)
	record, _, err := lock.Get(ctx)
	if err == nil && record.HolderIdentity == o.Identity {
		now := metav1.NewTime(c.opts.Now())
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now})
	}
	if err != nil {
		c.log.Warn("leader election: give the lease back", "error", err)
	}
}

func (c *Cluster) inTerm(term context.Context, o LeaderOptions, lock *lease, lead func(context.Context, Lead) error) error {
	record, _, err := c.lease(o).Get(term)
	if err != nil || record.HolderIdentity != o.Identity {
		c.log.Warn("leader election: the lease was lost as it was won", "error", err)
		return nil
	}
	c.log.Info("leading", "identity", o.Identity, "token", record.LeaderTransitions)
	lock.token.Store(int64(record.LeaderTransitions))
	err = lead(term, Lead{Identity: o.Identity, Token: int64(record.LeaderTransitions), lease: lock})
	if term.Err() != nil {
		return nil // the term ended, not the work
	}
	return err
}
