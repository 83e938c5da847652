package detectorconnector

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/collector/statementsextension"
)

// extensions is a host that has these.
type extensions map[component.ID]component.Component

// GetExtensions implements component.Host.
func (e extensions) GetExtensions() map[component.ID]component.Component { return e }

// connected is the extension of a gateway, which speaks to a NATS server.
func connected(t *testing.T, url, name string) component.Component {
	t.Helper()
	f := statementsextension.NewFactory()
	cfg := f.CreateDefaultConfig().(*statementsextension.Config)
	cfg.URL, cfg.Cluster, cfg.Node = url, "c", name
	x, err := f.Create(t.Context(), extensiontest.NewNopSettings(statementsextension.Type), cfg)
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
	})
	return x
}

func (l *learner) eventually(what string, ok func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func (l *learner) runs() int64 {
	c, _ := l.counts()
	return c.ClassRuns
}

func TestAGatewayJudgesARunByWhatAnotherGatewaySaw(t *testing.T) {
	srv := bustest.Server(t)
	people := bustest.Connect(t, srv.URL())
	file := filepath.Join(t.TempDir(), "classes")
	alone := newLearner(t, file)
	alone.run("job-1", gptWork, 300, 0.2)
	alone.end()
	at := alone.at.Load()

	second := learnerNamed(t, "gw-1", Jobs{}, at, connected(t, srv.URL(), "gw-1"))
	defer second.end()
	first := learnerNamed(t, "gw-0", Jobs{ClassesFile: file}, at, connected(t, srv.URL(), "gw-0"))
	second.eventually("the other gateway's run", func() bool { return second.runs() == 1 })
	second.run("job-2", gptWork, 100, 0.26)
	words, es := second.said()
	if len(words) != 1 || words[0] != "job/slowdown" || es[0].Data.Evidence.Baseline != "class(1)" {
		t.Errorf("said %v: %+v", words, es)
	}

	// What another gateway has seen is not given on under one's own name, nor taken under a name that is not its maker's.
	var made []bus.ClassRecord
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := people.WatchClasses(ctx, cancel, func(r bus.ClassRecord) { made = append(made, r) }, func(key string, err error) { t.Errorf("%s: %v", key, err) }); err != nil {
		t.Fatal(err)
	}
	if len(made) != 1 || made[0].Gateway != "gw-0" {
		t.Fatalf("there are %d records", len(made))
	}
	forged := made[0]
	forged.Gateway = "gw-9"
	garbled := made[0]
	garbled.ID, garbled.Raw = "garbled", []byte("PCREWCLS")
	third := learnerNamed(t, "gw-2", Jobs{}, at, connected(t, srv.URL(), "gw-2"))
	defer third.end()
	for _, r := range []bus.ClassRecord{forged, garbled} {
		if err := people.SetClass(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	third.eventually("the run that is true", func() bool { return third.runs() == 1 })
	third.eventually("an unchanged store of the first", func() bool { return first.runs() == 1 })

	// A gateway that lost its disk has its own past again.
	first.end()
	again := learnerNamed(t, "gw-0", Jobs{}, at, connected(t, srv.URL(), "gw-0"))
	defer again.end()
	again.eventually("its own run of before", func() bool { return again.runs() == 1 })
}
