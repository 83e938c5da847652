package remediator_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/remediator/notify"
	"github.com/pitcrew/pitcrew/remediator/trace"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// spans is an OTLP receiver that keeps names by trace.
type spans struct {
	collectorv1.UnimplementedTraceServiceServer
	got chan string
}

func (s *spans) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	for _, rs := range r.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, x := range ss.Spans {
				s.got <- string(x.TraceId) + x.Name
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func TestARealRemediatorTellsAndTracesAnIncident(t *testing.T) {
	s := sandboxtest.Cluster(t)
	bare(t, s, []string{"told-1"})
	told := make(chan notify.Notice, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e struct{ Data notify.Notice }
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		told <- e.Data
	}))
	defer hook.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	otlp, traced := grpc.NewServer(), &spans{got: make(chan string, 1000)}
	collectorv1.RegisterTraceServiceServer(otlp, traced)
	go func() { _ = otlp.Serve(l) }()
	defer otlp.Stop()

	policy := strings.Replace(latencyPolicy, "steps: [{do: cordon}]", "steps: [{do: cordon}, {do: notify}]\n  default: notify", 1)
	_, publish := leading(t, s, &times{at: map[string]time.Time{}}, policy, func(o *remediator.Options) {
		o.Webhooks, o.OTLP = []string{hook.URL}, l.Addr().String()
	})
	publish("told-1", "31", event.Warning) // no rule takes it
	publish("told-1", "79", event.Fatal)
	var stages []string
	var last notify.Notice
	for len(stages) < 3 {
		select {
		case last = <-told:
			stages = append(stages, string(last.Stage)+" "+last.Signal)
		case <-time.After(20 * time.Second):
			t.Fatalf("only %q was told", stages)
		}
	}
	if want := []string{"finding xid/31", "opened xid/79", "closed xid/79"}; !slices.Equal(stages, want) || last.Outcome != "quarantined" {
		t.Errorf("told %q, %s; want %q", stages, last.Outcome, want)
	}
	missing := map[string]bool{"incident xid/79": true, "plan": true, "cordon": true, "patch": true, "close": true}
	for len(missing) > 0 {
		select {
		case x := <-traced.got:
			if id, name := hex.EncodeToString([]byte(x[:16])), x[16:]; id == trace.ID(last.Incident) {
				delete(missing, name)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no spans %v", missing)
		}
	}
}
