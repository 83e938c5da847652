package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// picky answers one incident's notices with an error, and takes the others.
type picky struct {
	follower
	bad   string
	fails error
	tries []time.Time
	at    map[string]time.Duration
	begun time.Time
	onTry func()
}

func newPicky(fails error) *picky {
	return &picky{bad: "bad", fails: fails, at: map[string]time.Duration{}, begun: time.Now()}
}

func (p *picky) Send(_ context.Context, n Notice) (string, error) {
	if n.Incident == p.bad || n.Key == p.bad || p.bad == "all" {
		if p.onTry != nil {
			p.onTry()
		}
		p.tries = append(p.tries, time.Now())
		return "", p.fails
	}
	p.got = append(p.got, n.Key)
	p.at[n.Key] = time.Since(p.begun)
	return "", nil
}

func TestANoticeThatAlwaysFailsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicky(answered{errors.New("500 Internal Server Error")})
		var c tally
		probed := time.Duration(0)
		d, stop := run(t, Options{Receivers: []Receiver{p}, Count: c.count, Probed: func(string, Notice, error) { probed = time.Since(p.begun) }})
		of := func(incident string, stage Stage) Notice {
			return notice(stage, func(n *Notice) { n.Incident, n.Key = incident, incident+"/"+string(stage) })
		}
		d.Tell(of("bad", Opened))
		d.Tell(of("bad", Closed)) // never before its opening
		d.Tell(of("good", Waiting))
		d.Probe(Notice{Key: "c"})
		time.Sleep(30 * time.Minute)
		if at, ok := p.at["good/waiting"]; !ok || at > 2*time.Second || probed == 0 || probed > 2*time.Second {
			t.Errorf("the page comes after %v, the canary after %v", at, probed)
		}
		d.Tell(of("later", Waiting))
		synctest.Wait()
		if _, ok := p.at["later/waiting"]; !ok {
			t.Error("a later page waits for the one that fails")
		}
		if n := len(p.tries); n < 30 || n > 45 {
			t.Errorf("%d tries in half an hour, want about one a minute", n)
		}
		time.Sleep(2 * time.Hour)
		if c.of(Failed) != 2 {
			t.Errorf("results %v, want both given up after their hour", c.n)
		}
		d.Tell(notice(Opened, func(n *Notice) { n.Incident, n.Key = "bad", "bad/again" }))
		time.Sleep(time.Minute)
		p.bad = ""
		time.Sleep(2 * time.Minute)
		if !slices.Contains(p.got, "bad/again") {
			t.Error("it is not sent when the receiver takes it again")
		}
		stop()
	})
}

func TestTheNoticesOfAnIncidentKeepTheirOrderWhenOneFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicky(answered{errors.New("500 Internal Server Error")})
		p.bad = "opened"
		d, stop := run(t, Options{Receivers: []Receiver{p}})
		for _, stage := range []Stage{Opened, Waiting, Closed} {
			d.Tell(notice(stage, func(n *Notice) { n.Incident, n.Key = "bad", string(stage) }))
		}
		d.Tell(notice(Finding, func(n *Notice) { n.Incident, n.Key = "", "finding" }))
		time.Sleep(10 * time.Second)
		p.bad = ""
		time.Sleep(time.Minute)
		if !slices.Equal(p.got, []string{"finding", "opened", "waiting", "closed"}) {
			t.Errorf("got %q", p.got)
		}
		stop()
	})
}

func TestALeaderThatIsDeposedDropsANoticeThatOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicky(answered{errors.New("500 Internal Server Error")})
		d, stop := run(t, Options{Receivers: []Receiver{p}})
		d.Tell(notice(Opened, func(n *Notice) { n.Incident = "bad" }))
		p.onTry = func() {
			if len(p.tries) == 3 { // deposed while the fourth try is under way
				d.Forget()
			}
		}
		time.Sleep(10 * time.Second)
		tried := len(p.tries)
		time.Sleep(2 * time.Hour)
		if tried < 3 || len(p.tries) != tried {
			t.Errorf("%d tries before, %d after", tried, len(p.tries)-tried)
		}
		stop()
	})
}

func TestAReceiverThatDoesNotAnswerGetsItsNoticesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, fails := range []error{errors.New("connection refused"), busy{errors.New("429"), time.Second}} {
			p := newPicky(fails)
			d, stop := run(t, Options{Receivers: []Receiver{p}})
			d.Tell(notice(Opened, func(n *Notice) { n.Incident, n.Key = "bad", "first" }))
			d.Tell(notice(Opened, func(n *Notice) { n.Incident, n.Key = "good", "second" }))
			time.Sleep(10 * time.Second)
			p.bad = ""
			time.Sleep(time.Minute)
			if !slices.Equal(p.got, []string{"first", "second"}) {
				t.Errorf("%v: got %q", fails, p.got)
			}
			stop()
		}
	})
}

func TestAnOutageOfHoursLosesFewNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPicky(answered{errors.New("502 Bad Gateway")})
		p.bad = "all"
		var c tally
		d, stop := run(t, Options{Receivers: []Receiver{p}, Count: c.count})
		for k := range 200 {
			d.Tell(notice(Waiting, func(n *Notice) { n.Incident, n.Key = fmt.Sprint(k), fmt.Sprint(k) }))
		}
		time.Sleep(3 * time.Hour)
		p.bad = ""
		time.Sleep(5 * time.Minute)
		if lost := c.of(Failed); lost > 30 || len(p.got) != 200-lost {
			t.Errorf("%d of 200 lost, %d sent", lost, len(p.got))
		}
		if n := len(p.tries); n > 2000 {
			t.Errorf("%d tries in three hours", n)
		}
		stop()
	})
}
