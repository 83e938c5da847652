package detector

import (
	"testing"

	"github.com/pitcrew/pitcrew/detector/finding"
	"github.com/pitcrew/pitcrew/detector/verdict"
)

func TestLinesWithoutACodeAreJudgedByTheirKind(t *testing.T) {
	cases := map[string]struct {
		line Kernel
		want []string
	}{
		"a GPU that cannot be initialised":       {Kernel{Line: verdict.Line{Kind: "gpu_init", Case: "adapter initialisation failed"}}, []string{"+gpu/init fatal"}},
		"the system processor, as the table":     {Kernel{Line: verdict.Line{Kind: "gsp", Case: "GSP firmware fault"}}, []string{"+gpu/gsp critical"}},
		"a PCIe error is never more than a hint": {Kernel{Line: verdict.Line{Kind: "aer", Case: "unrecovered"}}, []string{"+pcie/aer warning"}},
		"nor is an adapter's":                    {Kernel{Line: verdict.Line{Kind: "mlx5", Case: "health"}}, []string{"+nic/mlx5 warning"}},
		"a corrected error is a trifle":          {Kernel{Line: verdict.Line{Kind: "aer", Case: "correctable"}}, nil},
		"lost lines":                             {Kernel{Line: verdict.Line{Kind: "lines_lost"}, Count: 12}, []string{"+agent/lines-lost warning"}},
		"a kind that nobody knows":               {Kernel{Line: verdict.Line{Kind: "usb"}}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := engine(t)
			k := c.line
			k.Time, k.PCI, k.Seq = at(1), "0000:1a:00", 5
			got := e.Kernel(k)
			want(t, got, c.want...)
			k.Seq++
			want(t, e.Kernel(k)) // one finding stands for all
			if c.want != nil && c.line.Count > 0 && (got[0].Event.Data.Target.PCI != "" || *got[0].Event.Data.Evidence.Value != 12) {
				t.Errorf("lost lines are about the node: %+v", got[0].Event.Data)
			}
			k.History = true
			if again := engine(t).Kernel(k); len(again) != len(c.want) || len(again) == 1 && !again[0].ConditionOnly {
				t.Errorf("history says %q", words(again))
			}
		})
	}
	if c := engine(t); len(c.Kernel(Kernel{Line: verdict.Line{Kind: "aer", Case: "correctable"}, Time: at(1)})) != 0 || c.Counts().Trifles != 1 {
		t.Errorf("trifles are not counted: %+v", c.Counts())
	}
}

func TestCasesOfAKindAreTheirOwnFindingsAndEndWhenTheirLinesStop(t *testing.T) {
	e := engine(t)
	line := func(s float64, name string) []finding.Finding {
		return e.Kernel(Kernel{Line: verdict.Line{Kind: "mlx5", PCI: "0000:3b:00", Case: name}, Time: at(s), Seq: int64(s * 10)})
	}
	want(t, line(1, "cable"), "+nic/mlx5 warning")
	want(t, line(2, "slot power"), "+nic/mlx5 warning")
	want(t, e.Kernel(Kernel{Line: verdict.Line{Kind: "gpu_init", PCI: "0000:1a:00"}, Time: at(3), Seq: 9}), "+gpu/init fatal")
	want(t, line(400, "cable"))
	want(t, beat(e, 610), "-nic/mlx5") // the slot's; the cable's line came again
	want(t, beat(e, 1010), "-nic/mlx5")
	want(t, beat(e, 9000)) // a GPU that cannot be used stays so until the next boot
	want(t, line(9001, "cable"), "+nic/mlx5 warning")
}

// beat lets time pass.
func beat(e *Engine, s float64) []finding.Finding {
	e.Rank(sample(0, s, int64(s), 0.1))
	return e.Settle()
}

func TestGoodNewsIsNoConditionOfItsOwn(t *testing.T) {
	e := engine(t)
	changed := func(s float64, to string) Kernel {
		return Kernel{Line: verdict.Line{Kind: "xid", Code: 154, Action: to}, Time: at(s), GPU: "GPU-1", Seq: int64(s)}
	}
	want(t, e.Kernel(changed(1, "GPU Reset Required")), "+xid/154 critical")
	want(t, e.Kernel(changed(2, "None")), "-xid/154")
	want(t, e.Kernel(changed(3, "None")), "-~xid/154")
	old := changed(4, "None")
	old.History = true
	want(t, e.Kernel(old))
	if n := e.open.len(); n != 0 {
		t.Errorf("%d conditions stand", n)
	}
}
