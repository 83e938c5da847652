package gpuprocessreceiver

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/receivers/process"
	"github.com/pitcrew/pitcrew/semconv"
)

const scope = "github.com/pitcrew/pitcrew/receivers/gpuprocessreceiver"

type logReceiver struct {
	set  receiver.Settings
	cfg  *Config
	next consumer.Logs
	now  func() time.Time

	scanner *scanner
	host    component.Host
	cancel  context.CancelFunc
	done    sync.WaitGroup

	said       string // the last trouble that was logged
	saidHidden time.Time
}

func newReceiver(set receiver.Settings, cfg *Config, next consumer.Logs) (*logReceiver, error) {
	return &logReceiver{set: set, cfg: cfg, next: next, now: time.Now}, nil
}

// Start begins to look. A /proc that cannot be read is no error: it is said, and looked for again.
func (r *logReceiver) Start(_ context.Context, host component.Host) error {
	r.host = host
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.done.Go(func() {
		t := time.NewTicker(r.cfg.Interval)
		defer t.Stop()
		for {
			r.look(ctx)
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
		}
	})
	return nil
}

// Shutdown ends the looking.
func (r *logReceiver) Shutdown(context.Context) error {
	if r.cancel != nil {
		r.cancel()
		r.done.Wait()
	}
	return nil
}

// look scans once and hands on what it found. What the pipeline refuses is told again in a minute at the latest.
func (r *logReceiver) look(ctx context.Context) {
	if r.scanner == nil {
		fs, err := process.NewFS(r.cfg.Proc)
		if err != nil {
			r.trouble(err)
			return
		}
		r.scanner = &scanner{within: process.NewWithin(), fs: fs, interval: r.cfg.Interval, maxLooks: r.cfg.MaxLooks, logs: r.cfg.ContainerLogs, processes: map[int]*known{}}
	}
	found, err := r.scanner.scan(r.now())
	if err != nil {
		r.trouble(err)
		return
	}
	if r.said != "" {
		r.said = ""
		componentstatus.ReportStatus(r.host, componentstatus.NewEvent(componentstatus.StatusOK))
	}
	if n := r.scanner.unreadable; n > 0 && r.now().Sub(r.saidHidden) > unreadableSay {
		r.saidHidden = r.now()
		r.set.Logger.Warn("open files of processes cannot be read: a GPU used by them is not seen (the agent needs CAP_SYS_PTRACE and the host's /proc)",
			zap.Int64("looks_refused", n), zap.Int64("looks", r.scanner.looks))
	}
	if len(found) == 0 {
		return
	}
	if err := r.next.ConsumeLogs(ctx, r.logs(found)); err != nil && ctx.Err() == nil {
		r.set.Logger.Warn("the pipeline did not take which processes use GPUs; they are told again", zap.Error(err))
	}
}

func (r *logReceiver) trouble(err error) {
	if r.said == err.Error() {
		return
	}
	r.said = err.Error()
	r.set.Logger.Warn("processes cannot be listed: what uses a GPU is not known", zap.String("proc", r.cfg.Proc), zap.Error(err))
	componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
}

func (r *logReceiver) logs(found []use) plog.Logs {
	logs := plog.NewLogs()
	rl := logs.ResourceLogs().AppendEmpty()
	for _, kv := range [][2]string{{semconv.K8sClusterName, r.cfg.Cluster}, {semconv.K8sNodeName, r.cfg.Node}} {
		if kv[1] != "" {
			rl.Resource().Attributes().PutStr(kv[0], kv[1])
		}
	}
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(scope)
	at := pcommon.NewTimestampFromTime(r.now())
	for _, u := range found {
		rec := sl.LogRecords().AppendEmpty()
		rec.SetEventName(semconv.EventGPUProcess)
		if u.ended {
			rec.SetEventName(semconv.EventGPUProcessEnded)
		}
		rec.SetTimestamp(at)
		rec.SetObservedTimestamp(at)
		rec.SetSeverityNumber(plog.SeverityNumberInfo)
		a := rec.Attributes()
		a.EnsureCapacity(12)
		a.PutInt(semconv.ProcessPID, int64(u.pid))
		a.PutInt(semconv.ProcessStart, int64(u.facts.Start))
		a.PutInt(semconv.GPUMinor, int64(u.minor))
		for _, kv := range [][2]string{
			{semconv.ProcessExecutableName, u.facts.Comm}, {semconv.ProcessCommandLine, u.facts.Command}, {semconv.HWID, u.gpu.UUID}, {semconv.HWPCI, u.gpu.PCI}, {semconv.K8sPodUID, u.in.PodUID},
			{semconv.ContainerID, u.in.ID}, {semconv.K8sNamespaceName, u.names.Namespace}, {semconv.K8sPodName, u.names.Pod}, {semconv.K8sContainerName, u.names.Container},
		} {
			if kv[1] != "" {
				a.PutStr(kv[0], kv[1])
			}
		}
	}
	return logs
}
