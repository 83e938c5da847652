package anomaly

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// board lets time pass with two switches and two ports beside the ranks, which tell every 15 s.
type board struct {
	*node
	celsius [2]float64
	wait    [2]float64 // ticks a second
	ticks   [2]float64
}

func (b *board) pass(d time.Duration) {
	for end := b.now.Add(d); b.now.Before(end); {
		b.node.pass(15 * time.Second)
		for i := range 2 {
			b.put("pitcrew.nvswitch.temperature", Labels{GPU: "SW-" + string(rune('0'+i)), Rank: -1}, b.now, b.about(b.celsius[i]))
			b.ticks[i] += b.about(15 * b.wait[i])
			b.put("pitcrew.fabric.congestion", Labels{GPU: "mlx5_" + string(rune('0'+i)) + "/1", PCI: "0000:1b:00", Rank: -1, Value: "transmit_wait"}, b.now, b.ticks[i])
		}
		b.out = append(b.out, b.e.End(b.now)...)
	}
}

func newBoard(t *testing.T) *board {
	return &board{node: newNode(t, 2), celsius: [2]float64{50, 51}, wait: [2]float64{1e6, 1.2e6}}
}

func TestASwitchAndAPortAreJudgedByTheirOwnPastWhileRanksStep(t *testing.T) {
	b := newBoard(t)
	b.pass(20 * time.Minute)
	b.want("healthy", b.said())
	b.celsius[1], b.wait[0] = 68, 8e6
	b.pass(4 * time.Minute)
	hot, slow := b.find("anomaly/switch-temperature switch/SW-1"), b.find("anomaly/port-wait port/mlx5_0/1")
	if hot == nil || slow == nil {
		t.Fatalf("said %q", b.said())
	}
	if d := slow.Data; d.Severity != event.Info || d.Target.GPU != "" || d.Target.PCI != "0000:1b:00" || d.Target.Rank != nil || d.Target.Node != "n1" {
		t.Errorf("event %+v", d)
	}
	if q := slow.Data.Evidence.PromQL; q == "" || slow.Data.Evidence.Unit == "" {
		t.Errorf("evidence %+v", slow.Data.Evidence)
	}
	if said := b.said(); len(only(said, "info ")) != 2 {
		t.Errorf("said %q", said)
	}
	e, err := New(Options{Cluster: "c", Node: "n1", BootID: "boot-1"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := e.Restore(b.e.Snapshot())
	if err != nil || len(again) != 2 {
		t.Errorf("%d findings are taken up, %v", len(again), err)
	}
	if c := e.Counts(); c.Entities != 8 {
		t.Errorf("counts %+v", c)
	}
}

func TestASwitchThatCoolsAndAPortThatRestsWhileNobodyStepsAreNoFindings(t *testing.T) {
	b := newBoard(t)
	b.tokens = 0
	b.pass(20 * time.Minute)
	b.section, b.celsius, b.wait = 2, [2]float64{80, 80}, [2]float64{9e6, 9e6} // a checkpoint: whatever the fabric does
	b.pass(5 * time.Minute)
	b.want("while nobody steps", only(b.said(), "info switch", "info port"))
}

func TestAnotherWorkloadThatWasToldIsAnotherLevelOfTheFabric(t *testing.T) {
	b := newBoard(t)
	b.pass(20 * time.Minute)
	b.tokens, b.paceTimes, b.wait, b.celsius = 8192, 1.9, [2]float64{4e6, 4e6}, [2]float64{58, 58}
	b.pass(6 * time.Minute)
	b.want("a told change", only(b.said(), "info switch", "info port"))
}
