package anomaly

import (
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/detector/statement"
)

func (n *node) says(all ...statement.Statement) *node {
	for i := range all {
		all[i].By, all[i].At = "ada", n.now
	}
	n.e.Say(all)
	return n
}

func TestAMuteHoldsWhatItNamesAndNothingAfterItsEnd(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.said()
	n.says(statement.Statement{Verb: statement.Mute, Key: "anomaly/temperature *", Until: n.now.Add(time.Minute)})
	n.temp[0] = 85
	n.pass(20 * time.Second)
	n.want("another signal", only(n.said(), "info"), "info memory-temperature gpu/GPU-0")
	n.temp[0] = 62
	n.pass(50 * time.Second)
	n.want("over before the mute", only(n.said(), "info temperature", "-info temperature"))
	n.temp[1] = 85
	n.pass(20 * time.Second)
	n.want("after the mute", only(n.said(), "info temperature"), "info temperature gpu/GPU-1")
	if n.e.Counts().Muted != 1 {
		t.Errorf("muted %d", n.e.Counts().Muted)
	}
}

func TestAMuteThatExpiresLetsTheStandingFindingBeSaidOnce(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.said()
	n.says(statement.Statement{Verb: statement.Mute, Key: "*", Until: n.now.Add(30 * time.Second)})
	n.throttled[0], n.clock[0], n.paceTimes = true, 1.3e9, 1.3
	n.pass(25 * time.Second)
	n.want("while muted", n.said())
	n.pass(25 * time.Second)
	if got := only(n.said(), "critical thermal-throttle", "warning thermal-throttle"); len(got) != 1 {
		t.Errorf("after it: %q", got)
	}
}

func TestAMuteHoldsInANewAgentThatHasNotHeardTheBusYet(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.said()
	n.says(statement.Statement{Verb: statement.Mute, Key: "*", Until: n.now.Add(time.Hour)})
	n.restart(same)
	n.temp[0] = 85
	n.pass(20 * time.Second)
	n.want("muted", n.said())
	n.says() // the bus says: nothing is muted
	n.pass(time.Second)
	n.want("no longer", only(n.said(), "info temperature"), "info temperature gpu/GPU-0")
}

func TestWhatWasSaidBeforeAMuteStillEndsByARecovery(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.temp[0] = 85
	n.pass(10 * time.Second)
	n.said()
	n.says(statement.Statement{Verb: statement.Mute, Key: "anomaly/* gpu/GPU-0", Until: n.now.Add(time.Hour)})
	n.temp[0] = 62
	n.pass(40 * time.Second)
	n.want("its end", only(n.said(), "-info temperature"), "-info temperature gpu/GPU-0")
}

func TestAnAcknowledgedFindingDoesNotComeAgainWhenItGetsWorse(t *testing.T) {
	for _, ack := range []bool{false, true} {
		n := newNode(t, 2).pass(learnt)
		n.throttled[0], n.clock[0], n.paceTimes = true, 1.5e9, 1.12
		n.pass(20 * time.Second)
		if got := only(n.said(), "warning thermal-throttle gpu/GPU-0"); len(got) != 1 {
			t.Fatalf("said %q", got)
		}
		if ack {
			n.says(statement.Statement{Verb: statement.Acknowledge, Key: "anomaly/thermal-throttle gpu/GPU-0", Reason: "fan ordered"})
		}
		n.paceTimes = 1.8
		n.pass(30 * time.Second)
		e := n.find("anomaly/thermal-throttle gpu/GPU-0")
		got := only(n.said(), "critical thermal-throttle gpu/GPU-0")
		if ack && (len(got) != 0 || len(e.Data.Evidence.Told) != 1 || e.Data.Evidence.Told[0] != "acknowledged by ada: fan ordered") {
			t.Errorf("acknowledged: said %q, told %q", got, e.Data.Evidence.Told)
		}
		if !ack && len(got) != 1 {
			t.Errorf("not acknowledged: said %q", got)
		}
	}
}

func TestAnAcceptedLevelIsTheBaselineAtOnceAndOldWordsDoNotCoverNewFindings(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.temp[0] = 75
	n.pass(12 * time.Second)
	n.said()
	n.says(statement.Statement{Verb: statement.Accept, Key: "anomaly/temperature gpu/GPU-0"}).pass(2 * time.Second)
	n.want("accepted", only(n.said(), "xinfo temperature", "-info temperature"), "xinfo temperature gpu/GPU-0")
	n.pass(20 * time.Second)
	n.want("the new level", only(n.said(), "info temperature"))
	n.temp[0] = 92 // beyond what was accepted, long before the series would have accepted it by itself
	n.pass(15 * time.Second)
	n.want("a new finding", only(n.said(), "info temperature", "xinfo temperature"), "info temperature gpu/GPU-0")
}

func TestAnAcceptedCompoundFindingEndsWithItsWitnessesAndStaysSilent(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.launchAt[0], n.paceTimes = 0.01, 1.3
	n.pass(12 * time.Second)
	if got := only(n.said(), "warning launch-latency gpu/GPU-0", "critical launch-latency gpu/GPU-0"); len(got) == 0 {
		t.Fatal("not found")
	}
	n.says(statement.Statement{Verb: statement.Accept, Key: "anomaly/launch-latency gpu/GPU-0"}).pass(3 * time.Minute)
	said := n.said()
	if len(only(said, "xcritical launch-latency gpu/GPU-0", "xwarning launch-latency gpu/GPU-0")) != 1 || len(only(said, "warning launch", "critical launch", "-info launch-latency")) > 0 {
		t.Errorf("said %q", said)
	}
}
