package agentbench

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook/hooktest"
)

// rank starts a training rank in a pod of its own and waits until the agent sees it step.
func (n *node) rank(local int, uid string) *hooktest.Process {
	n.t.Helper()
	p := hooktest.Start(n.t, hooktest.Config{
		Dir: hooktest.Pod(n.t, n.kubeletRoot(), uid), Rank: local, LocalRank: local, WorldSize: 8, StepEvery: 200 * time.Millisecond, CanSave: true,
	})
	n.eventually("a step of rank "+strconv.Itoa(local), func() bool {
		return strings.Contains(n.scrape(), `pitcrew_train_step_duration_seconds{`) && strings.Contains(n.scrape(), fmt.Sprintf(`pitcrew_rank="%d"`, local))
	})
	return p
}

// value of the first series with this beginning; not a number where there is none.
func (n *node) value(prefix string) float64 {
	_, rest, ok := strings.Cut(n.scrape(), "\n"+prefix)
	if !ok {
		return math.NaN()
	}
	line, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// callTimeout is the dcgm receiver's default: after that an answer is overdue.
const callTimeout = 5

func TestWhileDCGMHangsTheOtherSourcesFlowAndStatusSaysWhichIsStaleUntilItRecoversByItself(t *testing.T) {
	n := startNode(t)
	heard := n.listen()
	ranks := []*hooktest.Process{n.rank(0, "pod-0"), n.rank(1, "pod-1")}
	if s, code := healthOf(n.dcgm); code != http.StatusOK || strings.Contains(s, "StatusRecoverableError") {
		t.Fatalf("before the hang the DCGM process says %d %s", code, s)
	}
	if err := n.gpus.Hang("dcgmEntitiesGetLatestValues", time.Minute); err != nil {
		t.Fatal(err)
	}
	hung := time.Now()

	n.xid(2, 79) // at once, while nothing knows of the hang yet
	n.eventually("the XID of the hang's first moment", func() bool { return len(heard.about("xid/79")) == 1 })
	n.eventually("the status that names the call", func() bool {
		s, _ := healthOf(n.dcgm)
		return strings.Contains(s, "StatusRecoverableError") && strings.Contains(s, "dcgm read has not answered")
	})
	n.eventually("stale data said to be stale", func() bool { return n.value("pitcrew_dcgm_stale_seconds{") >= callTimeout })
	if s, code := healthOf(n.dcgm); code != http.StatusOK { // a probe must not end the process for what its driver does
		t.Errorf("the DCGM process's health is %d: %s", code, s)
	}
	if s, code := healthOf(n.agent); code != http.StatusOK || strings.Contains(s, "Error") {
		t.Errorf("the agent's health is %d: %s", code, s)
	}
	n.xid(3, 94)
	ranks[0].Kill()
	n.eventually("the XID of a GPU while DCGM hangs", func() bool { return len(heard.about("xid/94")) == 1 })
	n.eventually("the death of a rank while DCGM hangs", func() bool { return len(heard.about("rank/dead")) == 1 })
	if lost := heard.about("gpu/lost"); len(lost) > 0 {
		t.Errorf("a hang is taken for lost GPUs: %+v", lost)
	}
	if time.Since(hung) > 55*time.Second {
		t.Fatal("the hang may have ended by itself: nothing is proved")
	}

	if err := n.gpus.Answer("dcgmEntitiesGetLatestValues"); err != nil {
		t.Fatal(err)
	}
	n.eventually("fresh data again", func() bool { return n.value("pitcrew_dcgm_stale_seconds{") < callTimeout })
	n.eventually("the status to be well again", func() bool { s, _ := healthOf(n.dcgm); return !strings.Contains(s, "StatusRecoverableError") })
	if err := n.gpus.Lose(5); err != nil {
		t.Fatal(err)
	}
	n.eventually("a GPU lost after the hang", func() bool {
		l := heard.about("gpu/lost")
		return len(l) == 1 && l[0].Data.Target.GPU == n.gpus.GPUs()[5].UUID
	})
}

func TestADCGMProcessThatIsKilledTakesNothingWithItAndItsSuccessorGoesOn(t *testing.T) {
	n := startNode(t)
	heard := n.listen()
	if err := n.dcgm.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = n.dcgm.cmd.Wait()
	n.xid(2, 79)
	n.eventually("an XID without a DCGM process", func() bool { return len(heard.about("xid/79")) == 1 })
	if lost := heard.about("gpu/lost"); len(lost) > 0 {
		t.Errorf("a silent source is taken for lost GPUs: %+v", lost)
	}
	n.dcgm = n.start(n.dcgm.cmd.Path, "dcgm", n.dcgm.cmd.Env[2:])
	if err := n.gpus.Lose(5); err != nil {
		t.Fatal(err)
	}
	n.eventually("a GPU lost under the successor", func() bool { return len(heard.about("gpu/lost")) == 1 })
}

func TestTheLogsOfBothProcessesNameTheHangOnce(t *testing.T) {
	n := startNode(t)
	if err := n.gpus.Hang("dcgmHealthCheck", time.Minute); err != nil {
		t.Fatal(err)
	}
	said := func(p *process) int {
		raw, err := os.ReadFile(p.log.Name())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(raw), "has not answered")
	}
	n.eventually("a line that names the hang", func() bool { return said(n.dcgm) == 1 })
	n.eventually("three overdue rounds", func() bool { return n.value("pitcrew_dcgm_stale_seconds{") >= callTimeout+3 })
	if said(n.dcgm) != 1 || said(n.agent) != 0 {
		t.Errorf("said %d times by the DCGM process, %d by the agent", said(n.dcgm), said(n.agent))
	}
}
