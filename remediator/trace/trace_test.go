package trace

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/incident"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)

func at(s float64) time.Time { return t0.Add(seconds(s)) }

func healed() *incident.Incident {
	lost, resumed, first := int64(2), int64(40), at(3.5)
	return &incident.Incident{
		ID: "inc-1", Cluster: "c", State: incident.Closed, Outcome: incident.Recovered, Reason: "all step", Opened: at(0.1), StateAt: at(4), ClosedAt: at(4), Round: 1,
		Faults: []incident.Fault{{Signal: "xid/79", Sev: event.Fatal, Node: "a1", GPU: "GPU-1", At: t0}},
		Job:    &event.Job{Kind: "Job", Namespace: "train", Name: "llm"},
		Plan:   &incident.Plan{Policy: "gpu-hardware", Rule: "gpu-gone", Mode: "enforce"},

		LostSteps: &lost, ResumedStep: &resumed, FirstStep: &first,
		Notes: []incident.Note{
			{At: at(0.1), State: incident.Detected, Text: "xid/79 on a1"},
			{At: at(0.2), State: incident.Correlated, TookS: 0.1, Text: "2 ranks"},
			{At: at(0.3), State: incident.Planned, TookS: 0.1, Text: "rule gpu-gone"},
			{At: at(0.5), State: incident.Cordoned, TookS: 0.2, Text: "a1"},
			{At: at(0.6), State: incident.Cordoned, Text: "rank/dead on a1 joined"},
			{At: at(4), State: incident.Closed, TookS: 3.5, Text: "recovered"},
		},
		Writes: []incident.Write{{At: at(0.45), Verb: "patch", Object: "Node a1: taint", TookS: 0.1}, {At: at(5), Verb: "create", Object: "Event a1", TookS: 0.1, Error: "denied"}},
	}
}

func emit(t *testing.T, is ...*incident.Incident) tracetest.SpanStubs {
	t.Helper()
	e := tracetest.NewInMemoryExporter()
	tr := of("c", e, sdk.WithSyncer(e))
	for _, i := range is {
		tr.Emit(i)
	}
	spans := e.GetSpans()
	if err := tr.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return spans
}

func named(t *testing.T, spans tracetest.SpanStubs, name string) tracetest.SpanStub {
	t.Helper()
	i := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no span %q", name)
	}
	return spans[i]
}

func TestAnIncidentIsOneTraceWithASpanPerPhase(t *testing.T) {
	spans := emit(t, healed())
	root := named(t, spans, "incident xid/79")
	if !root.StartTime.Equal(t0) || !root.EndTime.Equal(at(4)) || root.Parent.IsValid() || root.Status.Code == codes.Error {
		t.Errorf("root %+v", root)
	}
	want := map[string][2]float64{"detect": {0, 0.1}, "correlate": {0.1, 0.2}, "plan": {0.2, 0.3}, "cordon": {0.3, 0.5}, "close": {0.5, 4}}
	if len(spans) != len(want)+3 { // the root and two writes
		t.Errorf("%d spans", len(spans))
	}
	for name, w := range want {
		s := named(t, spans, name)
		if s.StartTime.Sub(at(w[0])).Abs() > time.Microsecond || s.EndTime.Sub(at(w[1])).Abs() > time.Microsecond || s.Parent.SpanID() != root.SpanContext.SpanID() {
			t.Errorf("%s from %v to %v", name, s.StartTime.Sub(t0), s.EndTime.Sub(t0))
		}
	}
	if p := named(t, spans, "patch"); p.Parent.SpanID() != named(t, spans, "cordon").SpanContext.SpanID() || !p.EndTime.Equal(at(0.45)) {
		t.Errorf("the write is not below its phase: %+v", p)
	}
	if c := named(t, spans, "create"); c.Status.Code != codes.Error || c.Parent.SpanID() != root.SpanContext.SpanID() {
		t.Errorf("late write %+v", c)
	}
	if len(root.Events) != 2 || root.Events[1].Name != "rank/dead on a1 joined" || !root.Events[1].Time.Equal(at(0.6)) {
		t.Errorf("events %+v", root.Events)
	}
	has := attribute.NewSet(root.Attributes...)
	for key, v := range map[attribute.Key]any{
		"pitcrew.incident": "inc-1", "pitcrew.job": "llm", "pitcrew.signal": "xid/79", "pitcrew.rule": "gpu-gone", "pitcrew.outcome": "recovered",
		"pitcrew.lost_steps": int64(2), "pitcrew.recovered_s": 3.5, "k8s.node.name": "a1",
	} {
		if got, ok := has.Value(key); !ok || got.AsInterface() != v {
			t.Errorf("%s is %v, want %v", key, got.AsInterface(), v)
		}
	}
}

func TestTheTraceIdFollowsFromTheIncident(t *testing.T) {
	other := healed()
	other.ID = "inc-2"
	first, again := emit(t, healed(), other), emit(t, healed())
	seen := map[string]bool{}
	for k, s := range first {
		seen[s.SpanContext.SpanID().String()] = true
		if k < len(again) && s.SpanContext.SpanID() != again[k].SpanContext.SpanID() {
			t.Error("emitted again it is another span")
		}
	}
	if len(seen) != len(first) {
		t.Errorf("%d ids for %d spans", len(seen), len(first))
	}
	if id := first[0].SpanContext.TraceID().String(); id != ID("inc-1") || id == ID("inc-2") {
		t.Errorf("trace id %s", id)
	}
}

func TestWhatNeedsAPersonIsAnErrorAndWhatIsOpenIsNotEmitted(t *testing.T) {
	failed, open := healed(), healed()
	failed.Outcome, failed.Reason = incident.Failed, "3 restarts"
	open.State = incident.Placed
	spans := emit(t, failed, open)
	if r := named(t, spans, "incident xid/79"); r.Status.Code != codes.Error || r.Status.Description != "3 restarts" {
		t.Errorf("status %+v", r.Status)
	}
	if len(spans) != 8 {
		t.Errorf("%d spans", len(spans))
	}
}

func TestWithoutAnAddressNothingIsEmittedAndADeadOneHoldsNothingUp(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	log := slog.New(slog.DiscardHandler)
	none, err := New(t.Context(), "", "c", log)
	if err != nil {
		t.Fatal(err)
	}
	none.Emit(healed())
	if err := none.Close(t.Context()); err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	for _, a := range []string{address, "http://" + address} {
		dead, err := New(t.Context(), a, "c", log)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			dead.Emit(healed())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_ = dead.Close(ctx) // nobody is there
		cancel()
	}
}
