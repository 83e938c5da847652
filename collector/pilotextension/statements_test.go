package pilotextension

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
)

func (c *cluster) state(s bus.Statement) {
	c.t.Helper()
	_, rev, err := c.bus.Statements().Get(c.t.Context(), s.ID())
	if err != nil {
		rev = 0
	}
	if _, err := c.bus.Statements().Put(c.t.Context(), s.ID(), s, rev); err != nil {
		c.t.Fatal(err)
	}
}

func TestWhatPeopleSaidReachesTheNodeItIsOfWithinTwoSeconds(t *testing.T) {
	c := newCluster(t)
	at := time.Now()
	before := bus.Statement{Verb: bus.StateAck, Key: "anomaly/x gpu/G", At: at, By: "ada"}
	if err := c.bus.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.state(before)
	p, _ := c.pilot()
	heard := make(chan []bus.Statement, 16)
	stop := p.FollowStatements(func(all []bus.Statement) { heard <- all })
	next := func(want int) []bus.Statement {
		t.Helper()
		for deadline := time.After(soon); ; {
			select {
			case all := <-heard:
				if len(all) == want {
					return all
				}
			case <-deadline:
				t.Fatalf("never were there %d statements", want)
			}
		}
	}
	if all := next(1); all[0].Key != before.Key {
		t.Errorf("heard %+v", all)
	}
	c.state(bus.Statement{Verb: bus.StateMute, Node: "another", Key: "*", At: at, Until: at.Add(time.Hour)})
	c.state(bus.Statement{Verb: "nonsense", Node: node, Key: "*", At: at})
	said := time.Now()
	c.state(bus.Statement{Verb: bus.StateMute, Node: node, Key: "*", At: at, Until: at.Add(time.Hour)})
	if all := next(2); all[1].Node != node {
		t.Errorf("heard %+v", all)
	}
	if d := time.Since(said); d > 2*time.Second {
		t.Errorf("it took %s", d)
	}
	_, rev, err := c.bus.Statements().Get(t.Context(), before.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.bus.Statements().Delete(t.Context(), before.ID(), rev); err != nil {
		t.Fatal(err)
	}
	next(1)
	stop()
	late := make(chan []bus.Statement, 1)
	defer p.FollowStatements(func(all []bus.Statement) { late <- all })()
	if all := <-late; len(all) != 1 {
		t.Errorf("one who follows late hears %+v", all)
	}
}
