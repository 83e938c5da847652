// Package witness tells a lost node from a lost agent. A node is called lost only by two independent witnesses: its agent's
// beat has stopped and its kubelet does not answer; and where a job runs across it, a surviving peer stands still. Silence of
// most nodes at once is a fault of the observer, and nothing is concluded from it.
package witness

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/event"
)

// Silent reports that the kubelet of a node gives no sign of life. That it could not be asked is no silence.
type Silent func(ctx context.Context, node string) bool

// PeersStalled reports whether a job across node stands still: some surviving rank has had no step beyond its own pace. known is
// false when nobody can tell, as with a job on that node alone; then the silence has to last LeaseWait.
type PeersStalled func(ctx context.Context, node string) (stalled, known bool)

// Options of a Watch.
type Options struct {
	Cluster   string
	Silence   time.Duration // of the agent's beat; default 1.5 s, three beats
	LeaseWait time.Duration // for nodes without a job; default 40 s, the node controller's own
	Every     time.Duration // between looks at silent nodes; default 250 ms
	Now       func() time.Time
	Connected func() bool            // the observer itself can hear
	Known     func(node string) bool // the cluster has it; nil: all
	Silent    Silent
	Peers     PeersStalled
	Publish   func(event.Event) error
	Log       *slog.Logger
}

// Watch keeps when each node's agent was last heard, by the observer's own clock.
type Watch struct {
	o  Options
	mu sync.Mutex
	at map[string]*node
}

type node struct {
	heard time.Time
	onset time.Time // of the silence that was reported; zero: none
}

// New prepares a watch.
func New(o Options) *Watch {
	if o.Silence == 0 {
		o.Silence = 1500 * time.Millisecond
	}
	if o.LeaseWait == 0 {
		o.LeaseWait = 40 * time.Second
	}
	if o.Every == 0 {
		o.Every = 250 * time.Millisecond
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Watch{o: o, at: map[string]*node{}}
}

// Heard notes a beat.
func (w *Watch) Heard(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.at[name]
	if n == nil {
		n = &node{}
		w.at[name] = n
	}
	n.heard, n.onset = w.o.Now(), time.Time{}
}

// Alive reports whether the node's agent was heard within Silence.
func (w *Watch) Alive(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.at[name]
	return n != nil && w.o.Now().Sub(n.heard) <= w.o.Silence
}

// Run looks at silent nodes until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	t := time.NewTicker(w.o.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			w.Look(ctx)
		}
	}
}

// Look judges every silent node once.
func (w *Watch) Look(ctx context.Context) {
	if !w.o.Connected() {
		w.forgive() // what was not heard while deaf proves nothing
		return
	}
	silent, total := w.silent()
	if len(silent) > 1 && 2*len(silent) > total {
		w.o.Log.Warn("most agents are silent at once: nothing is concluded", "silent", len(silent), "of", total)
		return
	}
	var judged errgroup.Group
	judged.SetLimit(atOnce)
	for name, since := range silent {
		judged.Go(func() error {
			if w.lost(ctx, name, since) {
				w.report(name, since)
			}
			return nil
		})
	}
	_ = judged.Wait()
}

func (w *Watch) silent() (map[string]time.Time, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]time.Time{}
	for name, n := range w.at {
		if w.o.Known != nil && !w.o.Known(name) {
			delete(w.at, name) // scaled down
			continue
		}
		if n.onset.IsZero() && w.o.Now().Sub(n.heard) > w.o.Silence {
			out[name] = n.heard
		}
	}
	return out, len(w.at)
}

func (w *Watch) forgive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.at {
		n.heard = w.o.Now()
	}
}

const (
	atOnce       = 64 // nodes judged at the same time
	witnessAfter = 2 * time.Second
)

// lost asks the other witnesses, both at once: a kubelet behind a cut cable takes all the time there is.
func (w *Watch) lost(ctx context.Context, name string, since time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, witnessAfter)
	defer cancel()
	var stalled, known bool
	var peers sync.WaitGroup
	peers.Go(func() { stalled, known = w.o.Peers(ctx, name) })
	probe, done := context.WithTimeout(ctx, witnessAfter/2)
	silent := w.o.Silent(probe, name)
	done()
	if !silent {
		cancel()
	}
	peers.Wait()
	switch {
	case !silent:
		return false
	case known:
		return stalled
	}
	return w.o.Now().Sub(since) > w.o.LeaseWait
}

func (w *Watch) report(name string, since time.Time) {
	w.mu.Lock()
	n := w.at[name]
	still := n != nil && n.heard.Equal(since)
	if still {
		n.onset = since
	}
	w.mu.Unlock()
	if !still {
		return
	}
	now := w.o.Now()
	age := now.Sub(since).Seconds()
	src := event.Source(w.o.Cluster, name, "remediator")
	e := event.Event{
		ID: event.NewID(src, "node/lost", strconv.FormatInt(since.UnixNano(), 10)), Source: src, Type: event.Fault, Time: now,
		Data: event.Data{
			Target: event.Target{Cluster: w.o.Cluster, Node: name}, Cause: event.Cause{Kind: "node", Name: "lost"}, Severity: event.Fatal, Onset: since,
			Evidence: event.Evidence{Signal: "pitcrew.agent.silence", Unit: "s", Value: &age, Baseline: "two witnesses",
				Raw: fmt.Sprintf("agent silent for %.1f s, kubelet does not answer", age)},
		},
	}
	if err := w.o.Publish(e); err != nil {
		w.o.Log.Error("publish a lost node", "node", name, "error", err)
	}
}
