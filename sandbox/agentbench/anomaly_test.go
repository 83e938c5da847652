package agentbench

import (
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
)

// envFull asks for tests that take minutes.
const envFull = "PITCREW_TEST_FULL"

// throttle makes a simulated GPU slow itself down for heat: the driver's reason, the clock and the temperature.
func (n *node) throttle(gpu int) {
	n.t.Helper()
	for field, v := range map[uint16]float64{112: 0x40, 100: 1200, 150: 89} { // hardware thermal slowdown, SM clock, temperature
		if err := n.gpus.Set(gpu, field, v); err != nil {
			n.t.Fatal(err)
		}
	}
}

func TestAGpuThatThrottlesIsToldOnceAcrossANewAgentAndNotWhileMuted(t *testing.T) {
	if os.Getenv(envFull) == "" {
		t.Skip("learning takes a minute; set " + envFull)
	}
	n := startNode(t, "PITCREW_DCGM_MAX_INTERVAL=1s")
	heard := n.listen()
	time.Sleep(90 * time.Second) // learning: series are unknown until then
	if all := heard.about("anomaly/thermal-throttle"); len(all) > 0 {
		t.Fatalf("healthy GPUs throttle: %+v", all)
	}
	began := time.Now()
	n.throttle(3)
	n.eventually("the finding", func() bool { return len(heard.about("anomaly/thermal-throttle")) == 1 })
	t.Logf("told after %s", time.Since(began).Round(100*time.Millisecond))
	d := heard.about("anomaly/thermal-throttle")[0].Data
	if d.Target.GPU != n.gpus.GPUs()[3].UUID || !d.Severity.AtLeast(event.Warning) || len(d.Evidence.Signals) == 0 || d.Evidence.PromQL == "" {
		t.Errorf("event %+v", d)
	}
	t.Logf("%s; %s", d.Evidence.Raw, d.Evidence.PromQL)

	if err := n.agent.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = n.agent.cmd.Wait()
	n.agent = n.start(n.collector, "agent", n.env)
	n.eventually("the new agent to serve", func() bool { _, code := healthOf(n.agent); return code == http.StatusOK })
	mute := bus.Statement{Verb: bus.StateMute, Node: "node-a", Key: "anomaly/* gpu/" + n.gpus.GPUs()[5].UUID, By: "a test", At: time.Now(), Until: time.Now().Add(time.Hour)}
	if _, err := n.bus.Statements().Put(t.Context(), mute.ID(), mute, 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(15 * time.Second)
	n.throttle(5)
	n.throttle(6)
	n.eventually("the finding of the GPU that is not muted", func() bool { return len(heard.about("anomaly/thermal-throttle")) > 1 })
	time.Sleep(5 * time.Second)
	for i, e := range heard.about("anomaly/thermal-throttle") {
		if want := n.gpus.GPUs()[[]int{3, 6}[min(i, 1)]].UUID; i > 1 || e.Data.Target.GPU != want {
			t.Errorf("event %d is of %s", i, e.Data.Target.GPU)
		}
	}
}
