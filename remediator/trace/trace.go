// Package trace turns a closed incident into one OpenTelemetry trace: a root span from the fault to the close, a span per phase, and
// below the phases the writes to the cluster, all with the times that the incident recorded.
//
// It promises that an incident's trace id follows from its id (ID), so that the trace is found without looking it up and an incident
// emitted twice is one trace; and that emitting blocks nobody: what an exporter does not take is dropped.
package trace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otrace "go.opentelemetry.io/otel/trace"

	"github.com/pitcrew/pitcrew/remediator/incident"
)

// scope names the instrumentation.
const scope = "github.com/pitcrew/pitcrew/remediator"

// Tracer emits incidents. The zero value and nil emit nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	exporter sdk.SpanExporter
}

// New makes a tracer for an OTLP receiver over gRPC: "host:4317" without TLS, or an address with http:// or https://. With an empty
// address the standard OTEL_EXPORTER_OTLP_* variables say where to; without those it is a tracer that emits nothing.
func New(ctx context.Context, address, cluster string, log *slog.Logger) (*Tracer, error) {
	var opts []otlptracegrpc.Option
	switch {
	case strings.Contains(address, "://"):
		opts = append(opts, otlptracegrpc.WithEndpointURL(address))
	case address != "":
		opts = append(opts, otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithInsecure())
	case os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "":
		return &Tracer{}, nil
	}
	e, err := otlptracegrpc.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("otlp %s: %w", address, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces", "error", err) }))
	return of(cluster, e, sdk.WithBatcher(e)), nil
}

func of(cluster string, e sdk.SpanExporter, to sdk.TracerProviderOption) *Tracer {
	r := resource.NewSchemaless(attribute.String("service.name", "pitcrew-remediator"), attribute.String("k8s.cluster.name", cluster))
	return &Tracer{sdk.NewTracerProvider(to, sdk.WithResource(r), sdk.WithSampler(sdk.AlwaysSample()), sdk.WithIDGenerator(ids{})), e}
}

// Close sends what waits, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil || t.provider == nil {
		return nil
	}
	err := t.provider.Shutdown(ctx)
	if ctx.Err() != nil { // an export may be under way that nobody waits for
		err = errors.Join(err, t.exporter.Shutdown(ctx)) // with a ctx that has ended it is torn off
	}
	return err
}

// phases names the span of the time before a state was reached.
var phases = map[incident.State]string{
	incident.Correlated: "correlate", incident.Planned: "plan", incident.Approved: "approve", incident.Cordoned: "cordon", incident.Checkpointed: "checkpoint",
	incident.Placed: "place", incident.Restarted: "restart", incident.Resumed: "resume", incident.Verified: "verify", incident.Closed: "close",
}

// Emit emits a closed incident.
func (t *Tracer) Emit(i *incident.Incident) {
	if t == nil || t.provider == nil || i.State != incident.Closed || len(i.Faults) == 0 {
		return
	}
	tracer := t.provider.Tracer(scope)
	f := i.Faults[0]
	began := i.Began()
	ctx := context.WithValue(context.Background(), incidentKey{}, &seed{id: i.ID})
	ctx, root := tracer.Start(ctx, "incident "+f.Signal, otrace.WithTimestamp(began), otrace.WithNewRoot(), otrace.WithAttributes(about(i)...))
	if began.Before(i.Opened) {
		_, s := tracer.Start(ctx, "detect", otrace.WithTimestamp(began), otrace.WithAttributes(attribute.String("pitcrew.text", f.Event.Data.Evidence.Raw)))
		s.End(otrace.WithTimestamp(i.Opened))
	}
	writes := i.Writes
	for _, n := range i.Notes {
		name, isPhase := phases[n.State]
		if !isPhase || n.TookS <= 0 {
			root.AddEvent(n.Text, otrace.WithTimestamp(n.At), otrace.WithAttributes(attribute.String("pitcrew.state", string(n.State))))
			continue
		}
		from := n.At.Add(-seconds(n.TookS))
		inner, s := tracer.Start(ctx, name, otrace.WithTimestamp(from), otrace.WithAttributes(attribute.String("pitcrew.text", n.Text)))
		for len(writes) > 0 && !writes[0].At.After(n.At) {
			write(inner, tracer, writes[0])
			writes = writes[1:]
		}
		s.End(otrace.WithTimestamp(n.At))
	}
	for _, w := range writes {
		write(ctx, tracer, w)
	}
	if i.NeedsPerson() {
		root.SetStatus(codes.Error, i.Reason)
	}
	root.End(otrace.WithTimestamp(i.ClosedAt))
}

func write(ctx context.Context, tracer otrace.Tracer, w incident.Write) {
	_, s := tracer.Start(ctx, w.Verb, otrace.WithTimestamp(w.At.Add(-seconds(w.TookS))), otrace.WithSpanKind(otrace.SpanKindClient),
		otrace.WithAttributes(attribute.String("pitcrew.object", w.Object)))
	if w.Error != "" {
		s.SetStatus(codes.Error, w.Error)
	}
	s.End(otrace.WithTimestamp(w.At))
}

func about(i *incident.Incident) []attribute.KeyValue {
	f := i.Faults[0]
	kv := []attribute.KeyValue{
		attribute.String("pitcrew.incident", i.ID), attribute.String("pitcrew.signal", f.Signal), attribute.String("pitcrew.severity", string(f.Sev)),
		attribute.String("pitcrew.outcome", string(i.Outcome)), attribute.String("pitcrew.reason", i.Reason), attribute.String("k8s.node.name", f.Node),
		attribute.Int("pitcrew.round", i.Round),
	}
	if f.GPU != "" {
		kv = append(kv, attribute.String("hw.id", f.GPU))
	}
	if i.Job != nil {
		kv = append(kv, attribute.String("k8s.namespace.name", i.Job.Namespace), attribute.String("pitcrew.job", i.Job.Name),
			attribute.String("pitcrew.job.kind", i.Job.Kind), attribute.Int("pitcrew.world_size", i.WorldSize), attribute.String("pitcrew.path", i.Path))
	}
	if p := i.Plan; p != nil {
		kv = append(kv, attribute.String("pitcrew.policy", p.Policy), attribute.String("pitcrew.rule", p.Rule), attribute.String("pitcrew.mode", string(p.Mode)))
	}
	if i.LostSteps != nil {
		kv = append(kv, attribute.Int64("pitcrew.lost_steps", *i.LostSteps))
	}
	if i.ResumedStep != nil {
		kv = append(kv, attribute.Int64("pitcrew.resumed_step", *i.ResumedStep))
	}
	if i.FirstStep != nil {
		kv = append(kv, attribute.Float64("pitcrew.recovered_s", i.FirstStep.Sub(i.Began()).Seconds()))
	}
	return kv
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// ID is the trace id of an incident, as 32 hex digits.
func ID(incidentID string) string { return traceID(incidentID).String() }

func traceID(incidentID string) (id otrace.TraceID) {
	sum := sha256.Sum256([]byte("pitcrew incident " + incidentID))
	copy(id[:], sum[:])
	return id
}

type incidentKey struct{}

// seed is the incident of a context and how many spans it has.
type seed struct {
	id string
	n  uint64
}

// ids derives ids from the incident that the context carries.
type ids struct{}

func (ids) NewIDs(ctx context.Context) (otrace.TraceID, otrace.SpanID) {
	s := ctx.Value(incidentKey{}).(*seed)
	id := traceID(s.id)
	return id, s.next(id)
}

func (ids) NewSpanID(ctx context.Context, id otrace.TraceID) otrace.SpanID {
	return ctx.Value(incidentKey{}).(*seed).next(id)
}

func (s *seed) next(id otrace.TraceID) (span otrace.SpanID) {
	s.n++
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(id[:], s.n))
	copy(span[:], sum[:])
	return span
}
