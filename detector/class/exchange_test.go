package class

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// give brings all that changed in a to b.
func give(t *testing.T, a *Store, l *Ledger, b *Store, now int64) (pieces int) {
	t.Helper()
	set, _ := a.Changed(l, 99)
	for _, p := range set {
		if err := b.Take(&Ledger{}, a.cfg.Writer, p.ID, p.Raw, now); err != nil {
			t.Fatal(err)
		}
		l.Gave(p)
	}
	return len(set)
}

func TestGatewaysThatGiveEachOtherTheirRecordsKnowTheSame(t *testing.T) {
	a, b, union := store(t, Config{Writer: "a"}), store(t, Config{Writer: "b"}), store(t, Config{})
	for i := range 3 {
		observe(a, key("570"), fmt.Sprint("run", i), 300, int64(i)*1e12, 1)
		observe(b, key("580"), fmt.Sprint("job", i), 300, int64(i)*1e12, 1.2)
	}
	union.Merge(a)
	union.Merge(b)
	var la, lb Ledger
	if n := give(t, a, &la, b, 1e13) + give(t, b, &lb, a, 1e13); n != 6 { // and nothing of what the other gave
		t.Errorf("%d pieces", n)
	}
	if !bytes.Equal(a.Snapshot(), b.Snapshot()) || !bytes.Equal(a.Snapshot(), union.Snapshot()) {
		t.Error("they know different things")
	}
	if n := give(t, a, &la, b, 1e13); n != 0 {
		t.Errorf("%d pieces again", n)
	}
	observe(a, key("570"), "run1", 10, 5e12, 1)
	if n := give(t, a, &la, b, 1e13); n != 1 || !bytes.Equal(a.Snapshot(), b.Snapshot()) {
		t.Errorf("%d pieces of one that changed", n)
	}
	if d := a.Compare(key("580"), Driver); len(d) == 0 { // three runs on either side, of two gateways
		t.Error("drivers of two gateways are not compared")
	}
}

func TestWhatWasDroppedIsTakenAwayAndWhatWasLostComesBack(t *testing.T) {
	a, b := store(t, Config{Writer: "a", PerClass: 2}), store(t, Config{Writer: "b"})
	var l Ledger
	for i := range 3 {
		observe(a, key("570"), fmt.Sprint("run", i), 30, int64(i)*1e12, 1)
		give(t, a, &l, b, 1e13)
	}
	set, gone := a.Changed(&l, 99)
	if len(set) != 0 || len(gone) != 1 {
		t.Fatalf("%d pieces, gone %v", len(set), gone)
	}
	l.Forgot(gone[0])
	if _, gone = a.Changed(&l, 99); len(gone) != 0 {
		t.Errorf("gone %v", gone)
	}
	set, _ = a.Changed(&Ledger{}, 99)
	again, fresh := store(t, Config{Writer: "a", PerClass: 2}), Ledger{}
	for _, p := range set {
		if err := again.Take(&fresh, "a", p.ID, p.Raw, 1e13); err != nil {
			t.Fatal(err)
		}
	}
	if set, _ = again.Changed(&fresh, 99); len(set) != 0 || !bytes.Equal(again.Snapshot(), a.Snapshot()) {
		t.Errorf("%d pieces are given again", len(set))
	}
}

func TestAPieceThatIsForgedOrGarbledIsRefusedAndChangesNothing(t *testing.T) {
	a := store(t, Config{Writer: "a"})
	observe(a, key("570"), "run", 300, 1e12, 1)
	set, _ := a.Changed(&Ledger{}, 99)
	p := set[0]
	observe(a, key("570"), "other", 300, 1e12, 1)
	flip := bytes.Clone(p.Raw)
	flip[len(flip)/2] ^= 1
	old := bytes.Clone(p.Raw)
	old[len(snapshotMagic)] = 1
	for name, c := range map[string]struct {
		writer, id string
		raw        []byte
		now        int64
		says       string
	}{
		"of another gateway":         {"b", p.ID, p.Raw, 2e12, "lies under the name of"},
		"under another id":           {"a", "0123", p.Raw, 2e12, "another's id"},
		"of two records":             {"a", p.ID, a.Snapshot(), 2e12, "2 records"},
		"of none":                    {"a", p.ID, store(t, Config{}).Snapshot(), 2e12, "0 records"},
		"of the future":              {"a", p.ID, p.Raw, 1e12 - int64(time.Hour), "ahead of this gateway's clock"},
		"with a flipped bit":         {"a", p.ID, flip, 2e12, "checksum"},
		"of another build's version": {"a", p.ID, old, 2e12, "version 1"},
		"cut":                        {"a", p.ID, p.Raw[:20], 2e12, "checksum"},
		"empty":                      {"a", p.ID, nil, 2e12, "not a snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			b := store(t, Config{Writer: "b"})
			observe(b, key("570"), "mine", 30, 1e12, 1)
			before := b.Snapshot()
			err := b.Take(&Ledger{}, c.writer, c.id, c.raw, c.now)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if !bytes.Equal(before, b.Snapshot()) {
				t.Error("it changed something")
			}
		})
	}
}
