package anomaly

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/event"
)

// restart ends the engine and gives its state to a new one, as an agent that is replaced does.
func (n *node) restart(o Options) {
	n.t.Helper()
	b := n.e.Snapshot()
	e, err := New(o)
	if err != nil {
		n.t.Fatal(err)
	}
	found, err := e.Restore(b)
	if err != nil {
		n.t.Fatal(err)
	}
	n.e = e
	n.out = append(n.out, found...)
}

var same = Options{Cluster: "c", Node: "n1", BootID: "boot-1"}

// story is a node that meets a throttled GPU and a launch spike; at each of the given ticks of 5 s it is restarted.
func story(t *testing.T, restarts ...int) []string {
	n := newNode(t, 2).pass(learnt)
	for i := range 60 {
		if slices.Contains(restarts, i) {
			n.restart(same)
		}
		switch i {
		case 2:
			n.clock[0], n.throttled[0], n.paceTimes = 1.4e9, true, 1.3
		case 12:
			n.clock[0], n.throttled[0], n.paceTimes = 1.98e9, false, 1
		case 30:
			n.launchAt[1], n.paceTimes = 0.01, 1.3
		case 33:
			delete(n.launchAt, 1)
			n.paceTimes = 1
		}
		n.pass(5 * time.Second)
	}
	said := n.said()
	return slices.DeleteFunc(said, func(s string) bool { return s[0] == '~' })
}

func TestARestartInTheMiddleSaysNothingTwiceAndLosesNothing(t *testing.T) {
	want := story(t)
	if len(only(want, "critical", "warning")) < 2 || len(only(want, "-")) < 4 {
		t.Fatalf("the story itself: %q", want)
	}
	for _, at := range [][]int{{1}, {4}, {8}, {13}, {31}, {3, 5, 7, 31, 32, 34}} {
		if got := story(t, at...); !slices.Equal(got, want) {
			t.Errorf("restarted at %v it said\n%q, without\n%q", at, got, want)
		}
	}
}

func TestWhatIsOpenIsGivenBackAsConditionsAfterARestart(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.temp[0] = 85
	n.pass(20 * time.Second)
	n.said()
	n.restart(same)
	said := n.said()
	slices.Sort(said)
	n.want("after the restart", said, "~info memory-temperature gpu/GPU-0", "~info temperature gpu/GPU-0")
	n.restart(Options{Cluster: "c", Node: "n1", BootID: "boot-2"})
	n.want("after a reboot", n.said())
	if c := n.e.Counts(); c.Open != 0 || c.Series == 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestWhereTheSeriesAreOfAnotherBuildFindingsStandUntilTheirBandIsMet(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	n.temp[0] = 85
	n.pass(15 * time.Second)
	n.said()
	other := same
	other.Asked = 0.5 // the series engine refuses a snapshot for another rate
	n.restart(other)
	n.pass(20 * time.Second)
	n.want("still hot", only(n.said(), "info", "-"))
	n.temp[0] = 62
	n.pass(30 * time.Second)
	n.want("cool again", only(n.said(), "-info temperature"), "-info temperature gpu/GPU-0")
}

func TestADamagedSnapshotIsRefusedAndChangesNothing(t *testing.T) {
	n := newNode(t, 2).pass(learnt)
	good := n.e.Snapshot()
	before := n.e.Counts()
	for name, b := range map[string][]byte{
		"empty": nil, "cut": good[:len(good)-9], "flipped": flip(good, len(good)/2), "head": flip(good, 0), "version": signed(flip(good[:len(good)-4], 8)),
		"lengths": signed(flip(good[:len(good)-4], 13)), "index": signed(append(append([]byte{}, good[:snapshotHead]...), bytes.Repeat([]byte{'{'}, len(good)-snapshotHead-4)...)),
	} {
		if _, err := n.e.Restore(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if after := n.e.Counts(); after != before {
		t.Errorf("counts %+v, before %+v", after, before)
	}
	if again := n.e.Snapshot(); !bytes.Equal(again, good) {
		t.Error("the same engine gives another snapshot")
	}
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 0x5a
	return b
}

func signed(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(b), crc32.Checksum(b, castagnoli))
}

func FuzzSnapshotsOfAnyBytesAreRefusedOrWork(f *testing.F) {
	n := newNode(&testing.T{}, 1).pass(50 * time.Second)
	n.temp[0] = 95
	n.pass(20 * time.Second)
	if len(n.said()) == 0 {
		f.Fatal("nothing is open in the seed")
	}
	good := n.e.Snapshot()
	f.Add(good[:len(good)-4])
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := New(Options{Cluster: "c", Node: "n1", BootID: "boot-1", MaxSeries: 256})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Restore(signed(b)); err != nil {
			return
		}
		for i := range 50 {
			at := t0.Add(time.Duration(i) * time.Second)
			e.Put(Lookup("hw.power"), Labels{GPU: "GPU-0"}, at.UnixNano(), 600)
			e.Put(Lookup("hw.temperature"), Labels{GPU: "GPU-0", Value: "gpu"}, at.UnixNano(), 62)
			for _, x := range e.End(at) {
				if _, err := event.Encode(x.Event); err != nil {
					t.Fatal(err)
				}
			}
		}
		e.Snapshot()
	})
}
