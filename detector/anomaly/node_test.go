package anomaly

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/event"
)

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

// node is a simulated one: ranks that step in lock-step, each on a GPU of its own, with noise from a seed.
type node struct {
	t     *testing.T
	e     *Engine
	now   time.Time // the node's clock
	skew  time.Duration
	rng   *rand.Rand
	ranks int
	step  int64
	due   time.Duration // until the next step ends
	tick  int

	pace, launch float64 // s
	launchAt     map[int]float64
	paceTimes    float64
	slow         int // the rank whose work takes so much longer; -1: all ranks'
	section      float64
	tokens       float64 // 0: not told
	temp, clock  map[int]float64
	throttled    map[int]bool
	missing      map[string]bool // metrics that are not said
	stuck        bool            // no step ends
	was          float64         // section of the tick before
	refill       int             // steps after another section that take longer
	age          float64         // of the last step, s
	noise        float64
	out          []finding.Finding
}

func newNode(t *testing.T, ranks int) *node {
	t.Helper()
	e, err := New(Options{Cluster: "c", Node: "n1", BootID: "boot-1"})
	if err != nil {
		t.Fatal(err)
	}
	return &node{
		t: t, e: e, now: t0, rng: rand.New(rand.NewPCG(7, 7)), ranks: ranks, pace: 0.2, launch: 0.001, paceTimes: 1, section: 1, tokens: 4096, slow: -1,
		launchAt: map[int]float64{}, temp: map[int]float64{}, clock: map[int]float64{}, throttled: map[int]bool{}, missing: map[string]bool{}, noise: 0.01,
	}
}

func uuid(i int) string { return "GPU-" + string(rune('0'+i)) }

func (n *node) about(v float64) float64 { return v * (1 + n.noise*n.rng.NormFloat64()) }

func (n *node) put(metric string, l Labels, at time.Time, v float64) {
	if m := Lookup(metric); m != nil && !n.missing[metric] {
		n.e.Put(m, l, at.Add(n.skew).UnixNano(), v)
	}
}

func (n *node) rank(i int) Labels {
	return Labels{GPU: uuid(i), PodUID: "u-1", Namespace: "train", Pod: "llm-0", Rank: int64(i), Local: int64(i), WorldSize: int64(n.ranks), Attempt: 0}
}

// pass lets time pass in batches of a tenth of a second, as the receivers send them.
func (n *node) pass(d time.Duration) *node {
	for end := n.now.Add(d); n.now.Before(end); {
		n.now = n.now.Add(100 * time.Millisecond)
		n.tick++
		ended := false
		if n.section == 1 && n.was != 1 && n.step > 0 {
			n.refill = 5
		}
		n.was = n.section
		if n.section == 1 && !n.stuck {
			if n.due -= 100 * time.Millisecond; n.due <= 0 {
				ended = true
				n.step++
			}
		}
		took := n.about(n.pace * n.paceTimes)
		if n.refill > 0 && ended {
			took *= 1.6
			n.refill--
		}
		for i := range n.ranks {
			l := n.rank(i)
			n.put("pitcrew.train.section", l, n.now, n.section)
			n.put("pitcrew.train.step", l, n.now, float64(n.step))
			if n.section == 1 {
				if n.age += 0.1 / float64(n.ranks); ended {
					n.age = 0
				}
				n.put("pitcrew.train.step.age", l, n.now, n.age)
			}
			if !ended {
				continue
			}
			n.put("pitcrew.train.step.duration", l, n.now, took)
			if n.tokens > 0 {
				n.put("pitcrew.train.throughput", l, n.now, n.tokens/took)
			}
			launch := n.launch
			if v, ok := n.launchAt[i]; ok {
				launch = v
			}
			for _, x := range []struct {
				phase string
				v     float64
			}{{"forward", 0.06 * n.paceTimes}, {"backward", 0.1 * n.paceTimes}, {"data_wait", 0.002}} { // with the wait for the slowest
				p := l
				p.Value = x.phase
				n.put("pitcrew.train.phase.duration", p, n.now, n.about(x.v))
			}
			compute := n.pace
			if n.slow == i || n.slow < 0 {
				compute *= n.paceTimes
			}
			n.put("pitcrew.train.compute.duration", l, n.now, n.about(0.9*compute))
			n.put("pitcrew.train.launch.latency", l, n.now, n.about(launch))
			n.put("pitcrew.train.loss", l, n.now, n.about(2))
		}
		if ended {
			n.due = time.Duration(took * float64(time.Second)).Round(100 * time.Millisecond)
		}
		if n.tick%10 == 0 {
			for i := range n.ranks {
				n.gpu(i)
			}
		}
		n.out = append(n.out, n.e.End(n.now.Add(n.skew))...)
	}
	return n
}

func (n *node) gpu(i int) {
	of := func(m map[int]float64, v float64) float64 {
		if x, ok := m[i]; ok {
			return x
		}
		return v
	}
	l := Labels{GPU: uuid(i), PCI: "0000:1a:00"}
	busy := n.section == 1 && !n.stuck
	util := 0.01
	if busy {
		util = n.about(0.97)
	}
	general := l
	general.Value = "general"
	n.put("hw.gpu.utilization", general, n.now, util)
	n.put("hw.power", l, n.now, n.about(600))
	for _, loc := range []string{"gpu", "memory"} {
		p := l
		p.Value = loc
		n.put("hw.temperature", p, n.now, float64(int(n.about(of(n.temp, 62)))))
	}
	c := l
	c.Value = "sm"
	clock := of(n.clock, 1.98e9)
	if n.stuck {
		clock = 3e8
	}
	n.put("pitcrew.gpu.clock", c, n.now, n.about(clock))
	if n.tick%150 == 0 {
		n.put("pitcrew.gpu.power.limit", l, n.now, 700)
	}
	for _, reason := range []string{"hw_thermal", "sw_thermal"} {
		p := l
		p.Value = reason
		v := 0.0
		if n.throttled[i] && reason == "sw_thermal" {
			v = 1
		}
		n.put("pitcrew.gpu.throttle", p, n.now, v)
	}
	n.put("pitcrew.gpu.pcie.replay", l, n.now, 3)
}

// said lists what was found since the last call: "warning thermal-throttle gpu/GPU-0"; a recovery has "-" before it, what only sets
// a condition "~", and what ends one without a recovery "x".
func (n *node) said() (out []string) {
	for _, f := range n.out {
		if _, err := event.Encode(f.Event); err != nil {
			n.t.Errorf("%s: %v", f.Key, err)
		}
		s := string(f.Event.Data.Severity) + " " + strings.TrimPrefix(f.Key, "anomaly/")
		switch {
		case f.ConditionOnly && f.Active:
			s = "~" + s
		case f.ConditionOnly:
			s = "x" + s
		case !f.Active:
			s = "-" + s
		}
		out = append(out, s)
	}
	n.out = nil
	return out
}

// only keeps what has one of the prefixes.
func only(said []string, prefixes ...string) (out []string) {
	for _, s := range said {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) }) {
			out = append(out, s)
		}
	}
	return out
}

func (n *node) find(key string) *event.Event {
	for i := len(n.out) - 1; i >= 0; i-- {
		if n.out[i].Key == key && n.out[i].Active {
			return &n.out[i].Event
		}
	}
	return nil
}

func (n *node) want(what string, got []string, want ...string) {
	n.t.Helper()
	if !slices.Equal(got, want) {
		n.t.Errorf("%s: said %q, want %q", what, got, want)
	}
}

const learnt = 3 * time.Minute
