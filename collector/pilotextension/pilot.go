package pilotextension

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/collector/statementsextension"
	"github.com/pitcrew/pitcrew/hook"
)

// retryEvery is after how long a broken watch is begun again.
const retryEvery = 200 * time.Millisecond

// Pilot is the extension.
type Pilot struct {
	log   *zap.Logger
	cfg   *Config
	fleet *hook.Fleet
	dial  func() (Bus, error)

	bus         Bus
	reconcile   *reconciler
	statements  *statementsextension.Follower
	cancel      context.CancelFunc
	tasks       sync.WaitGroup
	unsubscribe func()
}

func newPilot(set component.TelemetrySettings, cfg *Config, dial func() (Bus, error)) (*Pilot, error) {
	f, err := statementsextension.NewFollower(set, "node", func(s bus.Statement, _ time.Time) (bool, error) { return s.Of(cfg.Node), nil })
	return &Pilot{log: set.Logger, cfg: cfg, dial: dial, fleet: hook.NewFleet(hook.FleetOptions{KubeletRoot: cfg.KubeletRoot, Proc: cfg.Proc, Budget: cfg.Budget}), statements: f}, err
}

// FollowStatements gives all that people said of findings on this node; see Follower.
func (p *Pilot) FollowStatements(handle func([]bus.Statement)) (stop func()) {
	return p.statements.FollowStatements(handle)
}

// Fleet is this node's training pods, for other components of the same collector.
func (p *Pilot) Fleet() *hook.Fleet { return p.fleet }

// Start implements component.Component. It waits neither for NATS nor for a pod.
func (p *Pilot) Start(context.Context, component.Host) error {
	b, err := p.dial()
	if err != nil {
		return err
	}
	p.bus = b
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	p.reconcile = newReconciler(p.log, p.fleet, b.Connected, loneGrace)
	p.unsubscribe = p.fleet.Subscribe(p.reconcile.event)
	p.fleet.Start()
	p.keep(ctx, "commands", func(ctx context.Context) error { return b.HandleCommands(ctx, p.cfg.Node, p.verbs()) })
	p.keep(ctx, "beat", func(ctx context.Context) error { return b.Beat(ctx, p.cfg.Node, p.cfg.Beat) })
	p.keep(ctx, "attempts", func(ctx context.Context) error {
		p.reconcile.begin()
		return b.WatchAttempts(ctx, p.reconcile.current, p.reconcile.change)
	})
	p.keep(ctx, "statements", func(ctx context.Context) error {
		return p.statements.Run(ctx, b.WatchStatements)
	})
	return nil
}

// keep runs a task until ctx ends, again and again when it fails.
func (p *Pilot) keep(ctx context.Context, name string, task func(context.Context) error) {
	p.tasks.Go(func() {
		for ctx.Err() == nil {
			if err := task(ctx); err != nil && ctx.Err() == nil {
				p.log.Warn("bus task failed; trying again", zap.String("task", name), zap.Error(err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryEvery):
			}
		}
	})
}

// Shutdown implements component.Component.
func (p *Pilot) Shutdown(context.Context) error {
	if p.cancel == nil { // never started
		return p.statements.Close()
	}
	p.cancel()
	p.tasks.Wait()
	p.unsubscribe()
	p.reconcile.close()
	p.fleet.Close()
	p.bus.Close()
	return p.statements.Close()
}

func (p *Pilot) verbs() map[string]func(context.Context, bus.Command) (bus.Reply, error) {
	return map[string]func(context.Context, bus.Command) (bus.Reply, error){
		bus.VerbStatus:   p.status,
		bus.VerbArm:      p.arm,
		bus.VerbGo:       p.goSave,
		bus.VerbManifest: p.manifest,
		bus.VerbCancel:   p.cancelRound,
		bus.VerbRelease:  p.release,
		bus.VerbAbort:    p.abort,
	}
}
