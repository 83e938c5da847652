package xidreceiver

import (
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/semconv"
)

// Events missed while the agent was down: sichek 121, and every one-shot reader.
func TestARestartRepeatsNothingAsNewsAndMissesNothing(t *testing.T) {
	r := newRig(t).start()
	r.log.write("NVRM: GPU at PCI:0000:1b:00: GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2")
	r.log.xid("0000:1a:00", 79)
	first := r.next()
	r.stop()
	r.log.xid("0000:1b:00", 48) // while the agent is down
	r.start()
	again, missed := r.next(), r.next()
	if again.code() != 79 || !again.flag(semconv.History) || !again.flag(semconv.HistoryPublished) || again.attrs[semconv.KmsgSeq] != first.attrs[semconv.KmsgSeq] || again.attrs[semconv.BootID] != first.attrs[semconv.BootID] {
		t.Errorf("the published one: %+v", again)
	}
	if missed.code() != 48 || missed.flag(semconv.History) || missed.attrs[semconv.HWID] == nil {
		t.Errorf("the missed one: %+v", missed)
	}
	r.nothingElse()
}

func TestARestartCountsNoLineASecondTime(t *testing.T) {
	r := newRig(t).start()
	r.log.raw("12,1,1000,-;NVRM: Xid (PCI:0000:1a:00): 79, pid=1, name=a, by a process\n")
	r.log.raw("4,2,1001,-;NVRM: Xid (PCI:0000:1a:00): seventy\n")
	r.log.raw("4,3,1002,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=a, real\n")
	for _, want := range []int64{1, 0} {
		r.next()
		if forged, malformed := r.metric(semconv.KernelLinesForged), r.metric(semconv.KernelLinesMalformed); forged != want || malformed != want {
			t.Errorf("%d forged and %d malformed lines counted, want %d", forged, malformed, want)
		}
		r.stop()
		r.start()
	}
}

func TestAfterARestartOldLinesThatWereMissedAreNews(t *testing.T) {
	r := newRig(t).start()
	r.log.xid("0000:1a:00", 31)
	r.next()
	r.stop()
	r.cfg.NewsWindow = 0 // by age alone it would be history
	r.log.xid("0000:1b:00", 79)
	r.start()
	r.next()
	if rec := r.next(); rec.code() != 79 || rec.flag(semconv.History) {
		t.Errorf("%+v", rec)
	}
}

func TestEventsOfAnEarlierBootAreHistory(t *testing.T) {
	r := newRig(t)
	r.log.xid("0000:1a:00", 79)
	r.log.xid("0000:1a:00", 45)
	r.log.seq = 0 // a log that was kept over a boot
	r.log.xid("0000:1b:00", 31)
	r.start()
	for _, want := range []struct {
		code    int
		history bool
	}{{79, true}, {45, true}, {31, false}} {
		rec := r.next()
		if rec.code() != want.code || rec.flag(semconv.History) != want.history || (rec.attrs[semconv.BootID] == "boot-1") == want.history {
			t.Errorf("%+v", rec)
		}
	}
	// And from beyond the present: an earlier boot was up for longer.
	r = newRig(t)
	r.log.age = -time.Hour
	r.log.xid("0000:1a:00", 79)
	r.start()
	if rec := r.next(); !rec.flag(semconv.History) || rec.attrs[semconv.BootID] != earlierBoot {
		t.Errorf("%+v", rec)
	}
}

func TestLinesLostWhileTheAgentWasDownAreSaid(t *testing.T) {
	r := newRig(t).start()
	r.log.xid("0000:1a:00", 31)
	r.next()
	r.stop()
	r.log.seq += 10
	r.log.create() // the ring has turned over
	r.log.xid("0000:1b:00", 79)
	r.start()
	got := []string{r.next().event, r.next().event}
	if !slices.Contains(got, eventLinesLost) || !slices.Contains(got, "pitcrew.kernel.xid") {
		t.Errorf("%v", got)
	}
	if n := r.metric(semconv.KernelLinesLost); n != 10 {
		t.Errorf("%d lost", n)
	}
}

// What was published is kept as it is published: an agent that is killed has no shutdown.
func TestAnAgentThatIsKilledRepeatsNothingAsNews(t *testing.T) {
	r := newRig(t).start()
	r.log.write("NVRM: GPU at PCI:0000:1b:00: GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2")
	r.log.xid("0000:1a:00", 79)
	first := r.next()
	r.nothingElse() // and so what came before is stored
	killed := r.store.copy()
	r.stop()
	r.store = killed
	r.log.seq = uint64(first.attrs[semconv.KmsgSeq].(int64)) + 2
	r.log.create() // the ring has overwritten the line that told the UUID, and all else
	r.log.xid("0000:1b:00", 48)
	r.start()
	rec := r.next()
	if rec.event == eventLinesLost {
		t.Fatalf("nothing was lost: %+v", rec)
	}
	if rec.code() != 48 || rec.flag(semconv.History) || rec.attrs[semconv.HWID] != "GPU-aeab3757-56a6-7e30-3f7c-1f322454bde2" {
		t.Errorf("%+v", rec)
	}
	r.nothingElse()
}

// The sequence begins anew with each boot: what an earlier boot had published says nothing of this one's lines.
func TestAPositionOfAnEarlierBootHidesNoEventOfThisOne(t *testing.T) {
	r := newRig(t).start()
	for range 50 {
		r.log.write("usb 1-1: new high-speed USB device")
	}
	r.log.xid("0000:1a:00", 31)
	r.next()
	r.stop()
	r.boots("boot-2")
	r.log.xid("0000:1a:00", 79)
	r.start()
	if rec := r.next(); rec.code() != 79 || rec.flag(semconv.History) || rec.attrs[semconv.BootID] != "boot-2" {
		t.Errorf("%+v", rec)
	}
	if n := r.metric(semconv.KernelLinesLost); n != 0 {
		t.Errorf("%d lost, of another boot's sequence", n)
	}
}
