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

// A move that helped ends a row of moves that did not. Were it forgotten after a day, two moves that did not help in a month would count as two
// in a row, and the job would be put on hold.
func TestAMoveThatHelpedIsRememberedAsLongAsThoseThatDidNot(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	moved := func(id string, days int, vain bool) guard.Grant {
		at := now.Add(-time.Duration(days) * 24 * time.Hour)
		return guard.Grant{Incident: id, Job: "j", Finding: "rank/" + id, At: at, Ended: at, Vain: vain, Helped: !vain, Did: []guard.Done{{Verb: policy.Cordon, At: at}, {Verb: policy.RestartJob, At: at}}}
	}
	b := Book{Grants: []guard.Grant{moved("first", 10, true), moved("second", 5, false), moved("third", 1, true)}}
	b.prune(now.Add(-24*time.Hour), now)
	if n, all := guard.Vain(b.Grants, "j", ""); n != 1 || len(all) != 2 {
		t.Errorf("%d in a row, of %v: %+v", n, all, b.Grants)
	}
}
