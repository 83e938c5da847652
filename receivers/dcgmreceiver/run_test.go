package dcgmreceiver

import (
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A rack whose host engines are restarted together does not knock at all of them at once, nor ever more often.
func TestAttemptsToConnectGrowRarerAndApart(t *testing.T) {
	for jitter, want := range map[float64][]float64{
		0: {0.5, 1, 2, 4, 8, 15, 15}, 0.5: {0.75, 1.5, 3, 6, 12, 22.5, 22.5}, 1: {1, 2, 4, 8, 16, 30, 30},
	} {
		r := &run{dcgmReceiver: &dcgmReceiver{cfg: NewDefaultConfig(), jitter: func() float64 { return jitter }}}
		for i, s := range want {
			if d := r.backoff(); d.Seconds() != s {
				t.Errorf("jitter %v, attempt %d after %v, want %v s", jitter, i+1, d, s)
			}
		}
		if r.attempts = 1 << 30; r.backoff() > r.cfg.RetryMax {
			t.Error("many attempts make it wait beyond retry_max")
		}
	}
}

func TestATroubleIsSaidOnceAndAnotherAnew(t *testing.T) {
	core, said := observer.New(zap.WarnLevel)
	host := &statusHost{Host: componenttest.NewNopHost()}
	r := &run{dcgmReceiver: &dcgmReceiver{log: zap.New(core)}, host: host}
	for range 3 {
		r.report(errors.New("the engine is gone"))
	}
	r.report(errors.New("the driver hangs"))
	r.well()
	r.well()
	r.report(errors.New("the driver hangs"))
	if said.Len() != 3 || len(host.seen) != 4 {
		t.Errorf("said %v, statuses %v", said.All(), host.seen)
	}
}

// What is said while a round is under way is not in its answer.
func TestAViolationDuringARoundHasARoundOfItsOwn(t *testing.T) {
	src := twoGPUs()
	release := src.Hold("Read")
	b := startBench(t, src, func(c *Config) { c.Interval = time.Hour })
	eventually(t, "a round is under way", func() bool { return b.Calls("Read") == 1 })
	b.Violate(Violation{GPU: 1, Policy: "xid", Code: 79, Time: time.Now()})
	eventually(t, "the record", func() bool { return b.logs.LogRecordCount() == 1 })
	release()
	eventually(t, "a round after it", func() bool { return b.Calls("Read") == 2 })
}

// Cards and instances come and go for as long as the process runs.
func TestNothingIsRememberedOfCardsThatAreGone(t *testing.T) {
	b := newBuilder(NewDefaultConfig(), "n", nil)
	here, in := gpu(0, "here", true), Instance{ID: 3, GPU: 0, GI: 7}
	kept := []string{"here", in.id(here)}
	for _, id := range append([]string{"gone", "here/8"}, kept...) {
		b.counters[counterKey{id: id}] = counterState{}
		b.ailing[[2]string{id, "mem"}] = true
		b.linkWas[linkKey{id: id}] = "up"
		b.changes[id], b.xids[id] = 1, 79
	}
	b.forget([]presence{{here, true}}, Inventory{Devices: []Device{here}, Instances: []Instance{in}})
	for what, n := range map[string]int{"counters": len(b.counters), "incidents": len(b.ailing), "links": len(b.linkWas), "changes": len(b.changes), "xids": len(b.xids)} {
		if n != len(kept) {
			t.Errorf("%s of %d cards and instances are remembered, want %d", what, n, len(kept))
		}
	}
}
