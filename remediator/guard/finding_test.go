package guard_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// found is a finding that every guard lets pass.
func found() *guard.Finding {
	return &guard.Finding{Signal: "rank/straggler", Statistical: true, For: 15 * time.Second, Lasted: 15 * time.Second, Heard: ago(time.Second), Confirms: []string{"clock"},
		Loss: 960, Cost: 480, Horizon: time.Hour, Margin: 2}
}

func TestEachGuardOfAFindingJudgesItsOwnValue(t *testing.T) {
	refusing := func(a guard.Action, s guard.State) (names []guard.Name) {
		for _, v := range guard.Blocking(guard.Check(s, a, now)) {
			names = append(names, v.Guard)
		}
		return names
	}
	vain := func(id, finding string, helped bool, at time.Time) guard.Grant {
		g := did(id, "n01", false, at, policy.Cordon, policy.RestartJob)
		g.Job, g.Finding, g.Vain, g.Helped = "j", finding, !helped, helped
		return g
	}
	for name, c := range map[string]struct {
		change func(*guard.Finding, *guard.State)
		want   []guard.Name
	}{
		"all is as it should be":     {func(*guard.Finding, *guard.State) {}, nil},
		"a moment too young":         {func(f *guard.Finding, _ *guard.State) { f.Lasted -= time.Millisecond }, []guard.Name{guard.Lasts}},
		"no second family":           {func(f *guard.Finding, _ *guard.State) { f.Confirms = nil }, []guard.Name{guard.SecondSign}},
		"contradicted":               {func(f *guard.Finding, _ *guard.State) { f.Against = []string{"x"} }, []guard.Name{guard.OneCulprit}},
		"a GPU-second too cheap":     {func(f *guard.Finding, _ *guard.State) { f.Loss-- }, []guard.Name{guard.WorthIt}},
		"nobody knows what it costs": {func(f *guard.Finding, _ *guard.State) { f.Cost = 0 }, []guard.Name{guard.WorthIt}},
		"it reports no loss":         {func(f *guard.Finding, _ *guard.State) { f.Loss, f.Margin = 0, 0 }, []guard.Name{guard.WorthIt}},
		"confirmed too long ago":     {func(f *guard.Finding, _ *guard.State) { f.Heard = ago(guard.FreshFor + time.Second) }, []guard.Name{guard.Fresh}},
		"never confirmed":            {func(f *guard.Finding, _ *guard.State) { f.Heard = time.Time{} }, []guard.Name{guard.Fresh}},
		"the same did not help before": {func(_ *guard.Finding, s *guard.State) {
			s.Grants = append(s.Grants, vain("a", "rank/straggler", false, ago(20*24*time.Hour)))
		}, []guard.Name{guard.NotInVain}},
		"another did not help before": {func(_ *guard.Finding, s *guard.State) {
			s.Grants = append(s.Grants, vain("a", "anomaly/degraded", false, ago(20*24*time.Hour)))
		}, nil},
		"two others in a row": {func(_ *guard.Finding, s *guard.State) {
			s.Grants = append(s.Grants, vain("b", "anomaly/degraded", false, ago(50*time.Hour)), vain("a", "anomaly/launch-latency", false, ago(70*time.Hour)))
		}, []guard.Name{guard.NotInVain}},
		"one that helped in between": {func(_ *guard.Finding, s *guard.State) {
			s.Grants = append(s.Grants, vain("c", "rank/imbalance", true, ago(60*time.Hour)), vain("b", "anomaly/degraded", false, ago(50*time.Hour)), vain("a", "anomaly/launch-latency", false, ago(70*time.Hour)))
		}, nil},
		"one in between of which nobody could tell": {func(_ *guard.Finding, s *guard.State) {
			unknown := vain("c", "rank/imbalance", true, ago(60*time.Hour))
			unknown.Helped = false
			s.Grants = append(s.Grants, unknown, vain("b", "anomaly/degraded", false, ago(50*time.Hour)), vain("a", "anomaly/launch-latency", false, ago(70*time.Hour)))
		}, []guard.Name{guard.NotInVain}},
		"of another job": {func(_ *guard.Finding, s *guard.State) {
			g := vain("a", "rank/straggler", false, ago(50*time.Hour))
			g.Job = "other"
			s.Grants = append(s.Grants, g)
		}, nil},
		"a certain finding needs only to last": {func(f *guard.Finding, _ *guard.State) {
			*f = guard.Finding{Signal: "xid/63", For: time.Minute, Lasted: time.Hour}
		}, nil},
		"and it must": {func(f *guard.Finding, _ *guard.State) { *f = guard.Finding{Signal: "xid/63", For: time.Minute} }, []guard.Name{guard.Lasts}},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := found(), guard.State{Total: 40}
			c.change(f, &s)
			a := action(policy.Cordon)
			a.Finding = f
			if got := refusing(a, s); !slices.Equal(got, c.want) {
				t.Errorf("refused by %v, want %v", got, c.want)
			}
			if a.Finding = nil; len(refusing(a, s)) > 0 {
				t.Error("guards of findings judge a plan without terms")
			}
		})
	}
}

func TestAMoveThatDidNotHelpIsKeptForAMonthAndOthersAsLongAsAGuardLooksBack(t *testing.T) {
	before := ago(24 * time.Hour)
	for name, c := range map[string]struct {
		g    guard.Grant
		want bool
	}{
		"a day old":                 {guard.Grant{Ended: ago(23 * time.Hour), Did: []guard.Done{{}}}, true},
		"a day old, and nothing":    {guard.Grant{Ended: ago(23 * time.Hour)}, false},
		"older":                     {guard.Grant{Ended: ago(25 * time.Hour), Did: []guard.Done{{}}}, false},
		"in vain":                   {guard.Grant{Ended: ago(29 * 24 * time.Hour), Did: []guard.Done{{}}, Vain: true}, true},
		"moved for a finding":       {guard.Grant{Ended: ago(29 * 24 * time.Hour), Did: []guard.Done{{Verb: policy.RestartJob}}, Finding: "rank/straggler"}, true},
		"cordoned for a finding":    {guard.Grant{Ended: ago(25 * time.Hour), Did: []guard.Done{{Verb: policy.Cordon}}, Finding: "rank/straggler"}, false},
		"moved for a certain fault": {guard.Grant{Ended: ago(25 * time.Hour), Did: []guard.Done{{Verb: policy.RestartJob}}}, false},
		"moved, and a month past":   {guard.Grant{Ended: ago(31 * 24 * time.Hour), Did: []guard.Done{{Verb: policy.RestartJob}}, Finding: "rank/straggler"}, false},
		"in vain, and a month past": {guard.Grant{Ended: ago(31 * 24 * time.Hour), Did: []guard.Done{{}}, Vain: true}, false},
	} {
		if got := c.g.Kept(before, now); got != c.want {
			t.Errorf("%s: kept %v", name, got)
		}
	}
}
