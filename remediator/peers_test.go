package remediator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/claims"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

// ranksOf answers with the ranks of the members that are asked.
type ranksOf struct {
	incident.Checkpointer
	asked   atomic.Int64
	members atomic.Int64
	section string
}

func (r *ranksOf) Observe(_ context.Context, members []checkpoint.Member) (checkpoint.Gang, map[string]error) {
	time.Sleep(10 * time.Millisecond)
	r.asked.Add(1)
	r.members.Store(int64(len(members)))
	g := checkpoint.Gang{Ranks: map[int]bus.RankStatus{}}
	for i := range members {
		g.Ranks[i] = bus.RankStatus{Section: r.section, StepAgeS: 2.5, P99StepS: 0.1}
	}
	return g, nil
}

func gangOf(pods int) cluster.Gang {
	g := cluster.Gang{Job: event.Job{Namespace: "ml", Name: "llm", UID: "u"}}
	for i := range pods {
		g.Members = append(g.Members, cluster.Member{Index: i, Node: fmt.Sprint("n", i), PodUID: fmt.Sprint("p", i)})
	}
	return g
}

func TestAGangIsAskedOnceForAllOfItsSilentNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &ranksOf{section: "step"}
		p := &peers{ranks: r, alive: func(n string) bool { return n > "n3" }, claim: &claims.Watch{Now: time.Now}, now: time.Now, at: map[string]*asked{},
			gangs: func(context.Context, string) ([]cluster.Gang, error) { return []cluster.Gang{gangOf(10)}, nil }}
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				if s, d := p.of(t.Context(), fmt.Sprint("n", i)); s != witness.PeersStill || d == "" {
					t.Errorf("%q %q", s, d)
				}
			})
		}
		all.Wait()
		if r.asked.Load() != 1 || r.members.Load() != 6 {
			t.Errorf("asked %d times, %d members", r.asked.Load(), r.members.Load())
		}
		time.Sleep(time.Second)
		r.section = "checkpoint"
		if s, _ := p.of(t.Context(), "n1"); s != witness.PeersUnknown || r.asked.Load() != 2 {
			t.Errorf("in a checkpoint: %q, asked %d times", s, r.asked.Load())
		}
	})
}

func TestAGangThatCannotBeAskedSaysNothing(t *testing.T) {
	p := &peers{ranks: &ranksOf{section: "step"}, alive: func(string) bool { return false }, claim: &claims.Watch{Now: time.Now}, now: time.Now, at: map[string]*asked{},
		gangs: func(context.Context, string) ([]cluster.Gang, error) { return []cluster.Gang{gangOf(3)}, nil }}
	if s, _ := p.of(t.Context(), "n1"); s != witness.PeersUnknown {
		t.Errorf("no rank on a node that is heard: %q", s)
	}
	p.gangs = func(context.Context, string) ([]cluster.Gang, error) { return nil, errors.New("timeout") }
	if s, _ := p.of(t.Context(), "n1"); s != witness.PeersUnknown {
		t.Errorf("no gang can be read: %q", s)
	}
}
