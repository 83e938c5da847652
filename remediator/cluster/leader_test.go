package cluster_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

func candidate(name, lease string) cluster.LeaderOptions {
	return cluster.LeaderOptions{Identity: name, Name: lease, Duration: 3 * time.Second, Renew: 2 * time.Second, Retry: 200 * time.Millisecond}
}

func TestLeadersFollowEachOtherWithGrowingTokensAndNeverMeet(t *testing.T) {
	s := kube(t)
	c := start(t, asRemediator(s), cluster.Options{})
	var leading atomic.Int32
	type term struct {
		cluster.Lead
		began, ended time.Time
	}
	terms := make(chan term, 10)
	run := func(ctx context.Context, who string, stays time.Duration) error {
		return c.Leader(ctx, candidate(who, "orderly"), func(ctx context.Context, l cluster.Lead) error {
			if leading.Add(1) > 1 {
				t.Error("two lead at once")
			}
			x := term{Lead: l, began: time.Now()}
			<-ctx.Done()
			time.Sleep(stays) // work that has to be brought to an end
			leading.Add(-1)
			x.ended = time.Now()
			terms <- x
			return nil
		})
	}
	first, stopFirst := context.WithCancel(t.Context())
	second, stopSecond := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- run(first, "one", 4*time.Second) /* longer than the lease would last */ }()
	eventually(t, "a leader", func() bool { return leading.Load() == 1 })
	go func() { ended <- run(second, "two", 0) }()
	time.Sleep(300 * time.Millisecond)
	stopFirst()
	a := <-terms
	eventually(t, "the next leader", func() bool { return leading.Load() == 1 })
	stopSecond()
	b := <-terms
	if a.Identity != "one" || b.Identity != "two" || b.Token <= a.Token {
		t.Errorf("%+v then %+v", a.Lead, b.Lead)
	}
	if gap := b.began.Sub(a.ended); gap < 0 || gap > 2500*time.Millisecond {
		t.Errorf("the second began %v after the first had ended: the lease was not given back", gap)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestALeaderThatIsCutOffStopsBeforeTheNextBegins(t *testing.T) {
	s := kube(t)
	var cut atomic.Bool
	cfg := asRemediator(s)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if cut.Load() {
				return nil, errors.New("no network")
			}
			return next.RoundTrip(r)
		})
	})
	a, b := start(t, cfg, cluster.Options{}), start(t, asRemediator(s), cluster.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped, began := make(chan time.Time, 10), make(chan cluster.Lead, 10)
	ended := make(chan error, 2)
	var token int64
	go func() {
		ended <- a.Leader(ctx, candidate("one", "cut"), func(ctx context.Context, l cluster.Lead) error {
			began <- l
			<-ctx.Done()
			stopped <- time.Now()
			return nil
		})
	}()
	token = (<-began).Token
	go func() {
		ended <- b.Leader(ctx, candidate("two", "cut"), func(ctx context.Context, l cluster.Lead) error {
			began <- l
			<-ctx.Done()
			return nil
		})
	}()
	cut.Store(true)
	l := <-began
	now := time.Now()
	select {
	case at := <-stopped:
		if !at.Before(now) {
			t.Error("it stopped after the next had begun")
		}
	default:
		t.Error("it still led when the next began")
	}
	if l.Identity != "two" || l.Token <= token {
		t.Errorf("%+v after token %d", l, token)
	}
	cancel()
	for range 2 {
		<-ended
	}
}

// A process that was stopped and wakes is in the middle of what it did, and its context has not ended yet.
func TestALeaderWhoseLeaseHasRunOutWritesNothingMore(t *testing.T) {
	s := kube(t)
	clean(t, s)
	var cut atomic.Bool
	cfg := asRemediator(s)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if cut.Load() && strings.Contains(r.URL.Path, "/leases/") {
				return nil, errors.New("no renewal")
			}
			return next.RoundTrip(r)
		})
	})
	var w writes
	c := start(t, cfg, cluster.Options{Audit: w.hook})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, checked := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- c.Leader(ctx, candidate("one", "stopped"), func(ctx context.Context, _ cluster.Lead) error {
			defer close(checked)
			asleep := context.WithoutCancel(ctx)
			if _, err := c.Cordon(asleep, "a1", "inc-1"); err != nil {
				t.Error(err)
			}
			cut.Store(true)
			time.Sleep(3 * time.Second) // the lease's duration
			sent := w.sent("patch", "Node")
			if _, err := c.Cordon(asleep, "a2", "inc-1"); !errors.Is(err, cluster.ErrDeposed) {
				t.Errorf("it cordoned: %v", err)
			}
			if n := w.sent("patch", "Node"); n != sent {
				t.Errorf("%d requests were sent", n-sent)
			}
			cancel()
			return nil
		})
	}()
	<-checked
	<-ended
	if _, err := c.Cordon(within(t), "a2", "inc-1"); !errors.Is(err, cluster.ErrDeposed) { // work that outlived the term
		t.Errorf("it cordoned after its term: %v", err)
	}
	never := start(t, asRemediator(s), cluster.Options{})
	if _, err := never.Cordon(within(t), "a2", "inc-1"); err != nil { // a process that takes part in no election is not deposed
		t.Error(err)
	}
}
