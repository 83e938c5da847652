package ledger

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

func TestTheBookKeepsAMoveThatDidNotHelp(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	old := guard.Grant{Incident: "old", Ended: now.Add(-48 * time.Hour), Did: []guard.Done{{Verb: policy.Cordon}}}
	vain := old
	vain.Incident, vain.Vain = "vain", true
	open := guard.Grant{Incident: "open", At: now.Add(-48 * time.Hour)}
	b := Book{Grants: []guard.Grant{old, vain, open}}
	b.prune(now.Add(-24*time.Hour), now)
	if len(b.Grants) != 2 || b.Grants[0].Incident != "vain" || b.Grants[1].Incident != "open" {
		t.Errorf("%+v", b.Grants)
	}
}
