package hook

import (
	"fmt"
	"sync"
	"time"
)

// Launcher is `python -m pitcrew_torch.run` in a pod. It is safe for concurrent use.
type Launcher struct {
	pod  *Pod
	peer *peer

	mu      sync.Mutex
	known   bool
	hello   Hello
	state   LauncherState
	kept    int          // bytes of the pod's text, of hello
	exits   []WorkerExit // the newest last
	changed chan struct{}
}

// keptExits is how many ends of workers a launcher's record holds.
const keptExits = 256

// LauncherView is a launcher as last heard.
type LauncherView struct {
	Hello     Hello
	State     LauncherState
	Connected bool
}

// PodUID is the pod, by the path of its directory.
func (l *Launcher) PodUID() string { return l.pod.uid }

// View is the launcher as last heard; ok is false when it never spoke.
func (l *Launcher) View() (v LauncherView, ok bool) {
	s, _, _ := l.peer.current()
	l.mu.Lock()
	defer l.mu.Unlock()
	return LauncherView{Hello: l.hello, State: l.state, Connected: s != nil}, l.known
}

// Send sends an instruction. Launchers do not answer; their state is the answer.
func (l *Launcher) Send(m Message) error {
	s, _, _ := l.peer.current()
	if s == nil {
		return fmt.Errorf("launcher of pod %s: not connected: %w", l.pod.uid, ErrSessionClosed)
	}
	return s.Send(m)
}

// same implements peerEvents: a launcher goes from attempt to attempt.
func (l *Launcher) same(a, b Hello) bool { return a.PID == b.PID }

// greeted implements peerEvents.
func (l *Launcher) greeted(li *life, s *Session, _ bool) error {
	h := li.hello
	if h.Role != RoleLauncher {
		li.greeted = false
		return fmt.Errorf("%s: hello of a %q is refused", LauncherSocket, h.Role)
	}
	l.mu.Lock()
	if l.hello.PID != h.PID {
		l.exits = nil
	}
	if n := h.keptText(); l.pod.account.keep(l.kept, n) {
		l.kept = n
	} else {
		h = h.withoutText()
	}
	l.known, l.hello = true, h
	l.state = LauncherState{State: h.State, Attempt: h.Attempt}
	l.mu.Unlock()
	l.peer.set(s, true) // before anyone is told: the answer to a hello goes out on this session
	l.pod.fleet.publish(Event{Kind: LauncherAttached, PodUID: l.pod.uid, Launcher: l, Hello: h})
	return nil
}

// message implements peerEvents.
func (l *Launcher) message(_ *life, m Message) {
	l.mu.Lock()
	switch m := m.(type) {
	case LauncherState:
		l.state = m
	case WorkerExit:
		l.exits = append(l.exits, m)
		if len(l.exits) > keptExits {
			l.exits = append([]WorkerExit(nil), l.exits[len(l.exits)-keptExits:]...)
		}
		close(l.changed)
		l.changed = make(chan struct{})
	}
	l.mu.Unlock()
	l.pod.fleet.publish(Event{Kind: LauncherSaid, PodUID: l.pod.uid, Launcher: l, Message: m})
}

// ended implements peerEvents.
func (l *Launcher) ended(*life) {
	l.mu.Lock()
	was := l.known
	l.known = false
	l.pod.account.keep(l.kept, 0)
	l.kept = 0
	l.mu.Unlock()
	if was {
		l.pod.fleet.publish(Event{Kind: LauncherGone, PodUID: l.pod.uid, Launcher: l})
	}
}

// idle implements peerEvents.
func (l *Launcher) idle(tries int) time.Duration { return settle(tries) }

// problem implements peerEvents.
func (l *Launcher) problem(err error) { l.pod.fleet.problem(l.pod.uid, err) }

// exitOf waits a moment for the launcher's word on how a worker ended. It reaps the worker at the time that the worker's
// socket closes, so the word is a few milliseconds away or does not come.
func (l *Launcher) exitOf(attempt, local, pid int) (WorkerExit, bool) {
	t := time.NewTimer(exitWord)
	defer t.Stop()
	for {
		l.mu.Lock()
		for _, e := range l.exits {
			if e.Attempt == attempt && e.LocalRank == local && e.PID == pid {
				l.mu.Unlock()
				return e, true
			}
		}
		changed := l.changed
		l.mu.Unlock()
		if s, _, _ := l.peer.current(); s == nil {
			return WorkerExit{}, false
		}
		select {
		case <-changed:
		case <-t.C:
			return WorkerExit{}, false
		}
	}
}

// spoke says whether a launcher was ever heard here.
func (l *Launcher) spoke() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hello.V != 0
}
