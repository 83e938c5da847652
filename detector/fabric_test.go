package detector

import "testing"

func port(s float64, before, state string, downs int64) Port {
	return Port{Device: "mlx5_0", Number: 1, Layer: "InfiniBand", PCI: "0000:1b:00", Before: before, State: state, Time: at(s), Downs: downs}
}

func TestAPortThatLeavesActiveIsDownUntilItIsActiveAgain(t *testing.T) {
	e := engine(t)
	got := e.Port(port(1, "ACTIVE", "DOWN", 0))
	want(t, got, "+fabric/port-down critical")
	if d := got[0].Event.Data; d.Target.PCI != "0000:1b:00" || d.Evidence.Raw != "InfiniBand port mlx5_0/1: DOWN, before ACTIVE" || d.Advice != "check-nvlink/fabric" {
		t.Errorf("data %+v", d)
	}
	want(t, e.Port(port(2, "DOWN", "INIT", 0)))
	other := port(3, "ACTIVE", "DOWN", 0)
	other.Device = "mlx5_1"
	want(t, e.Port(other), "+fabric/port-down critical")
	want(t, e.Port(port(4, "INIT", "ACTIVE", 0)), "-fabric/port-down")
	want(t, e.Port(port(5, "ACTIVE", "DOWN", 0)), "+fabric/port-down critical")
}

func TestAPortThatWentDownBetweenTwoLooksHasFlapped(t *testing.T) {
	e := engine(t)
	got := e.Port(port(1, "ACTIVE", "ACTIVE", 3))
	want(t, got, "+fabric/flap warning")
	if d := got[0].Event.Data; d.Count != 3 || *d.Evidence.Value != 3 {
		t.Errorf("data %+v", d)
	}
	want(t, e.Port(port(2, "ACTIVE", "ACTIVE", 1)))
	e.Rank(sample(0, 300, 1, 0.1))
	want(t, e.Settle())
	e.Rank(sample(0, 700, 1, 0.1))
	want(t, e.Settle(), "-fabric/flap")
}

func TestAPortThatNobodyUsesIsNoFinding(t *testing.T) {
	e := engine(t)
	want(t, e.Port(port(1, "", "DOWN", 0)))
	want(t, e.Port(port(2, "INIT", "DOWN", 0)))
	want(t, e.Port(Port{Time: at(3)}))
	if e.Counts().Malformed != 1 {
		t.Error("not counted")
	}
}
