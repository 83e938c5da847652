package placement_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/remediator/placement"
)

func TestTheDocsNameEveryReasonTierAndHardLabel(t *testing.T) {
	b, err := os.ReadFile("../../docs/placement.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, r := range []placement.Reason{placement.NotSameNode, placement.Faulty, placement.FailedDomain, placement.NotReady, placement.Quarantined,
		placement.Cordoned, placement.Held, placement.OpenCondition, placement.ReservedOther, placement.HoldsPeer, placement.Tainted, placement.Selector, placement.AffinityNo, placement.VolumeAway, placement.AntiAffinity, placement.DRAClaim,
		placement.Class, placement.NoRoom, placement.TooFar, placement.RankedLower} {
		want = append(want, string(r))
	}
	want = append(want, placement.Tiers()...)
	want = append(want, placement.HardLabels()...)
	for _, w := range want {
		if !strings.Contains(string(b), "`"+w+"`") {
			t.Errorf("docs/placement.md does not name `%s`", w)
		}
	}
}
