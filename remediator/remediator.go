// Package remediator is the only part of Pitcrew that changes a cluster: it takes findings from the bus, judges them by written
// policy and brings jobs back.
//
// It promises: one leader acts; a new leader takes up every open incident where it stands and reconciles with the nodes' current
// conditions; without NATS or without the API server it waits, says so in one line, and goes on when they come.
package remediator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/callout"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/checkpoint"
	"github.com/pitcrew/pitcrew/remediator/claims"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/ledger"
	"github.com/pitcrew/pitcrew/remediator/notify"
	"github.com/pitcrew/pitcrew/remediator/steer"
	"github.com/pitcrew/pitcrew/remediator/trace"
)

// Options of Run.
type Options struct {
	NATS         string // address; "embedded" starts a server in this process
	NATSDir      string // of the embedded server
	Creds        string // file of NATS credentials
	TokenFile    string // of a service account's token for NATS
	NATSKeys     string // file of the callout's keys: this process says who may connect to NATS; empty: it does not
	NATSAccount  string // into which the callout puts clients; empty: $G
	NATSReplicas int    // servers that keep each stream and bucket; 0 means 1
	Cluster      string
	Namespace    string   // Pitcrew's own
	Kubeconfig   string   // empty: in-cluster
	Policies     []string // files or folders
	Metrics      string   // address of /metrics; empty: none
	Profiles     bool     // /debug/pprof beside /metrics
	Audit        string   // file of the audit log, one JSON line per write; empty: standard error's log only
	Elect        bool     // leader election
	Identity     string
	Lease        time.Duration // a leader that is silent for so long is replaced; default 15 s
	LossWait     time.Duration // until the silence of a node's agent and kubelet opens an incident without other evidence; default 40 s
	// Alertmanagers and Webhooks are http addresses that the policy step notify sends to.
	Alertmanagers, Webhooks []string
	Channels                string        // file of Slack channels and webhooks with templates; empty: none
	Canary                  time.Duration // between canaries; 0 means one a minute, below 0 none
	Steer                   string        // address of the webhook that steers replacements below Kubernetes 1.36; empty: none
	SteerCA                 string        // directory with the webhook's authority, ca.crt and ca.key
	OTLP                    string        // address for traces; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says, if it does
	Page                    string        // address of the incident page; empty: none
	PageAccess              string        // file that says who may use it
	PageActions             bool          // operators may act on it
	PagePeople              string        // file of what people did, as `pitcrew policy simulate --compare` reads it; empty: none
	Runbooks                string        // base address of the runbooks, for notices; empty: runbooks.DefaultBase
	Log                     *slog.Logger

	// AfterStep is called after each step of an incident and before it is recorded; tests crash there.
	AfterStep func(incident.State)
}

// Run works until ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	policies, err := newPolicies(o.Policies, o.Log)
	if err != nil {
		return err
	}
	if o.NATS == "embedded" {
		s, err := bus.StartServer(bus.ServerOptions{Dir: o.NATSDir})
		if err != nil {
			return err
		}
		defer s.Stop()
		o.NATS = s.URL()
	}
	c, record, err := openCluster(o)
	if err != nil {
		return err
	}
	defer record.close()
	m := newMetrics()
	if o.NATSKeys != "" {
		door, err := openDoor(o, c, m)
		if err != nil {
			return err
		}
		defer door.Close()
	}
	b, err := bus.Connect(bus.Options{URL: o.NATS, Cluster: o.Cluster, Creds: o.Creds, TokenFile: o.TokenFile, Name: "pitcrew-remediator", Replicas: o.NATSReplicas, Logger: o.Log})
	if err != nil {
		return err
	}
	defer b.Close()
	told := bus.NewBucket[notify.Record](b, bus.NoticeBucket)
	to, err := receivers(o, told)
	if err != nil {
		return err
	}
	traces, err := trace.New(ctx, o.OTLP, o.Cluster, o.Log)
	if err != nil {
		return err
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = traces.Close(flush)
	}()
	r := &remediator{o: o, bus: b, cluster: c, policies: policies, metrics: m, audit: record, traces: traces, told: told}
	r.notices = notify.New(notify.Options{Receivers: to, Log: o.Log, Count: m.notice, Record: r.keep,
		Probed: func(receiver string, canary notify.Notice, err error) { r.hop(receiver, canary.At, err) }})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ignoreEnd(ctx, c.Run(ctx)) })
	group.Go(func() error { r.notices.Run(ctx); return nil })
	if o.Metrics != "" {
		group.Go(func() error { return m.serve(ctx, o.Metrics, o.Profiles) })
	}
	if o.Page != "" {
		group.Go(func() error { return servePage(ctx, o, b, c, record) })
	}
	if o.Steer != "" {
		group.Go(func() error {
			return steer.Serve(ctx, steer.Options{Address: o.Steer, CA: o.SteerCA, Names: []string{steer.ServiceName(o.Namespace)}, Stamper: c, Log: o.Log,
				Count: func(res steer.Result) { m.steered.WithLabelValues(string(res)).Inc() }})
		})
	}
	policies.tell = r.wake
	group.Go(func() error { return policies.watch(ctx) })
	group.Go(func() error { return ignoreEnd(ctx, r.stand(ctx)) })
	return group.Wait()
}

// openDoor answers NATS' questions who may connect, whether this process leads or stands by: as many as run share them.
func openDoor(o Options, c *cluster.Cluster, m *metrics) (*callout.Callout, error) {
	keys, err := callout.ReadKeys(o.NATSKeys)
	if err != nil {
		return nil, err
	}
	return callout.Start(callout.Options{
		URL: o.NATS, Cluster: o.Cluster, Namespace: o.Namespace, Account: o.NATSAccount, Keys: keys, Reviewer: c, Logger: o.Log,
		Count: func(outcome string) { m.logins.WithLabelValues(outcome).Inc() },
	})
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// openCluster is the cluster, each write to which goes into the audit log; the caller closes that.
func openCluster(o Options) (*cluster.Cluster, *audit, error) {
	cfg, err := kubeConfig(o.Kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	record, err := newAudit(o.Audit, o.Log)
	if err != nil {
		return nil, nil, err
	}
	c, err := cluster.New(cfg, cluster.Options{Namespace: o.Namespace, Cluster: o.Cluster, Logger: o.Log, Audit: record.write})
	if err != nil {
		record.close()
		return nil, nil, err
	}
	return c, record, nil
}

func kubeConfig(path string) (*rest.Config, error) {
	if path == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no --kubeconfig given and not running in a cluster: %w", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return cfg, nil
}

type remediator struct {
	o        Options
	bus      *bus.Bus
	cluster  *cluster.Cluster
	policies *policies
	metrics  *metrics
	audit    *audit
	notices  *notify.Dispatcher
	told     records
	canary   canary
	traces   *trace.Tracer
	onsets   onsets // told without an incident
	switched atomic.Pointer[bus.KillSwitch]
}

// records keeps what was told of incidents; bus.Bucket[notify.Record] is one.
type records interface {
	notify.Store
	List(ctx context.Context) ([]bus.Change[notify.Record], error)
}

// kill is the kill switch as it stands.
func (r *remediator) kill() guard.Kill {
	k := r.switched.Load()
	if k == nil || !k.On {
		return guard.Kill{}
	}
	return guard.Kill{On: true, Reason: k.Reason + " (by " + k.By + ")"}
}

// wake lets the incidents that are held back look again at once.
func (r *remediator) wake() {
	if e := r.metrics.engine.Load(); e != nil {
		e.Wake()
	}
}

// control follows the kill switch.
func (r *remediator) control(ctx context.Context, ready func()) error {
	return r.bus.WatchKillSwitch(ctx, ready, func(v bus.KillSwitch) {
		r.switched.Store(&v)
		r.o.Log.Info("kill switch", "on", v.On, "by", v.By, "reason", v.Reason)
		r.wake()
	})
}

// stand waits for what it needs, then leads, if need be after an election.
func (r *remediator) stand(ctx context.Context) error {
	if err := r.await(ctx, "NATS", r.bus.Wait); err != nil {
		return err
	}
	if err := r.await(ctx, "the API server", r.cluster.WaitForSync); err != nil {
		return err
	}
	if !r.o.Elect {
		return r.lead(ctx, cluster.Lead{})
	}
	id := r.o.Identity
	if id == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		id = fmt.Sprintf("%s/%d/%d", host, os.Getpid(), time.Now().UnixNano())
	}
	return r.cluster.Leader(ctx, cluster.LeaderOptions{Identity: id, Duration: r.o.Lease}, func(ctx context.Context, l cluster.Lead) error {
		r.o.Log.Info("leading", "identity", l.Identity, "term", l.Token)
		return r.lead(ctx, l)
	})
}

// await says in one line what is missing, every ten seconds, until it comes.
func (r *remediator) await(ctx context.Context, what string, wait func(context.Context) error) error {
	for {
		t, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := wait(t)
		cancel()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		r.o.Log.Warn("waiting for "+what, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// retry does what needs NATS until it succeeds or ctx ends.
func (r *remediator) retry(ctx context.Context, what string, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		r.o.Log.Warn("waiting for "+what, "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// lead acts until its term ends.
func (r *remediator) lead(ctx context.Context, l cluster.Lead) error {
	if steering, err := r.cluster.DecideSteering(ctx); err != nil {
		r.o.Log.Warn("replacements are not steered; it is looked again every few minutes", "error", err)
	} else {
		r.o.Log.Info("replacement pods are steered", "by", string(steering))
	}
	if fixed, err := r.cluster.RepairFinalizers(ctx); err != nil {
		r.o.Log.Warn("repair finalizers", "error", err)
	} else if len(fixed) > 0 {
		r.o.Log.Info("put back finalizers that an earlier leader had lifted", "pods", fixed)
	}
	pub, err := r.bus.NewPublisher("", nil)
	if err != nil {
		return err
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = pub.Close(flush)
	}()
	term := ctx
	group, ctx := errgroup.WithContext(term)
	known := make(chan struct{})
	group.Go(func() error { return r.control(ctx, func() { close(known) }) })
	select { // nothing is done before it is known that nobody said stop
	case <-known:
	case <-ctx.Done():
		return ignoreEnd(term, group.Wait())
	}
	said, read := newBoard(r.bootOf), make(chan struct{})
	group.Go(func() error {
		return r.bus.Conditions(ctx, read, func(c bus.Condition) { noteCondition(r.cluster, said, c) })
	})
	select { // nor before it is known what nodes say of themselves
	case <-read:
	case <-ctx.Done():
		return ignoreEnd(term, group.Wait())
	}
	group.Go(func() error { r.followFound(ctx, said); return nil })
	seen := newOccurrences()
	seen.reading(time.Now())
	group.Go(func() error { r.recount(ctx, seen); return nil })
	e := r.engine(pub, said, seen, l)
	claim := &claims.Watch{Now: time.Now}
	e.Claims = claim
	w := r.witness(ctx, e, claim, pub, said)
	said.heard = w.Alive
	defer r.notices.Forget() // again, for what the last steps of incidents reported
	if err := r.resume(ctx, e); err != nil {
		return ignoreEnd(term, group.Wait())
	}
	defer e.Wait()
	defer r.notices.Forget()
	group.Go(func() error { return r.sendCanaries(ctx, pub.Publish) })
	group.Go(func() error { return r.bus.EventsInLanes(ctx, bus.ActingConsumer, r.lanes(e, seen)) })
	group.Go(func() error { return r.conditions(ctx, e, said) })
	group.Go(func() error { return r.upkeep(ctx, e, said) })
	group.Go(func() error { r.uncordons(ctx, e, said); return nil })
	r.listen(ctx, group, pub)
	group.Go(func() error {
		return bus.NewBucket[incident.Approval](r.bus, bus.IncidentBucket).Watch(ctx, nil, func(c bus.Change[incident.Approval]) { e.Answered(c.Value) })
	})
	group.Go(func() error { return r.bus.Beats(ctx, w.Heard) })
	group.Go(func() error { w.Run(ctx); return nil })
	group.Go(func() error { return r.obeyUncordons(ctx, e) })
	return ignoreEnd(term, group.Wait()) // what ended the work before the term is an error
}

func (r *remediator) engine(pub *bus.Publisher, said *board, seen *occurrences, l cluster.Lead) *incident.Engine {
	k := bus.NewBucket[incident.Incident](r.bus, bus.IncidentBucket)
	j := &judge{policies: r.policies, nodes: r.cluster, kill: r.kill, said: said, seen: seen}
	e := &incident.Engine{
		Name: r.o.Cluster, Cluster: r.cluster, Checkpoint: &checkpoint.Coordinator{Agents: r.bus, Log: r.o.Log},
		Judge: j, Store: k, Attempts: r.bus.Attempts(), Seen: handled{r.bus}, Conditions: said, Fence: fenceOf(l),
		Now: time.Now, Log: r.o.Log, AfterStep: r.o.AfterStep, Writes: r.audit.of,
	}
	e.Ledger = ledger.New(ledger.Options{Store: bus.NewBucket[ledger.Book](r.bus, bus.LedgerBucket), Term: l.Token, Keep: j.lookback, Log: r.o.Log, Granted: e.Granted})
	said.cleared, said.maxAge = e.Ledger.Cleared, j.kernelConditionMaxAge
	e.Stepped = func(i *incident.Incident) {
		r.metrics.observe(i)
		r.tell(i)
		r.traces.Emit(i)
		if err := pub.Publish(stepEvent(i)); err != nil {
			r.o.Log.Warn("publish a step", "incident", i.ID, "error", err)
		}
	}
	e.Ignored, e.Alone = r.listener(), r.tell
	r.metrics.engine.Store(e)
	return e
}

// fenceOf reports whether a leader may still write: while its lease runs.
func fenceOf(l cluster.Lead) func() error {
	if l.Identity == "" { // nobody else can lead
		return nil
	}
	return func() error {
		if !l.Valid() {
			return cluster.ErrDeposed
		}
		return nil
	}
}

// Events that fail are tried for giveUpAfter at least, and giveUpTries times: an API server or a store that is away comes back.
const (
	giveUpTries = 8
	giveUpAfter = 2 * time.Minute
)

// lanes is how events are dealt with: in parallel by node, and none holds up the events of another node.
func (r *remediator) lanes(e *incident.Engine, seen *occurrences) bus.Lanes {
	return bus.Lanes{
		Handle: func(ctx context.Context, d bus.Delivery) error {
			if d.Event.Type == event.Canary { // before anything learns of it
				r.canaryCame(d)
				return nil
			}
			if d.Event.Data.Target.Node == "" && d.Gateway == "" { // who publishes for a node speaks of that node, whatever it leaves out
				d.Event.Data.Target.Node = d.Node
			}
			noteFault(r.cluster, d.Event)
			seen.add(d.Event)
			return e.Handle(ctx, d.Event, incident.Origin{Age: d.Age})
		},
		Hopeless: func(err error, tries int, lasts time.Duration) bool {
			return tries >= giveUpTries && lasts >= giveUpAfter && !cluster.Retriable(err) && r.bus.Connected()
		},
		Aside: func(bus.Delivery, error) { r.metrics.dropped.WithLabelValues("set aside").Inc() },
		Depth: r.metrics.backlog,
		Bad: func(subject string, err error) {
			r.metrics.dropped.WithLabelValues(badReason(err)).Inc()
			r.metrics.refused.Inc()
			r.o.Log.Warn("event refused", "subject", subject, "error", err)
		},
	}
}

// badReason files an event that was refused: forged, where it came on a subject whose owner may not publish it.
func badReason(err error) string {
	if errors.Is(err, bus.ErrForged) {
		return "forged"
	}
	return "malformed"
}

// handled is the bucket of dealt-with event ids.
type handled struct{ b *bus.Bus }

func (s handled) Known(ctx context.Context, id string) (bool, error) {
	_, _, err := bus.NewBucket[struct{}](s.b, bus.SeenBucket).Get(ctx, id)
	if errors.Is(err, bus.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (s handled) Remember(ctx context.Context, id string) error {
	_, err := s.b.Seen(ctx, id)
	return err
}

// stepEvent says a step of an incident on the bus.
func stepEvent(i *incident.Incident) event.Event {
	f := i.Faults[0]
	src := event.Source(i.Cluster, f.Node, "remediator")
	sev := event.Info
	if i.Outcome == incident.Failed {
		sev = event.Critical
	}
	text := ""
	if len(i.Notes) > 0 {
		text = i.Notes[len(i.Notes)-1].Text
	}
	return event.Event{
		ID: event.NewID(src, i.ID, string(i.State), i.StateAt.String(), fmt.Sprint(len(i.Notes))), Source: src, Type: event.Incident, Time: time.Now(),
		Data: event.Data{
			Target: event.Target{Cluster: i.Cluster, Node: f.Node, Job: i.Job}, Cause: event.Cause{Kind: "incident", Name: string(i.State)},
			Severity: sev, Onset: i.Opened, Evidence: event.Evidence{Signal: i.ID, Raw: text},
		},
	}
}
