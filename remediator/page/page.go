package page

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/remediator/fleet"
)

// Cluster is what the page reads of the cluster's watch, and what a person can change there.
type Cluster interface {
	Fleet() []*fleet.Node
	Jobs() []event.Job
	Gang(ctx context.Context, job event.Job) (cluster.Gang, error)
	LiftQuarantine(ctx context.Context, node string, l cluster.Lift) error
	HoldNode(ctx context.Context, node, why string) error
	ReleaseNode(ctx context.Context, node string) error
}

// Switch is the kill switch as the store has it. bus.Bus and its bucket are one.
type Switch interface {
	Set(ctx context.Context, key string, k bus.KillSwitch) error
}

// Act is one request of a person to change something, as the audit log keeps it: once before it is carried out and once after.
type Act struct {
	Actor, Verb, Object, Incident, Reason string
	Done                                  bool
	Err                                   error
}

// Options of New.
type Options struct {
	Address string // host:port
	Access  string // file that says who may use the page
	Actions bool   // operators may act; otherwise the page only reads
	Cluster string // its name

	Incidents  Store
	Attempts   func(ctx context.Context, job string) (bus.Attempt, error)
	Conditions func(ctx context.Context, current chan<- struct{}, handle func(bus.Condition)) error
	Kill       Switch
	Killed     func(ctx context.Context, current func(), handle func(bus.KillSwitch)) error
	Connected  func() bool // whether the store answers
	Nodes      Cluster

	// Weeks sets what observing policies would have done against what people did, newest week first.
	Weeks func(rows []*Row) ([]Week, error)
	// Audit writes to the audit log. An error before an act prevents it.
	Audit func(Act) error
	Now   func() time.Time
	Log   *slog.Logger
}

// Page serves the page.
type Page struct {
	o      Options
	gate   *gate
	mirror *mirror
	hub    *hub
	nodes  *conditions
	kill   killState
	views  *views
	books  *books
	ending chan struct{}
	began  time.Time
}

// New checks the options and prepares the page; it does not listen.
func New(o Options) (*Page, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &Page{o: o, gate: &gate{file: o.Access, now: o.Now}, hub: newHub(), nodes: newConditions(), ending: make(chan struct{}), began: o.Now()}
	p.mirror = newMirror(p.hub.tell)
	if o.Access == "" {
		return nil, errors.New("the page has no access file: name one with --page-access, so that not everybody can read it")
	}
	if _, err := p.gate.current(); err != nil { // it is read again at each request: healing does not wait for it
		p.o.Log.Error("incident page: nobody is let in until this is repaired", "error", err)
	}
	var err error
	if p.views, err = newViews(); err != nil {
		return nil, err
	}
	p.books, err = newBooks()
	return p, err
}

// Run serves until ctx ends. A store that is away is waited for; meanwhile the page says so.
func (p *Page) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", p.o.Address)
	if err != nil {
		return fmt.Errorf("incident page: %w", err)
	}
	return p.Serve(ctx, l)
}

// Serve is Run on a listener, which it closes.
func (p *Page) Serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{
		Handler: p.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(p.o.Log.Handler(), slog.LevelDebug),
	}
	var group errgroup.Group
	group.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	stop := context.AfterFunc(ctx, func() {
		close(p.ending)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if s.Shutdown(end) != nil {
			_ = s.Close()
		}
	})
	defer stop()
	p.o.Log.Info("incident page", "address", l.Addr().String(), "actions", p.o.Actions)
	group.Go(func() error { p.Follow(ctx); return nil })
	return group.Wait()
}

// Follow keeps what is shown up to date until ctx ends.
func (p *Page) Follow(ctx context.Context) {
	var group errgroup.Group
	keep := func(what string, follow func() error) {
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := follow(); err != nil && ctx.Err() == nil {
					p.o.Log.Debug("incident page: follow "+what+"; will retry", "error", err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
			return nil
		})
	}
	keep("incidents", func() error { return p.mirror.follow(ctx, p.o.Incidents, p.o.Now) })
	keep("conditions", func() error { return p.o.Conditions(ctx, nil, p.nodes.take) })
	keep("the kill switch", func() error {
		return p.o.Killed(ctx, nil, func(k bus.KillSwitch) { p.kill.Store(&k); p.hub.tell("") })
	})
	_ = group.Wait()
}

// State is how the server stands, for the head of each page and for live views.
type State struct {
	Store  bool   `json:"store"`  // it answers
	Ready  bool   `json:"ready"`  // everything in it is known
	Paused string `json:"paused"` // empty: Pitcrew is not paused
	Now    string `json:"now"`
	Heard  string `json:"heard,omitempty"` // the last change
}

func (p *Page) state() State {
	ready, heard := p.mirror.ready()
	s := State{Store: p.o.Connected(), Ready: ready, Now: stamp(p.o.Now())}
	if !heard.IsZero() {
		s.Heard = stamp(heard)
	}
	if k := p.kill.Load(); k != nil && k.On {
		s.Paused = clean(k.String(), maxText)
	}
	return s
}

func stamp(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" }
