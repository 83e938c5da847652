// Package witness tells a lost node from a lost agent. A node is called lost only if its agent's beat stopped and its kubelet does not
// answer, and then only with evidence beyond silence, or after Options.LeaseWait. Silence of most of the fleet, or of a whole rack or pool at
// once, concludes nothing: its cause may be on the observer's side.
//
// A lost node is a condition like any other: it is set, repeated while it lasts, and cleared when the agent is heard or the kubelet answers.
// Its event carries the evidence there is, so that whoever acts on it can tell proof from silence.
package witness

import (
	"container/list"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// Silent reports that the kubelet of a node gives no sign of life. That it could not be asked is no silence.
type Silent func(ctx context.Context, node string) bool

// Options of a Watch. Functions must be safe for concurrent calls; those without a comment of their own must not be nil.
type Options struct {
	Cluster   string
	Silence   time.Duration // of the agent's beat; default 1.5 s, three beats
	LeaseWait time.Duration // until silence alone is enough; default 40 s, the node controller's own
	Every     time.Duration // between looks at silent nodes; default 250 ms
	Repeat    time.Duration // between repetitions of what lasts; default 30 s
	// MostOfFleet is the share of the fleet whose silence within a minute concludes nothing by itself; default 0.5.
	MostOfFleet float64
	// Domains names what a node shares with others, such as its rack and its pool. If all of at least two nodes of one are silent within a
	// minute, that concludes nothing by itself either. nil: none.
	Domains func(node string) []string

	Now       func() time.Time
	Connected func() bool              // the observer itself can hear
	Known     func(node string) bool   // the cluster has it; nil: all. Asked of silent nodes only
	Boot      func(node string) string // its boot id, "" if unknown; nil: unknown
	Silent    Silent
	// Peers asks the surviving ranks of the jobs across a node; nil: unknown.
	Peers func(ctx context.Context, node string) (Peers, string)
	// Others gives other evidence that the node is off or that its processes ended; nil: none.
	Others  func(ctx context.Context, node string) []Evidence
	Publish func(event.Event) error
	Set     func(context.Context, bus.Condition) error
	Log     *slog.Logger
}

// Watch keeps when each node's agent was last heard, by the observer's own clock.
type Watch struct {
	o  Options
	mu sync.Mutex
	at map[string]*list.Element // of *node
	// order has the node that was heard longest ago first, so that a look costs what is silent and not what is there.
	order *list.List
	ended []*loss // losses that ended and are still to be cleared
}

type node struct {
	name  string
	heard time.Time
	next  time.Time // when it is judged again
	loss  *loss     // nil: not reported

	domains   []string
	domainsAt time.Time
}

// New prepares a watch.
func New(o Options) *Watch {
	for _, d := range []struct {
		of  *time.Duration
		def time.Duration
	}{{&o.Silence, 1500 * time.Millisecond}, {&o.LeaseWait, 40 * time.Second}, {&o.Every, 250 * time.Millisecond}, {&o.Repeat, 30 * time.Second}} {
		if *d.of == 0 {
			*d.of = d.def
		}
	}
	if o.MostOfFleet == 0 {
		o.MostOfFleet = 0.5
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Watch{o: o, at: map[string]*list.Element{}, order: list.New()}
}

// Heard notes a beat. It does not block: a loss that ends with it is cleared by the next look.
func (w *Watch) Heard(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	el := w.at[name]
	if el == nil {
		el = w.order.PushBack(&node{name: name})
		w.at[name] = el
	} else {
		w.order.MoveToBack(el)
	}
	n := el.Value.(*node)
	n.heard, n.next = w.o.Now(), time.Time{}
	if n.loss != nil {
		w.ended = append(w.ended, n.loss.over(w.o.Now(), "its agent is heard again"))
		n.loss = nil
	}
}

// Adopt takes over a loss that an earlier leader set as a condition, so that it is repeated and cleared as if this watch had reported it. Call
// it before Run.
func (w *Watch) Adopt(c bus.Condition) {
	if !c.Active || c.Key != Key || c.Event == nil || c.Node == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if el := w.at[c.Node]; el != nil {
		w.order.Remove(el)
	}
	l := &loss{node: c.Node, onset: c.Event.Data.Onset, evidence: EvidenceOf(*c.Event), event: *c.Event}
	heard := l.onset
	if silent := w.o.Now().Add(-w.o.Silence - time.Millisecond); heard.After(silent) {
		heard = silent // the other leader's clock is ahead; in front of the order nothing may look as if it was heard
	}
	w.at[c.Node] = w.order.PushFront(&node{name: c.Node, heard: heard, loss: l})
}

// Alive reports whether the node's agent was heard within Silence.
func (w *Watch) Alive(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	el := w.at[name]
	return el != nil && w.o.Now().Sub(el.Value.(*node).heard) <= w.o.Silence
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

const (
	// atOnce bounds the nodes that are judged at the same time. Each takes up to witnessAfter if its kubelet is behind a cut cable.
	atOnce       = 512
	witnessAfter = 2 * time.Second
	// slowest is the longest time until a silent node that was found not to be lost is judged again.
	slowest = 5 * time.Second
)

// Look judges every silent node that is due, and clears what ended. Calls must not overlap.
func (w *Watch) Look(ctx context.Context) {
	if !w.o.Connected() {
		w.forgive() // what was not heard while deaf proves nothing
		return
	}
	w.clearEnded(ctx)
	due, silent, heard := w.silent()
	gone := w.forgetUnknown(due)
	due, silent = slices.DeleteFunc(due, gone), slices.DeleteFunc(silent, gone)
	if len(due) == 0 {
		return
	}
	m := w.mass(silent, heard)
	var judged errgroup.Group
	judged.SetLimit(atOnce)
	for _, n := range due {
		judged.Go(func() error {
			w.judge(ctx, n, m.of(n))
			return nil
		})
	}
	_ = judged.Wait()
}

// quiet is a silent node as it was when a look began.
type quiet struct {
	name  string
	since time.Time
	loss  *loss
}

// silent lists the nodes that are silent, the longest first, and of them those that are due. The walk ends at the first node that was heard.
func (w *Watch) silent() (due, all []quiet, heard int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.o.Now()
	for el := w.order.Front(); el != nil; el = el.Next() {
		n := el.Value.(*node)
		if now.Sub(n.heard) <= w.o.Silence {
			break
		}
		q := quiet{n.name, n.heard, n.loss}
		all = append(all, q)
		if !now.Before(n.next) {
			due = append(due, q)
		}
	}
	return due, all, w.order.Len() - len(all)
}

// forgetUnknown drops nodes that the cluster does not have any more, with the loss that was reported of them, and tells which.
func (w *Watch) forgetUnknown(due []quiet) (gone func(quiet) bool) {
	unknown := map[string]bool{}
	for _, q := range due {
		if w.o.Known == nil || w.o.Known(q.name) {
			continue
		}
		unknown[q.name] = true
		w.mu.Lock()
		if el := w.at[q.name]; el != nil && el.Value.(*node).heard.Equal(q.since) {
			w.order.Remove(el)
			delete(w.at, q.name)
			if q.loss != nil {
				w.ended = append(w.ended, q.loss.over(w.o.Now(), "its Node object is gone"))
			}
		}
		w.mu.Unlock()
	}
	return func(q quiet) bool { return unknown[q.name] }
}

func (w *Watch) forgive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for el := w.order.Front(); el != nil; el = el.Next() {
		if n := el.Value.(*node); n.loss == nil {
			n.heard = w.o.Now()
		}
	}
	// Reported losses keep their age, so they come first again.
	var lost []*list.Element
	for el := w.order.Front(); el != nil; el = el.Next() {
		if el.Value.(*node).loss != nil {
			lost = append(lost, el)
		}
	}
	for i := len(lost) - 1; i >= 0; i-- {
		w.order.MoveToFront(lost[i])
	}
}

// judge asks the other witnesses of one silent node and reports what follows.
func (w *Watch) judge(ctx context.Context, q quiet, m mass) {
	answers, peers, evidence := w.ask(ctx, q.name)
	silence := w.o.Now().Sub(q.since)
	switch {
	case answers:
		w.end(q, "its kubelet answers")
	case q.loss != nil:
		w.repeat(ctx, q, evidence)
		return
	case concludes(evidence, peers, m, silence > w.o.LeaseWait):
		w.report(ctx, q, q.since, evidence)
		return
	}
	w.again(q, min(max(silence/8, w.o.Every), slowest))
}

// concludes reports whether a node whose agent and kubelet are silent is lost: by evidence, or by silence that lasted. Peers that step speak
// against it, since the node may be cut off from the control plane alone; only a declaration that the node is off outweighs them.
func concludes(evidence []Evidence, peers Peers, m mass, lasted bool) bool {
	for _, e := range evidence {
		p := e.Kind.Proves()
		if peers == PeersStepping && e.Kind != OutOfService {
			continue
		}
		if (p.Lost || lasted) && p.proves(m) {
			return true
		}
	}
	return m == alone && lasted && peers != PeersStepping
}

// proves reports whether the evidence counts when so many fell silent together.
func (p Proof) proves(m mass) bool {
	switch m {
	case wholeDomain:
		return p.DespiteRack
	case mostOfFleet:
		return p.DespiteFleet
	}
	return true
}

// ask asks all witnesses at once: a kubelet behind a cut cable takes all the time there is.
func (w *Watch) ask(ctx context.Context, name string) (answers bool, peers Peers, evidence []Evidence) {
	ctx, cancel := context.WithTimeout(ctx, witnessAfter)
	defer cancel()
	var asked sync.WaitGroup
	var detail string
	var others []Evidence
	if w.o.Peers != nil {
		asked.Go(func() { peers, detail = w.o.Peers(ctx, name) })
	}
	if w.o.Others != nil {
		asked.Go(func() { others = w.o.Others(ctx, name) })
	}
	probe, done := context.WithTimeout(ctx, witnessAfter/2)
	answers = !w.o.Silent(probe, name)
	done()
	if answers {
		cancel()
	}
	asked.Wait()
	if peers == PeersStill {
		others = append(others, Evidence{PeersStalled, detail})
	}
	return answers, peers, sorted(others)
}

// again sets when a node is judged next, unless it was heard since.
func (w *Watch) again(q quiet, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if el := w.at[q.name]; el != nil && el.Value.(*node).heard.Equal(q.since) {
		el.Value.(*node).next = w.o.Now().Add(after)
	}
}
