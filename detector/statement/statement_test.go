package statement

import (
	"testing"
	"time"
)

func TestKeysMatchByTheirHalves(t *testing.T) {
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"*", "anomaly/x gpu/G", true},
		{"anomaly/x gpu/G", "anomaly/x gpu/G", true},
		{"anomaly/x", "anomaly/x gpu/G", true},
		{"anomaly/x gpu/H", "anomaly/x gpu/G", false},
		{"anomaly/* gpu/G", "anomaly/x gpu/G", true},
		{"anomaly/x pod/*", "anomaly/x gpu/G", false},
		{"", "anomaly/x gpu/G", false},
	} {
		if Match(c.pattern, c.key) != c.want {
			t.Errorf("%q and %q", c.pattern, c.key)
		}
	}
}

func TestAPatternNamesFindingsByItsFirstHalf(t *testing.T) {
	for pattern, want := range map[string]bool{"*": true, "rank/straggler": true, "rank/* job/x*": true, "anomaly/* gpu/G": false, "rank/absent *": false, "": false} {
		if Names(pattern, "rank/straggler") != want {
			t.Errorf("%q", pattern)
		}
	}
}

func TestAStatementIsOfItsNodeAndSaysWhoUntilWhenAndWhy(t *testing.T) {
	s := Statement{Verb: Mute, Node: "n1*", Key: "rank/*", By: "ada", Reason: "known", Until: time.Unix(1_800_000_000, 0)}
	if !s.About("rank/absent job/j", "n12") || s.About("rank/absent job/j", "n2") || s.About("rank/absent job/j", "") {
		t.Error("its node")
	}
	if got := s.Words(); got != "muted by ada until 2027-01-15T08:00:00Z: known" {
		t.Error(got)
	}
	if got := (&Statement{Verb: Accept, By: "bob"}).Words(); got != "accepted by bob" {
		t.Error(got)
	}
}

func TestTheNewestStatementsCount(t *testing.T) {
	all := make([]Statement, Most+1)
	for i := range all {
		all[i].At = time.Unix(int64(Most-i), 0)
	}
	got := Newest(all)
	if len(got) != Most || got[0].At.Unix() != 1 || got[Most-1].At.Unix() != Most {
		t.Errorf("%d from %v to %v", len(got), got[0].At, got[len(got)-1].At)
	}
}
