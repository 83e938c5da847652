package ledger

import (
	"errors"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator/guard"
)

func TestWhoeverIsElectedTakesTheBookOverThoughTheLeaseCountsAnew(t *testing.T) {
	store := &shelf{}
	start := func(token int64) *Ledger {
		l := New(Options{Store: store, Term: token})
		if _, err := l.Start(t.Context(), func() []guard.Grant { return nil }, func(*Book) {}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := start(7)
	second := start(0) // somebody deleted the Lease, or nobody is elected any more
	if second.Term() <= first.Term() {
		t.Errorf("term %d after %d", second.Term(), first.Term())
	}
	if _, err := second.Admit(t.Context(), Request{Incident: "b", Judge: func(*Book, time.Time) []guard.Verdict { return nil }}); err != nil {
		t.Error(err)
	}
	if _, err := first.Admit(t.Context(), Request{Incident: "a", Judge: func(*Book, time.Time) []guard.Verdict { return nil }}); !errors.Is(err, ErrDeposed) {
		t.Errorf("the leader before is told %v", err)
	}
}
