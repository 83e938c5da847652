package storm

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// unlimited is a breaker that no case reaches.
const unlimited = 1_000_000

// lease is how long a remediator that was killed still counts as the leader.
const lease = 15 * time.Second

// scenario is one case of the benchmark.
type scenario struct {
	name    string
	what    string
	breaker int                                                  // nodes that may be quarantined
	victims func(o Options, f fleet, occupied []string) []string // nodes that fail
	over    func(o Options) time.Duration                        // the time over which they fail
	delay   time.Duration                                        // of each API request
	chatter bool                                                 // events that need no action, at Options.Rate
	kill    bool                                                 // the leader, midway
	last    float64                                              // goal, seconds until the last node has its verdict
}

const (
	breakerLimit = 25
	goalLast     = 3.5
)

// scenarios are the cases in the order in which they run.
var scenarios = []scenario{
	{name: "nodes-500", what: "a tenth of the nodes fails within one second, no breaker", breaker: unlimited, victims: tenth, over: second, last: goalLast},
	{name: "nodes-500-breaker", what: "the same, with a breaker of 25 nodes", breaker: breakerLimit, victims: tenth, over: second, last: goalLast},
	{name: "rack", what: "all nodes of one rack that run a gang fail within 100 ms", breaker: unlimited, victims: oneRack,
		over: func(Options) time.Duration { return 100 * time.Millisecond }, last: goalLast},
	{name: "events-5000", what: "events that need no action at a high rate, and a node that fails every three seconds", breaker: unlimited, victims: trickle,
		over: func(o Options) time.Duration { return o.Duration }, chatter: true, last: goalLast},
	{name: "slow-api", what: "as nodes-500, each API request delayed by 500 ms", breaker: unlimited, victims: tenth, over: second,
		delay: 500 * time.Millisecond, last: goalLast},
	{name: "leader-killed", what: "as nodes-500, the leader is killed midway", breaker: unlimited, victims: tenth, over: second, kill: true,
		last: goalLast + lease.Seconds()},
}

// CaseNames lists the cases in the order in which they run.
func CaseNames() []string {
	var out []string
	for _, s := range scenarios {
		out = append(out, s.name)
	}
	return out
}

func second(Options) time.Duration { return time.Second }

func tenth(_ Options, f fleet, occupied []string) []string {
	return pick(occupied, max(1, len(f.nodes)/10), 500)
}

func trickle(o Options, _ fleet, occupied []string) []string {
	return pick(occupied, max(1, int(o.Duration/(3*time.Second))), 5000)
}

// oneRack is a rack in the middle of the fleet, so that it holds more than one gang.
func oneRack(_ Options, f fleet, occupied []string) []string {
	rackOf := map[string]string{}
	for _, n := range f.nodes {
		rackOf[n.name] = n.rack
	}
	var out []string
	rack := rackOf[occupied[len(occupied)/2]]
	for _, n := range occupied {
		if rackOf[n] == rack {
			out = append(out, n)
		}
	}
	return out
}

// storm lets the nodes fail, spread evenly, with whatever the case has beside it, and returns when the last has failed.
func (s *scenario) storm(ctx context.Context, o Options, a *agents, v *verdicts, victims []string) error {
	over, began := s.over(o), time.Now()
	group, ctx := errgroup.WithContext(ctx)
	if s.chatter {
		group.Go(func() error { return chat(ctx, o, a, over) })
	}
	for i, node := range victims {
		wait := time.NewTimer(time.Until(began.Add(over * time.Duration(i) / time.Duration(len(victims)))))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return group.Wait()
		}
		group.Go(func() error {
			v.fail(node, time.Now())
			return a.fail(ctx, node, faultOf(i))
		})
	}
	return group.Wait()
}

// chat publishes events at a rate for a while. It fails if it could not keep the rate up, since the case would be another one.
func chat(ctx context.Context, o Options, a *agents, during time.Duration) error {
	began := time.Now()
	want := int(float64(o.Rate) * during.Seconds())
	var sent atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for lane := range connections {
		group.Go(func() error {
			for n := lane; n < want; n += connections {
				if wait := time.Until(began.Add(time.Duration(float64(n) / float64(o.Rate) * float64(time.Second)))); wait > time.Millisecond {
					select {
					case <-time.After(wait):
					case <-ctx.Done():
						return nil
					}
				}
				if err := a.send(lane, chatter(n, a.names[n%len(a.names)], time.Now())); err != nil {
					return err
				}
				sent.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	if took := time.Since(began); err == nil && ctx.Err() == nil && took > during*11/10+time.Second {
		return fmt.Errorf("%d events took %s to publish, not %s: this machine is too slow for RATE=%d", sent.Load(), took.Round(time.Second), during, o.Rate)
	}
	return err
}
