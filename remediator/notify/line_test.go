package notify

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a receiver that takes a second for each notice, and canaries.
type slow struct {
	stuck
	canaries []string
}

func (*slow) Follows() bool { return true }

func (s *slow) Send(ctx context.Context, n Notice) (string, error) {
	time.Sleep(time.Second)
	return s.stuck.Send(ctx, n)
}

func (s *slow) Probe(_ context.Context, n Notice) error {
	s.canaries = append(s.canaries, n.Key)
	return nil
}

func newSlow() *slow {
	s := &slow{stuck: stuck{free: make(chan struct{})}}
	close(s.free)
	return s
}

func TestAFloodOfFindingsEvictsNoPageAndNoClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		var c tally
		d := New(Options{Receivers: []Receiver{s}, Queue: 20, Count: c.count})
		of := func(stage Stage, k int) Notice {
			return notice(stage, func(n *Notice) {
				n.Incident, n.Key, n.NeedsPerson = fmt.Sprint("i", k), fmt.Sprint(stage, k), stage == Waiting
			})
		}
		for k := range 5 {
			d.Tell(of(Waiting, k))
			d.Tell(of(Closed, k))
			d.Tell(of(Opened, k))
		}
		for k := range 5000 {
			d.Tell(notice(Finding, func(n *Notice) { n.Incident, n.Key = "", fmt.Sprint("finding", k) }))
		}
		for k := 5; k < 15; k++ {
			d.Tell(of(Waiting, k))
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { d.Run(ctx); close(done) }()
		time.Sleep(time.Minute)
		cancel()
		<-done
		of20 := map[string]int{}
		for _, key := range s.got {
			of20[strings.TrimRight(key, "0123456789")]++
		}
		if of20["waiting"] != 15 || of20["closed"] != 5 || len(s.got) != 20 || c.of(Dropped) != 5+5000 {
			t.Errorf("sent %v of 15 pages and 5 closes; %d dropped", of20, c.of(Dropped))
		}
		for k := range 21 { // nothing but pages: the newest say more
			d.Tell(of(Waiting, 100+k))
		}
		if q := d.lines[0].queue; len(q) != 20 || q[0].Key != "waiting101" {
			t.Errorf("%d wait, the first is %q", len(q), q[0].Key)
		}
	})
}

func TestACanaryPassesALongQueueThatMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		d, stop := run(t, Options{Receivers: []Receiver{s}})
		tell := func(from, to int) {
			for k := from; k < to; k++ {
				d.Tell(notice(Opened, func(n *Notice) { n.Incident, n.Key = fmt.Sprint(k), fmt.Sprint("o", k) }))
			}
		}
		tell(0, 150)
		for k := range 10 { // each minute 60 are sent and 60 come
			d.Probe(Notice{Key: fmt.Sprint("c", k)})
			time.Sleep(time.Minute)
			tell(150+60*k, 210+60*k)
		}
		if len(s.canaries) < 3 || s.canaries[0] != "c2" { // the place of c0, the content of the newest
			t.Errorf("canaries that passed in ten minutes: %q", s.canaries)
		}
		stop()
	})
}
