package anomalycmd

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/bustest"
	"github.com/pitcrew/pitcrew/event"
)

// desk is a person's command line and the bus it speaks to.
type desk struct {
	t   *testing.T
	url string
	bus *bus.Bus

	ahead time.Duration // of the nodes' clocks
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	s := bustest.Server(t)
	return &desk{t: t, url: s.URL(), bus: bustest.Connect(t, s.URL())}
}

func (d *desk) stands(node, key string, severity event.Severity, active bool) {
	d.t.Helper()
	name, _, _ := strings.Cut(key, " ")
	kind, name, _ := strings.Cut(name, "/")
	v := 1.4e9
	e := event.Event{
		ID: key, Source: event.Source("c", node, "detector"), Type: event.Anomaly, Time: time.Now(), Data: event.Data{
			Target: event.Target{Node: node, GPU: "GPU-1"}, Cause: event.Cause{Kind: kind, Name: name}, Severity: severity, Onset: time.Now().Add(d.ahead - time.Minute),
			Evidence: event.Evidence{Value: &v, State: event.StateOpen, Raw: "sm-clock 1.4e+09 Hz", LostGPUSeconds: 12},
		},
	}
	if err := d.bus.SetCondition(d.t.Context(), bus.Condition{Node: node, Key: key, Active: active, Event: &e}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) say(args ...string) (string, error) {
	d.t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(append(args, "--nats", d.url, "--cluster", "c"))
	err := c.ExecuteContext(d.t.Context())
	return out.String(), err
}

func (d *desk) must(args ...string) string {
	d.t.Helper()
	out, err := d.say(args...)
	if err != nil {
		d.t.Fatalf("%q: %v", args, err)
	}
	return out
}

func TestTheListShowsWhatStandsWorstFirst(t *testing.T) {
	d := newDesk(t)
	if out := d.must("list"); !strings.Contains(out, "No finding stands in cluster c.") {
		t.Errorf("nothing: %q", out)
	}
	d.stands("n1", "anomaly/temperature gpu/GPU-1", event.Info, true)
	d.stands("n2", "anomaly/thermal-throttle gpu/GPU-1", event.Warning, true)
	d.stands("n1", "anomaly/power gpu/GPU-1", event.Info, false)
	d.stands("n1", "gpu/lost gpu/GPU-1", event.Fatal, true)
	out := d.must("list")
	throttle, temperature := strings.Index(out, "thermal-throttle"), strings.Index(out, "anomaly/temperature")
	if throttle < 0 || temperature < throttle || strings.Contains(out, "power") || strings.Contains(out, "gpu/lost") {
		t.Errorf("list:\n%s", out)
	}
	var got struct {
		Findings   []struct{ Node, Key, Severity, State string }
		Statements []bus.Statement
	}
	if err := json.Unmarshal([]byte(d.must("list", "-o", "json", "--node", "n1")), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Findings) != 1 || got.Findings[0].Key != "anomaly/temperature gpu/GPU-1" || got.Findings[0].State != "open" || got.Statements == nil {
		t.Errorf("json %+v", got)
	}
	d.must("mute", "anomaly/*", "gpu/GPU-1", "--for", "1h", "--node", "n1")
	if out := d.must("list", "--node", "n2"); strings.Contains(out, "MUTED") {
		t.Errorf("a mute of n1 in the list of n2:\n%s", out)
	}
	if out := d.must("list", "--node", "n1"); !strings.Contains(out, "MUTED") {
		t.Errorf("the mute of n1 is not in its list:\n%s", out)
	}
}

func TestAWordIsPlannedThenSpokenAndReplacesTheOneBefore(t *testing.T) {
	d := newDesk(t)
	d.stands("n1", "anomaly/sm-clock gpu/GPU-1", event.Info, true)
	out := d.must("mute", "anomaly/*", "gpu/GPU-1", "--for", "2h", "--node", "n1", "--reason", "fan on its way", "--dry-run")
	if !strings.Contains(out, "n1  anomaly/sm-clock gpu/GPU-1") || !strings.Contains(out, "nothing was done") {
		t.Errorf("plan:\n%s", out)
	}
	if all, err := d.bus.Statements().List(t.Context()); err != nil || len(all) != 0 {
		t.Fatalf("a dry run left %v, %v", all, err)
	}
	for _, lasts := range []string{"2h", "3h"} {
		out = d.must("mute", "anomaly/* gpu/GPU-1", "--for", lasts, "--node", "n1")
	}
	all, err := d.bus.Statements().List(t.Context())
	if err != nil || len(all) != 1 || !strings.HasSuffix(out, "done\n") {
		t.Fatalf("%v, %v after %q", all, err, out)
	}
	if s := all[0].Value; s.Until.Sub(s.At) != 3*time.Hour || s.Key != "anomaly/* gpu/GPU-1" || s.By == "" || s.Verb != bus.StateMute {
		t.Errorf("statement %+v", s)
	}
	if out = d.must("list"); !strings.Contains(out, "open, muted") || !strings.Contains(out, "MUTED") {
		t.Errorf("list:\n%s", out)
	}
	d.must("unmute", "anomaly/* gpu/GPU-1", "--node", "n1")
	if out = d.must("list"); strings.Contains(out, "muted") {
		t.Errorf("list:\n%s", out)
	}
	var p plan
	if err := json.Unmarshal([]byte(d.must("accept", "anomaly/sm-clock", "gpu/GPU-1", "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	if !p.Done || p.Statement.Verb != bus.StateAccept || len(p.Findings) != 1 {
		t.Errorf("plan %+v", p)
	}
}

func TestAFindingOfANodeWhoseClockRunsAheadCanBeAcknowledged(t *testing.T) {
	d := newDesk(t)
	d.ahead = time.Hour
	d.stands("n1", "anomaly/sm-clock gpu/GPU-1", event.Info, true)
	var p plan
	if err := json.Unmarshal([]byte(d.must("ack", "anomaly/sm-clock", "gpu/GPU-1", "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	if p.Statement.At.Before(p.Findings[0].Onset) {
		t.Errorf("spoken of at %s, begun at %s", p.Statement.At, p.Findings[0].Onset)
	}
}

func TestErrorsNameTheThingAndTheRemedy(t *testing.T) {
	d := newDesk(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"pitcrew anomaly list", []string{"ack", "anomaly/x gpu/GPU-9"}},
		{"pitcrew anomaly list", []string{"accept", "anomaly/x", "gpu/GPU-9", "--node", "n1"}},
		{"begins with anomaly/", []string{"ack", "sm-clock"}},
		{"\"for\" not set", []string{"mute", "anomaly/*"}},
		{"needs an end", []string{"mute", "anomaly/*", "--for", "-1h"}},
		{"at most 30 days", []string{"mute", "anomaly/*", "--for", "1000h"}},
		{"is not muted", []string{"unmute", "anomaly/*"}},
		{"one of: text", []string{"list", "-o", "xml"}},
	} {
		if _, err := d.say(c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
