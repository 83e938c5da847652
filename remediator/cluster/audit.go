package cluster

import (
	"context"
	"time"
)

// Write is one request that changes the cluster, or one that pretends to (DryRun).
type Write struct {
	Verb      string // create, patch, evict, delete
	Kind      string // Node, Pod, Job, JobSet, ConfigMap, Event
	Namespace string
	Name      string
	UID       string // of the object meant, where one is: the write carries it as a precondition
	Incident  string
	What      string // in a few words: "cordon", "lift finalizer"
	DryRun    bool
	Term      int64 // the leader's token; 0 in a process that does not lead

	Done    bool          // false: about to be sent; true: answered, and the rest is valid
	Err     error         // nil when the API server accepted it
	Latency time.Duration // from sending to the answer
}

// write runs one request under the call's time limit, announced before and reported after. It is the only way to change the cluster: it
// sends nothing for a leader whose lease has run out, and gives up a request that is still on its way when it runs out.
func (c *Cluster) write(ctx context.Context, w Write, do func(context.Context) error) error {
	limit := c.opts.CallTimeout
	if l := c.holds.Load(); l != nil {
		left := l.left()
		if left <= 0 {
			return ErrDeposed
		}
		limit, w.Term = min(limit, left), l.token.Load()
	}
	if c.opts.Audit != nil {
		c.opts.Audit(ctx, w)
	}
	began := c.opts.Now()
	callCtx, cancel := context.WithTimeout(ctx, limit)
	err := do(callCtx)
	cancel()
	if c.opts.Audit != nil {
		w.Done, w.Err, w.Latency = true, err, c.opts.Now().Sub(began)
		c.opts.Audit(ctx, w)
	}
	return err
}

// read runs one live read under the call's time limit.
func read[T any](ctx context.Context, c *Cluster, do func(context.Context) (T, error)) (T, error) {
	callCtx, cancel := context.WithTimeout(ctx, c.opts.CallTimeout)
	defer cancel()
	return do(callCtx)
}
