package dcgmreceiver

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/semconv"
)

// dcgmReceiver serves the metrics and the logs pipeline of one configuration.
type dcgmReceiver struct {
	cfg     *Config
	log     *zap.Logger
	metrics consumer.Metrics
	logs    consumer.Logs
	source  func(*Config, *zap.Logger) (Source, error)
	now     func() time.Time
	jitter  func() float64
	bootID  string

	startOnce, stopOnce sync.Once
	startErr            error
	stop                context.CancelFunc
	done                sync.WaitGroup
	devices             atomic.Pointer[[]Device] // the newest inventory, for the violations
	run                 *run
}

var (
	sharedMu sync.Mutex
	shared   = map[*Config]*dcgmReceiver{}
)

// attach returns the one receiver of a configuration: its two signals share a connection.
func attach(set receiver.Settings, cfg *Config, with func(*dcgmReceiver)) *dcgmReceiver {
	sharedMu.Lock()
	defer sharedMu.Unlock()
	r := shared[cfg]
	if r == nil {
		r = &dcgmReceiver{cfg: cfg, log: set.Logger, source: openSource, now: time.Now, jitter: rand.Float64, bootID: readBootID()}
		shared[cfg] = r
	}
	with(r)
	return r
}

// openSource makes the source of the configured mode.
func openSource(cfg *Config, log *zap.Logger) (Source, error) {
	if cfg.Mode == ModeReplay {
		return LoadReplay(cfg.File)
	}
	return newDCGM(cfg, log), nil
}

// Start begins to read; it does not wait for DCGM to answer.
func (r *dcgmReceiver) Start(_ context.Context, host component.Host) error {
	r.startOnce.Do(func() {
		src, err := r.source(r.cfg, r.log)
		if err != nil {
			r.startErr = err
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		r.stop = cancel
		r.run = newRun(r, src, host)
		r.done.Go(func() { r.run.loop(ctx) })
		r.done.Go(func() { r.listen(ctx, src) })
	})
	return r.startErr
}

// Shutdown ends reading. A call that hangs is left behind.
func (r *dcgmReceiver) Shutdown(context.Context) error {
	r.stopOnce.Do(func() {
		sharedMu.Lock()
		if shared[r.cfg] == r {
			delete(shared, r.cfg)
		}
		sharedMu.Unlock()
		if r.stop != nil {
			r.stop()
			r.done.Wait()
		}
	})
	return nil
}

// resource writes the identity of the node.
func (r *dcgmReceiver) resource(res pcommon.Resource) {
	for _, kv := range [][2]string{{semconv.K8sClusterName, r.cfg.Cluster}, {semconv.K8sNodeName, r.cfg.Node}, {semconv.HostBootID, r.bootID}} {
		if kv[1] != "" {
			res.Attributes().PutStr(kv[0], kv[1])
		}
	}
}

func (r *dcgmReceiver) hostname() string {
	if r.cfg.Node != "" {
		return r.cfg.Node
	}
	h, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return h
}

func readBootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// device is what is known of a GPU by the engine's number.
func (r *dcgmReceiver) device(id uint) Device {
	if ds := r.devices.Load(); ds != nil {
		for _, d := range *ds {
			if d.ID == id {
				return d
			}
		}
	}
	return Device{ID: id}
}
