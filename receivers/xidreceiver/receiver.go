package xidreceiver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/receivers/process"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver/internal/tail"
	"github.com/pitcrew/pitcrew/receivers/xidreceiver/kernel"
)

// scope is the instrumentation scope of what the receiver emits.
const scope = "github.com/pitcrew/pitcrew/receivers/xidreceiver"

const (
	// retryUnwatched is for what no watch can see; where a watch can, it wins.
	retryUnwatched = 10 * time.Second
	// A log that fails again within shortLived of being opened is not opened
	// again before that time is over, so that a broken one cannot spin.
	shortLived = time.Second
)

// logReceiver reads one kernel log. All but Start, Shutdown and the fabric
// manager's log is done by the one goroutine that run is.
type logReceiver struct {
	set  receiver.Settings
	cfg  *Config
	next consumer.Logs
	tel  *telemetry
	open func(context.Context, string) (tail.Source, error)
	proc *process.FS // nil: no process is looked for

	cancel context.CancelFunc
	done   sync.WaitGroup
	host   component.Host
	store  storage.Client

	clock  clock
	parser kernel.Parser
	folder *kernel.Folder
	follow follow
	fabric *fabricLog // nil: none is read
	unread bool       // the log cannot be read, and that was said
}

func newReceiver(set receiver.Settings, cfg *Config, next consumer.Logs) (*logReceiver, error) {
	tel, err := newTelemetry(set.MeterProvider.Meter(scope))
	if err != nil {
		return nil, err
	}
	r := &logReceiver{set: set, cfg: cfg, next: next, tel: tel, open: tail.Open, clock: systemClock()}
	if fs, err := process.NewFS(cfg.Proc); err == nil {
		r.proc = &fs
	} else {
		set.Logger.Warn("processes cannot be looked for: events do not say which pod's process a line names", zap.String("proc", cfg.Proc), zap.Error(err))
	}
	return r, nil
}

// Start reads the stored position and begins to follow the log. A log that is
// not there is no error: it is waited for.
func (r *logReceiver) Start(ctx context.Context, host component.Host) error {
	store, err := openStorage(ctx, host, r.cfg.StorageID, r.set.ID)
	if err != nil {
		return err
	}
	r.host, r.store = host, store
	r.follow = follow{boot: readBootID(r.cfg.BootIDPath)}
	if r.follow.boot == "" {
		r.set.Logger.Warn("the boot id cannot be read: events of different boots cannot be told apart",
			zap.String("boot_id_path", r.cfg.BootIDPath))
	}
	stored, err := loadPosition(ctx, store)
	if err != nil {
		r.set.Logger.Warn("the stored position is of no use; old lines may be news again", zap.Error(err))
	}
	r.follow.restore(stored, &r.parser)
	r.fabric = r.newFabric(ctx)
	run, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.folder = kernel.NewFolder(func(rep *kernel.Report) { r.emit(run, rep) })
	r.done.Go(func() { r.run(run) })
	if r.fabric != nil {
		r.fabric.start(run)
	}
	return nil
}

// Shutdown ends the reading, hands on what was counted and keeps the position.
func (r *logReceiver) Shutdown(ctx context.Context) error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	r.done.Wait()
	r.folder.Flush()
	if r.fabric != nil {
		r.fabric.stop()
	}
	r.save(ctx)
	return r.store.Close(ctx)
}

// run opens the log, follows it, and opens it again whenever it fails.
func (r *logReceiver) run(ctx context.Context) {
	said := "" // the last trouble that was logged
	trouble := func(err error) {
		if said != err.Error() {
			said = err.Error()
			r.set.Logger.Error("the kernel log cannot be read; waiting until it can",
				zap.String("path", r.cfg.Path), zap.Error(err), zap.String("remedy", remedy(err)))
		}
		componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
	}
	for ctx.Err() == nil {
		var src tail.Source
		tail.Await(ctx, r.cfg.Path, retryUnwatched, func() bool {
			s, err := r.open(ctx, r.cfg.Path)
			if err != nil {
				trouble(err)
				r.sayReadable(ctx, false)
				return false
			}
			src = s
			return true
		})
		if src == nil {
			return
		}
		if said != "" {
			r.set.Logger.Info("the kernel log can be read again", zap.String("path", r.cfg.Path))
			said = ""
		}
		componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
		opened := r.clock.now()
		err := r.read(ctx, src)
		src.Close()
		if ctx.Err() != nil {
			return
		}
		trouble(fmt.Errorf("follow the kernel log: %w", err))
		r.tel.reopened.Add(ctx, 1)
		pause(ctx, shortLived-r.clock.now().Sub(opened))
	}
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
