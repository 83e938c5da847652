package statementsextension

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/detector/statement"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.init.0.func1"), // a ticker of the server's package, for ever
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"))
}

// listener is a started extension and what it tells.
type listener struct {
	t     *testing.T
	tel   *componenttest.Telemetry
	bus   *bus.Bus
	heard chan []bus.Statement
}

func listen(t *testing.T) *listener {
	t.Helper()
	srv := bustest.Server(t)
	l := &listener{t: t, tel: componenttest.NewTelemetry(), heard: make(chan []bus.Statement, 64), bus: bustest.Connect(t, srv.URL())}
	cfg := NewFactory().CreateDefaultConfig().(*Config)
	cfg.URL, cfg.Cluster, cfg.Node = srv.URL(), "c", "gw-0"
	set := extensiontest.NewNopSettings(Type)
	set.TelemetrySettings = l.tel.NewTelemetrySettings()
	x, err := NewFactory().Create(t.Context(), set, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := l.tel.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	x.(*gateway).FollowStatements(func(all []bus.Statement) { l.heard <- all })
	return l
}

func (l *listener) set(key string, s bus.Statement) {
	l.t.Helper()
	if err := l.bus.Statements().Set(l.t.Context(), key, s); err != nil {
		l.t.Fatal(err)
	}
}

// next waits for a list of so many.
func (l *listener) next(want int) []bus.Statement {
	l.t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case all := <-l.heard:
			if len(all) == want {
				return all
			}
		case <-deadline:
			l.t.Fatalf("never were there %d statements", want)
		}
	}
}

func (l *listener) refused() int64 {
	l.t.Helper()
	m, err := l.tel.GetMetric("pitcrew.statements.refused")
	if err != nil {
		l.t.Fatal(err)
	}
	return m.Data.(metricdata.Sum[int64]).DataPoints[0].Value
}

func TestAGatewayHearsWhatIsOfItsFindingsAndRefusesAndCountsWhatIsForgedOrOfTheFuture(t *testing.T) {
	l := listen(t)
	l.next(0)
	at := time.Now()
	ack := bus.Statement{Verb: bus.StateAck, Key: "rank/straggler job/j/rank/5/attempt/0", By: "ada", At: at}
	l.set(ack.ID(), ack)
	l.next(1)
	for _, s := range []bus.Statement{
		{Verb: bus.StateAck, Key: "anomaly/sm-clock gpu/G", By: "ada", At: at},
		{Verb: bus.StateAck, Key: "rank/dead", By: "ada", At: at},
	} {
		l.set(s.ID(), s)
	}
	mute := bus.Statement{Verb: bus.StateMute, Key: "*", Node: "n1", By: "ada", At: at, Until: at.Add(time.Hour)}
	l.set(mute.ID(), mute) // of a node: the gateway knows whose node each finding is of
	l.next(2)
	if n := l.refused(); n != 0 {
		t.Errorf("%d refused of what was right", n)
	}
	l.set(ack.ID(), mute) // the key of another
	l.next(1)
	later := bus.Statement{Verb: bus.StateAccept, Key: "rank/*", By: "eve", At: at.Add(time.Hour)}
	l.set(later.ID(), later)
	behind := bus.Statement{Verb: bus.StateAccept, Key: "job/*", By: "bob", At: at.Add(5 * time.Minute)} // a clock that is a little ahead
	l.set(behind.ID(), behind)
	if all := l.next(2); all[0].By == "eve" || all[1].By == "eve" {
		t.Errorf("heard %+v", all)
	}
	if n := l.refused(); n != 2 {
		t.Errorf("%d refused, want the forged and the one of the future", n)
	}
	if _, rev, err := l.bus.Statements().Get(t.Context(), mute.ID()); err != nil {
		t.Error(err)
	} else if err := l.bus.Statements().Delete(t.Context(), mute.ID(), rev); err != nil {
		t.Error(err)
	}
	l.next(1)
}

func TestWhatIsBeyondTheBoundIsRefusedAndCountedAndTheSameTwiceIsOne(t *testing.T) {
	f, err := NewFollower(componenttest.NewNopTelemetrySettings(), "gateway", ofGateways)
	if err != nil {
		t.Fatal(err)
	}
	at, told := time.Now(), 0
	f.FollowStatements(func([]bus.Statement) { told++ })
	err = f.Run(t.Context(), func(_ context.Context, current func(), handle func(bus.Change[bus.Statement]), _ func(string, error)) error {
		for i := range statement.Most + 3 {
			s := bus.Statement{Verb: bus.StateAck, Key: fmt.Sprintf("rank/absent job/j/rank/%d/attempt/0", i), By: "ada", At: at}
			for range 2 {
				handle(bus.Change[bus.Statement]{Key: s.ID(), Value: s, Stored: at})
			}
		}
		current()
		return nil
	})
	if err != nil || len(f.list()) != statement.Most || f.refused != 6 || told != 1 {
		t.Errorf("%v: %d kept, %d refused, told %d times", err, len(f.list()), f.refused, told)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestTheConfigurationNamesEveryFaultAtOnce(t *testing.T) {
	if err := (&Config{}).Validate(); err == nil {
		t.Error("an empty one was taken")
	}
}
