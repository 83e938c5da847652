package hook

import (
	"context"
	"strconv"
	"sync"
)

// EventKind is what a Fleet's Event tells.
type EventKind int

// The kinds of events.
const (
	RankAttached     EventKind = iota // Rank, Hello: a process's first Hello
	RankExited                        // Rank, Exit
	RankSaid                          // Rank, Message: held, error, bye, or a late answer
	LauncherAttached                  // Launcher, Hello: on every connection, a renewed one too
	LauncherSaid                      // Launcher, Message: state or exit
	LauncherGone                      // Launcher
	PodLeft                           // the pod's directory and all its processes are gone
	Problem                           // Err: something was refused or cannot be read
)

// Event is one thing that happened on this node.
type Event struct {
	Kind     EventKind
	PodUID   string
	Rank     *Rank
	Launcher *Launcher
	Hello    Hello
	Exit     *RankExit
	Message  Message
	Err      error
	// Replayed is true for what was so before the subscription.
	Replayed bool

	once any // same for the same happening, where it can be told twice: live and in a replay
}

// eventBuffer is how many events may wait for a subscriber. A node has tens of ranks; thousands wait only for one that hangs.
const eventBuffer = 4096

type subscriber struct {
	ch     chan *Event // pointers: a buffer of events takes megabytes, empty or not
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	dropped int
}

// Subscribe calls handle with what is so already (ranks that live or have ended, launchers) and then with each event, in
// order, from one goroutine. A handler that falls thousands of events behind loses some, and is told by a Problem.
// The returned function ends it and waits for the handler; Close of the Fleet does so too.
func (f *Fleet) Subscribe(handle func(Event)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &subscriber{ch: make(chan *Event, eventBuffer), cancel: cancel, done: make(chan struct{})}
	f.mu.Lock()
	pods := make([]*Pod, 0, len(f.pods))
	for _, p := range f.pods {
		pods = append(pods, p)
	}
	f.subscribers[s] = struct{}{}
	f.mu.Unlock()
	go func() {
		defer close(s.done)
		told := map[any]bool{}
		for _, p := range pods {
			for _, e := range p.standing() {
				if e.once != nil {
					told[e.once] = true
				}
				handle(e)
			}
		}
		s.run(ctx, func(e Event) {
			if e.once != nil && told[e.once] {
				delete(told, e.once)
				return
			}
			handle(e)
		})
	}()
	return func() {
		f.mu.Lock()
		delete(f.subscribers, s)
		f.mu.Unlock()
		s.stop()
	}
}

func (s *subscriber) stop() {
	s.cancel()
	<-s.done
}

func (s *subscriber) run(ctx context.Context, handle func(Event)) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-s.ch:
			handle(*e)
		}
		s.mu.Lock()
		n := s.dropped
		s.dropped = 0
		s.mu.Unlock()
		if n > 0 {
			handle(Event{Kind: Problem, Err: errDropped(n)})
		}
	}
}

// publish never blocks.
func (f *Fleet) publish(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subscribers {
		select {
		case s.ch <- &e:
		default:
			s.mu.Lock()
			s.dropped++
			s.mu.Unlock()
		}
	}
}

// standing is what a subscriber that comes later must know of a pod.
func (p *Pod) standing() []Event {
	var out []Event
	if l := p.Launcher(); l != nil {
		if v, ok := l.View(); ok {
			out = append(out, Event{Kind: LauncherAttached, PodUID: p.uid, Launcher: l, Hello: v.Hello, Replayed: true})
		}
	}
	for _, r := range p.Ranks() {
		r.mu.Lock()
		live, exit := r.live, r.exit
		r.mu.Unlock()
		switch {
		case live != nil:
			out = append(out, Event{Kind: RankAttached, PodUID: p.uid, Rank: r, Hello: *live, Replayed: true, once: live})
		case exit != nil:
			out = append(out, Event{Kind: RankExited, PodUID: p.uid, Rank: r, Exit: exit, Replayed: true, once: exit})
		}
	}
	return out
}

type errDropped int

func (n errDropped) Error() string {
	return "events were lost: the handler fell behind by " + strconv.Itoa(int(n))
}
