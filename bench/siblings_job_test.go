package bench

import "testing"

func TestAGatewayKnowsAScheduleByEarlierRunsAndAFaultByThemToo(t *testing.T) {
	f, err := Gateway(recordings(t))
	if err != nil {
		t.Fatal(err)
	}
	if t.Logf("%+v", f); f.Runs < 300 || float64(f.False) > 0.5*f.Hours || f.Driver > 0 || f.N < 50 || f.Recall.Value < 0.9 {
		t.Errorf("%+v", f)
	}
}
