package torchreceiver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/pitcrew/pitcrew/hook"
	"github.com/pitcrew/pitcrew/hook/hooktest"
	"github.com/pitcrew/pitcrew/semconv"
)

// pods makes pods with so many rings each, and waits until a fleet has seen them.
func pods(t *testing.T, b hook.Budget, ranks ...int) (*hook.Fleet, []*hook.Pod) {
	t.Helper()
	root := t.TempDir()
	for i, n := range ranks {
		dir := hooktest.Pod(t, root, fmt.Sprintf("0b9f5a1e-1111-4222-8333-%012d", i))
		for local := range n {
			hooktest.Start(t, hooktest.Config{Dir: dir, Rank: local, LocalRank: local, WorldSize: n, NoSocket: 1}).Tell("step 1")
		}
	}
	fleet := hook.NewFleet(hook.FleetOptions{KubeletRoot: root, Budget: b})
	fleet.Start()
	t.Cleanup(fleet.Close)
	var all []*hook.Pod
	for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		all = fleet.Pods()
		seen, want := 0, 0
		for i, n := range ranks {
			want += n
			if i < len(all) {
				for _, r := range all[i].Ranks() {
					if r.Ring() != nil {
						seen++
					}
				}
			}
		}
		if seen == want {
			return fleet, all
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d rings seen", seen, want)
		}
	}
}

func TestAPodOverBudgetIsReadLastAndOthersAsBefore(t *testing.T) {
	fleet, all := pods(t, hook.Budget{}, 6, 2)
	r, err := newReceiver(receivertest.NewNopSettings(Type), NewDefaultConfig(), func() {})
	if err != nil {
		t.Fatal(err)
	}
	r.fleet = fleet
	names := func(at time.Time, cursors map[*hook.Ring]cursor) (map[string]map[string]int, map[*hook.Ring]cursor) {
		md, next := r.sample(cursors, at)
		got := map[string]map[string]int{}
		for _, rm := range md.ResourceMetrics().All() {
			for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
				if m.Name() == overBudget.name {
					for _, p := range m.Sum().DataPoints().All() {
						uid, _ := p.Attributes().Get("k8s.pod.uid")
						what, _ := p.Attributes().Get("pitcrew.budget")
						add(got, uid.Str(), m.Name()+" "+what.Str())
					}
				} else if m.Name() == step.name || m.Name() == "pitcrew.train.loss" {
					for _, p := range m.Gauge().DataPoints().All() {
						uid, _ := p.Attributes().Get("k8s.pod.uid")
						add(got, uid.Str(), m.Name())
					}
				}
			}
		}
		return got, next
	}
	loud, quiet := all[0].UID(), all[1].UID()
	now := time.Now()
	all[0].Exceed(hook.Messages, 7)
	got, cursors := names(now, nil)
	if got[loud][step.name] != lifeRanks || got[loud]["pitcrew.train.loss"] != 0 || got[loud][overBudget.name+" messages"] != 1 {
		t.Errorf("of the loud pod: %v", got[loud])
	}
	if got[quiet][step.name] != 2 || got[quiet]["pitcrew.train.loss"] != 2 {
		t.Errorf("of the quiet pod: %v", got[quiet])
	}
	if got, _ := names(now.Add(lifeEveryOver/2), cursors); got[loud][step.name] != 0 || got[quiet][step.name] == 0 {
		t.Errorf("a second later: %v", got)
	}
}

func add(m map[string]map[string]int, a, b string) {
	if m[a] == nil {
		m[a] = map[string]int{}
	}
	m[a][b]++
}

func TestTheNodesShareGoesToSmallerPodsFirstAndAFloodOfStepsIsNamed(t *testing.T) {
	_, all := pods(t, hook.Budget{}, 6, 2)
	c := NewDefaultConfig()
	c.DetailRanks, c.NodeRecords = 5, hook.Rate{PerSecond: 1, Burst: 40}
	r := newRation(c)
	shares := r.share(all, time.Now())
	if a, b := shares[all[0]], shares[all[1]]; a.full != 3 || b.full != 2 {
		t.Errorf("%d and %d ranks in full, want 3 and 2", a.full, b.full)
	}
	if got := r.grant(all[0], shares[all[0]], 30); got != 30 {
		t.Errorf("%d steps of a quiet node", got)
	}
	shares = r.share(all, time.Now()) // 10 are left, for two pods
	if got := r.grant(all[0], shares[all[0]], 30); got != 5 || !all[0].OverBudget() {
		t.Errorf("%d steps, want 5; over budget: %v", got, all[0].OverBudget())
	}
	if got := r.grant(all[1], shares[all[1]], 2); got != 2 || all[1].OverBudget() {
		t.Errorf("the other pod: %d steps, want 2; over budget: %v", got, all[1].OverBudget())
	}
}

func TestWhenMemoryIsShortTheCheapestPodIsShedFirstAndComesBack(t *testing.T) {
	_, all := pods(t, hook.Budget{}, 2, 1, 3)
	c := NewDefaultConfig()
	r := newRation(c)
	s := newShedder(100, r)
	used := uint64(0)
	s.used = func() uint64 { return used << 20 }
	now := time.Now()
	look := func(mib uint64) string {
		used, now = mib, now.Add(restoreEvery)
		s.look(all, now)
		return strings.Join(s.order, " ")
	}
	if got := look(70); got != "" {
		t.Errorf("below the bound: %s", got)
	}
	all[2].Exceed(hook.Bytes, 1) // the largest is over budget
	want := []string{all[2].UID(), all[1].UID()}
	for i := range want {
		if got := look(80); got != strings.Join(want[:i+1], " ") {
			t.Errorf("shed %s, want %v", got, want[:i+1])
		}
	}
	if got := look(80); got != strings.Join(want, " ") {
		t.Errorf("the last pod was shed: %s", got)
	}
	shares := r.share(all, now)
	if d, _ := shares[all[1]].of(0); d != nothing {
		t.Error("a pod that is shed is read")
	}
	if d, _ := shares[all[0]].of(0); d != full {
		t.Error("the pod that is left is not read in full")
	}
	if got := look(50); got != want[0] {
		t.Errorf("memory is free again, and shed is %s", got)
	}
}

// flood speaks as a rank and then sends answers that nobody asked for. Once it is not read any more it begins anew.
func flood(c net.Conn) {
	defer c.Close()
	_, err := c.Write([]byte(`{"t":"hello","v":1,"role":"rank","rank":0,"local_rank":0,"world_size":1,"attempt":0,"pid":1}` + "\n"))
	for err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		_, err = c.Write([]byte(strings.Repeat(`{"t":"held","req":"x"}`+"\n", 100)))
	}
}

func TestAFloodNamesItsPodAndBudgetInALogEvent(t *testing.T) {
	root := t.TempDir()
	dir := hooktest.Pod(t, root, podUID)
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	ln, err := net.Listen("unix", filepath.Join("/proc/self/fd", fmt.Sprint(at.Fd()), hook.SocketName(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for { // a session that ends is begun anew
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go flood(c)
		}
	}()
	logs := &logSink{}
	start(t, componenttest.NewNopHost(), root, logs, nil)
	rec := logs.wait(t, semconv.EventTrainOverBudget)
	pod, _ := rec.Attributes().Get("k8s.pod.uid")
	budget, _ := rec.Attributes().Get("pitcrew.budget")
	if pod.Str() != podUID || budget.Str() != "messages" && budget.Str() != "bytes" {
		t.Errorf("%v", rec.Attributes().AsRaw())
	}
}
