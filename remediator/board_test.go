package remediator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/witness"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// holds is a condition as an agent sets it.
func holds(signal, about string, more ...func(*bus.Condition)) bus.Condition {
	kind, name, _ := strings.Cut(signal, "/")
	e := event.Event{ID: event.NewID(signal, about), Type: event.Fault, Time: noon, Data: event.Data{Severity: event.Critical,
		Target: event.Target{Node: "n1", GPU: strings.TrimPrefix(about, "gpu/")}, Cause: event.Cause{Kind: kind, Name: name}, Evidence: event.Evidence{Signal: "hw.errors"}}}
	if strings.HasPrefix(about, "pci/") {
		e.Data.Target.GPU, e.Data.Target.PCI = "", strings.TrimPrefix(about, "pci/")
	}
	c := bus.Condition{Node: "n1", Key: signal + " " + about, Active: true, Since: noon, BootID: "boot-2", Event: &e}
	for _, f := range more {
		f(&c)
	}
	return c
}

func byLine(c *bus.Condition) { c.Event.Data.Evidence.Signal = kernelLog }

func ended(c *bus.Condition) {
	c.Active, c.Since, c.Event.Type, c.Event.Data.Severity = false, noon.Add(time.Minute), event.Recovery, event.Info
}

func aboard(cs ...bus.Condition) *board {
	b := newBoard(func(node string) (string, error) {
		if node != "n1" {
			return "", errors.New("not there")
		}
		return "boot-2", nil
	})
	for _, c := range cs {
		b.set(c)
	}
	return b
}

func TestOnlyAMeasuredCriticalConditionOfThisBootMakesANodeUnfit(t *testing.T) {
	of := func(s event.Severity) func(*bus.Condition) {
		return func(c *bus.Condition) { c.Event.Data.Severity = s }
	}
	boot := func(id string) func(*bus.Condition) { return func(c *bus.Condition) { c.BootID = id } }
	for name, c := range map[string]struct {
		said []bus.Condition
		want string // what the reason contains; empty: fit
	}{
		"nothing was said":                          {nil, ""},
		"a row waits to be swapped":                 {[]bus.Condition{holds("gpu/row-remap", "gpu/GPU-1")}, "gpu/row-remap gpu/GPU-1, critical, since 2026-11-21T12:00:00Z"},
		"a port is down":                            {[]bus.Condition{holds("fabric/port-down", "port/mlx5_0/1")}, "fabric/port-down"},
		"links of a switch are down":                {[]bus.Condition{holds("nvlink/down", "node")}, "nvlink/down node"},
		"a switch is gone":                          {[]bus.Condition{holds("nvswitch/lost", "switch/SW-1")}, "nvswitch/lost"},
		"a GPU is lost, by a line that names it":    {[]bus.Condition{holds("gpu/lost", "gpu/GPU-1", byLine)}, "gpu/lost"},
		"a GPU is lost, by a line and its address":  {[]bus.Condition{holds("gpu/lost", "pci/0000:1a:00", byLine)}, ""},
		"GPUs are missing without a name":           {[]bus.Condition{holds("gpu/lost", "node")}, "gpu/lost node"},
		"an Xid, which only a reboot ends":          {[]bus.Condition{holds("xid/79", "gpu/GPU-1", byLine, of(event.Fatal))}, ""},
		"the driver could not bring it up":          {[]bus.Condition{holds("gpu/init", "gpu/GPU-1", byLine, of(event.Fatal))}, ""},
		"a dead rank is no fault of the node":       {[]bus.Condition{holds("rank/dead", "pod/u/rank/1", of(event.Fatal))}, ""},
		"another's condition is judged by policies": {[]bus.Condition{holds("k8s/GPUMissing", "node")}, ""},
		"a warning":                                {[]bus.Condition{holds("fabric/flap", "port/mlx5_0/1", of(event.Warning))}, ""},
		"of an earlier boot":                       {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1", boot("boot-1"))}, ""},
		"of nobody knows which boot":               {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1", boot(""))}, "gpu/ecc"},
		"it ended":                                 {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1"), holds("gpu/ecc", "gpu/GPU-1", ended)}, ""},
		"it ended and came back":                   {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1", ended), holds("gpu/ecc", "gpu/GPU-1")}, "gpu/ecc"},
		"the worst is named":                       {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1"), holds("gpu/lost", "gpu/GPU-2", of(event.Fatal)), holds("gpu/pcie", "gpu/GPU-1")}, "gpu/lost gpu/GPU-2, fatal"},
		"without an event nobody knows what it is": {[]bus.Condition{holds("gpu/ecc", "gpu/GPU-1", func(c *bus.Condition) { c.Event = nil })}, ""},
		"a key that no agent writes":               {[]bus.Condition{holds("gpu/ecc", strings.Repeat("x", 300))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := aboard(c.said...).Unfit("n1")
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("unfit %q, want %q", got, c.want)
			}
		})
	}
}

func TestAConditionStandsOnWhileItsAgentIsSilent(t *testing.T) {
	b := aboard(holds("gpu/ecc", "gpu/GPU-1"))
	b.heard = func(string) bool { return false }
	if got := b.Unfit("n1"); !strings.Contains(got, "its agent is silent") {
		t.Errorf("unfit %q", got)
	}
	if got := aboard(holds("gpu/ecc", "gpu/GPU-1", func(c *bus.Condition) { c.Node = "gone" })).Unfit("gone"); got != "" {
		t.Errorf("a node that the cluster does not have: %q", got)
	}
}

func TestANodeThatSaysWithoutEndKeepsItsOpenConditionsAndNoMoreThanThat(t *testing.T) {
	b := aboard(holds("gpu/ecc", "gpu/GPU-1"))
	for k := range 3 * maxSaid {
		b.set(holds("gpu/pcie", fmt.Sprintf("gpu/GPU-%d", 10+k), ended))
	}
	b.set(holds("gpu/lost", "gpu/GPU-2"))
	if n := len(b.of("n1")); n != maxSaid {
		t.Errorf("%d conditions are kept", n)
	}
	for k := range 2 * maxSaid {
		b.set(holds("gpu/pcie", fmt.Sprintf("gpu/GPU-%d", 10+k)))
	}
	if n := len(b.of("n1")); n != maxSaid || b.at["n1"]["gpu/ecc gpu/GPU-1"].key == "" || b.at["n1"]["gpu/lost gpu/GPU-2"].key == "" {
		t.Errorf("%d conditions are kept, or not the first ones", n)
	}
}

func TestWhatANodeSaysNowOfWhatItSaidBefore(t *testing.T) {
	one, two := 1, 2
	rank := func(n *int, pod string) func(*bus.Condition) {
		return func(c *bus.Condition) { c.Event.Data.Target = event.Target{Node: "n1", Rank: n, PodUID: pod} }
	}
	asked := *holds("gpu/ecc", "gpu/GPU-1").Event
	dead := *holds("rank/dead", "pod/p/rank/1", rank(&one, "p")).Event
	xid := holds("xid/63", "gpu/GPU-1", func(c *bus.Condition) { c.Event.Data.Evidence.Signal = "xid" })
	line := *xid.Event
	earlier := func(c *bus.Condition) { c.Since = noon.Add(-time.Minute) }
	for name, c := range map[string]struct {
		ask    event.Event
		said   []bus.Condition
		silent bool
		want   incident.Standing
	}{
		"it stands":                         {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-1")}, false, incident.Holds},
		"it stands under another key":       {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-1", ended), holds("gpu/ecc", "gpu/GPU-1", func(c *bus.Condition) { c.Key = "gpu/ecc.health gpu/GPU-1" })}, false, incident.Holds},
		"it stood when it was last heard":   {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-1")}, true, incident.Silent},
		"it ended":                          {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-1", ended)}, false, incident.Ended},
		"it ended, whoever is silent now":   {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-1", ended)}, true, incident.Ended},
		"an earlier one had ended before":   {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-1", ended, earlier)}, false, incident.Unknown},
		"the node has booted since":         {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-1", func(c *bus.Condition) { c.BootID = "boot-1" })}, false, incident.Ended},
		"another GPU":                       {asked, []bus.Condition{holds("gpu/ecc", "gpu/GPU-2")}, false, incident.Unknown},
		"another signal":                    {asked, []bus.Condition{holds("gpu/pcie", "gpu/GPU-1")}, false, incident.Unknown},
		"nothing was said":                  {asked, nil, false, incident.Unknown},
		"a line, which nothing ends":        {line, []bus.Condition{xid}, false, incident.Holds},
		"a line, and it is measured":        {line, []bus.Condition{xid, holds("gpu/ecc", "gpu/GPU-1")}, false, incident.Holds},
		"a line, and it is measured well":   {line, []bus.Condition{xid, holds("gpu/ecc", "gpu/GPU-1", ended)}, false, incident.Ended},
		"a line, and not all is well":       {line, []bus.Condition{xid, holds("gpu/ecc", "gpu/GPU-1", ended), holds("gpu/row-remap", "gpu/GPU-1")}, false, incident.Holds},
		"a line, and another GPU is well":   {line, []bus.Condition{xid, holds("gpu/ecc", "gpu/GPU-2", ended)}, false, incident.Holds},
		"a line, and it was well before":    {line, []bus.Condition{xid, holds("gpu/ecc", "gpu/GPU-1", ended, earlier)}, false, incident.Holds},
		"a rank":                            {dead, []bus.Condition{holds("rank/dead", "a", rank(&one, "p"))}, false, incident.Holds},
		"another rank of the pod":           {dead, []bus.Condition{holds("rank/dead", "a", rank(&two, "p"))}, false, incident.Unknown},
		"the same rank of the pod after it": {dead, []bus.Condition{holds("rank/dead", "a", rank(&one, "q"))}, false, incident.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			b := aboard(c.said...)
			b.heard = func(string) bool { return !c.silent }
			if got, why := b.Standing(c.ask); got != c.want || (why == "") != (got == incident.Unknown) {
				t.Errorf("standing %d (%s), want %d", got, why, c.want)
			}
		})
	}
}

func TestAnEndWithoutAnEventEndsTheCondition(t *testing.T) {
	c := holds("k8s/KernelDeadlock", "node")
	b := aboard(c, bus.Condition{Node: c.Node, Key: c.Key, Since: noon.Add(time.Minute), BootID: c.BootID})
	if s, why := b.Standing(*c.Event); s != incident.Ended {
		t.Errorf("%v (%s): nobody says it any more", s, why)
	}
}

func TestALostNodeHoldsThoughItsAgentIsSilentAndIsTakenOver(t *testing.T) {
	c := holds("node/lost", "node")
	c.Event.Data.Target.GPU = ""
	b := aboard(c, holds("xid/79", "gpu/GPU-1"))
	b.heard = func(string) bool { return false }
	if s, _ := b.Standing(*c.Event); s != incident.Holds {
		t.Errorf("%v: silence is what it is about", s)
	}
	lost := b.lost()
	if len(lost) != 1 || lost[0].Node != "n1" || lost[0].Key != witness.Key || !lost[0].Active || lost[0].Event != c.Event {
		t.Errorf("%+v", lost)
	}
	b.set(holds("node/lost", "node", ended))
	if len(b.lost()) != 0 {
		t.Error("it ended")
	}
}
