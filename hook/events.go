package hook

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"
)

// EventKind is what a Fleet reports in an Event.
type EventKind int

// The kinds of events.
const (
	RankAttached     EventKind = iota // Rank, Hello: a process's first Hello
	RankExited                        // Rank, Exit
	RankSaid                          // Rank, Message: held, error, collectives or bye
	LauncherAttached                  // Launcher, Hello: on every connection, a renewed one too
	LauncherSaid                      // Launcher, Message: state or exit
	LauncherGone                      // Launcher
	PodLeft                           // the pod's directory and all its processes are gone
	Problem                           // Err: something was refused or cannot be read
	OverBudget                        // Excess: a pod exceeded a budget; at most one a minute of each pod and budget
)

// lifecycle says whether an event changes what there is, or names a pod over its budget. Such an event is never lost: after a drop the state
// is read again.
func (k EventKind) lifecycle() bool {
	switch k {
	case RankAttached, RankExited, LauncherAttached, LauncherGone, PodLeft, OverBudget:
		return true
	}
	return false
}

// Event is one thing that happened on this node.
type Event struct {
	Kind     EventKind
	PodUID   string
	Rank     *Rank
	Launcher *Launcher
	Hello    Hello
	Exit     *RankExit
	Message  Message
	Excess   Excess
	Err      error
	// Replayed is true for what was so before the subscription, or before events of the pod were dropped.
	Replayed bool

	seq uint64 // of Rank's lifecycle events: an event is handed over once, live or in a replay, and never after a later one
}

// Bounds of what waits for a subscriber. A pod has a share of its own, so that it can crowd out no other pod's events.
const (
	lifecyclePod = 192  // a pod of 64 ranks may attach, exit and attach at once
	lifecycleAll = 8192 // of all pods
	saidPod      = 16
	saidAll      = 1024
)

// queue holds events in order, with a bound for each pod and one for all.
type queue struct {
	perPod, all int
	events      []*Event
	pods        map[string]int
}

func (q *queue) push(e *Event) bool {
	if len(q.events) >= q.all || q.pods[e.PodUID] >= q.perPod {
		return false
	}
	q.events = append(q.events, e)
	q.pods[e.PodUID]++
	return true
}

func (q *queue) pop() *Event {
	if len(q.events) == 0 {
		return nil
	}
	e := q.events[0]
	q.events[0] = nil
	q.events = q.events[1:]
	if len(q.events) == 0 {
		q.events = nil // and with it the room that a burst took
	}
	if q.pods[e.PodUID]--; q.pods[e.PodUID] == 0 {
		delete(q.pods, e.PodUID)
	}
	return e
}

// subscriber has two queues. Lifecycle events go first, and messages of ranks, however many, take no room from them.
type subscriber struct {
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{}

	mu        sync.Mutex
	lifecycle queue
	said      queue
	stale     []string        // pods of which lifecycle events were dropped
	isStale   map[string]bool // the same
	dropped   int             // of said

	// Of the handler's goroutine: the newest Event.seq that was handed over of each rank.
	told  map[*Rank]uint64
	named map[string]time.Time // by pod and resource: when it was last named as over budget
}

func newSubscriber(cancel context.CancelFunc) *subscriber {
	return &subscriber{
		cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1), isStale: map[string]bool{}, told: map[*Rank]uint64{}, named: map[string]time.Time{},
		lifecycle: queue{perPod: lifecyclePod, all: lifecycleAll, pods: map[string]int{}},
		said:      queue{perPod: saidPod, all: saidAll, pods: map[string]int{}},
	}
}

// Subscribe calls handle with what is so already (ranks that live or have ended, launchers) and then with each event, from one
// goroutine. Lifecycle events are in order and come before other events that wait. If a pod has so many that some are dropped, its state
// is read again and handed over as Replayed. Other events that are dropped are counted in a Problem.
// The returned function ends it and waits for the handler; Close of the Fleet does so too.
func (f *Fleet) Subscribe(handle func(Event)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	s := newSubscriber(cancel)
	f.mu.Lock()
	pods := make([]*Pod, 0, len(f.pods))
	for _, p := range f.pods {
		pods = append(pods, p)
	}
	f.subscribers[s] = struct{}{}
	f.mu.Unlock()
	go func() {
		defer close(s.done)
		for _, p := range pods {
			s.replay(p, handle)
		}
		s.run(ctx, f, handle)
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

// replay hands over the state of a pod, less what was told already.
func (s *subscriber) replay(p *Pod, handle func(Event)) {
	for _, e := range p.standing() {
		s.hand(&e, handle)
	}
	for _, x := range p.Excesses() { // the account reports them to nobody again for a minute
		s.hand(&Event{Kind: OverBudget, PodUID: p.uid, Excess: x, Replayed: true}, handle)
	}
}

// hand gives an event to the handler, unless the same or a later one was told from a replay.
func (s *subscriber) hand(e *Event, handle func(Event)) {
	if e.seq > 0 {
		if s.told[e.Rank] >= e.seq {
			return
		}
		s.told[e.Rank] = e.seq
	}
	if e.Kind == OverBudget {
		if now, key := time.Now(), e.PodUID+"/"+string(e.Excess.Resource); now.Sub(s.named[key]) < reportEvery {
			return
		} else {
			s.named[key] = now
		}
	}
	if e.Kind == PodLeft {
		maps.DeleteFunc(s.named, func(key string, _ time.Time) bool { return strings.HasPrefix(key, e.PodUID+"/") })
		for r := range s.told {
			if r.pod.uid == e.PodUID {
				delete(s.told, r)
			}
		}
	}
	handle(*e)
}

func (s *subscriber) run(ctx context.Context, f *Fleet, handle func(Event)) {
	for ctx.Err() == nil {
		e, stale, dropped := s.next()
		switch {
		case e != nil:
			s.hand(e, handle)
		case stale != "":
			if p := f.Pod(stale); p != nil {
				s.replay(p, handle)
			} else {
				s.hand(&Event{Kind: PodLeft, PodUID: stale, Replayed: true}, handle)
			}
		case dropped > 0:
			handle(Event{Kind: Problem, Err: errDropped(dropped)})
		default:
			select {
			case <-ctx.Done():
			case <-s.wake:
			}
		}
	}
}

// next is what to hand over next: lifecycle events, then the state of pods of which some were dropped, then all else.
func (s *subscriber) next() (e *Event, stale string, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e = s.lifecycle.pop(); e != nil {
		return e, "", 0
	}
	if len(s.stale) > 0 {
		stale = s.stale[0]
		s.stale = s.stale[1:]
		delete(s.isStale, stale)
		return nil, stale, 0
	}
	if e = s.said.pop(); e != nil {
		return e, "", 0
	}
	dropped, s.dropped = s.dropped, 0
	return nil, "", dropped
}

// put queues an event and says whether it was dropped. It never blocks.
func (s *subscriber) put(e *Event) (fits bool) {
	s.mu.Lock()
	switch {
	case !e.Kind.lifecycle():
		if fits = s.said.push(e); !fits {
			s.dropped++
		}
	case s.isStale[e.PodUID]: // its state will be read, and this event is part of it
		fits = true
	default:
		if fits = s.lifecycle.push(e); !fits {
			s.stale, s.isStale[e.PodUID] = append(s.stale, e.PodUID), true
		}
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return fits
}

// publish never blocks.
func (f *Fleet) publish(e Event) {
	f.mu.Lock()
	dropped := false
	for s := range f.subscribers {
		dropped = !s.put(&e) || dropped
	}
	p := f.pods[e.PodUID]
	f.mu.Unlock()
	if dropped && p != nil && e.Kind.lifecycle() {
		p.account.exceed(Events, 1)
	}
}

// standing is what a subscriber that comes later must know of a pod.
func (p *Pod) standing() []Event {
	var out []Event
	if l := p.Launcher(); l != nil {
		if v, ok := l.View(); ok {
			out = append(out, Event{Kind: LauncherAttached, PodUID: p.uid, Launcher: l, Hello: v.Hello, Replayed: true})
		} else if l.spoke() {
			out = append(out, Event{Kind: LauncherGone, PodUID: p.uid, Launcher: l, Replayed: true})
		}
	}
	for _, r := range p.Ranks() {
		r.mu.Lock()
		live, exit, seq := r.live, r.exit, r.seq
		r.mu.Unlock()
		switch {
		case live != nil:
			out = append(out, Event{Kind: RankAttached, PodUID: p.uid, Rank: r, Hello: *live, Replayed: true, seq: seq})
		case exit != nil:
			out = append(out, Event{Kind: RankExited, PodUID: p.uid, Rank: r, Exit: exit, Replayed: true, seq: seq})
		}
	}
	return out
}

type errDropped int

func (n errDropped) Error() string {
	return "messages of ranks were dropped: the handler fell behind by " + strconv.Itoa(int(n))
}
