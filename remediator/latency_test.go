package remediator_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// latencyPolicy cordons at once, as often as it is asked.
const latencyPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
metadata: {name: latency}
spec:
  mode: enforce
  order: 1
  guards:
    maxConcurrentIncidents: 10000
    maxNodesQuarantined: {count: 100000, percent: 100}
    cooldownPerNode: 1s
    actionBudget: {count: 100000, per: 24h}
    maxEventAge: 60s
  rules:
  - name: cordon
    when: {signal: xid/79}
    steps: [{do: cordon}]
`

// BenchmarkAckedEventToAnsweredCordon measures, with the whole remediator in this process on a real control plane and a real JetStream
// with file storage, from the acknowledgement of an event to the answer to the PATCH that cordons its node. Each event is about a
// node of its own; the nodes are API objects without a kubelet. It reports percentiles, so run it with a count:
// go test -run - -bench AckedEvent -benchtime 200x ./remediator
//
// pause is the time between events: 0 publishes the next when the last one's node is cordoned, otherwise events come at a rate.
func BenchmarkAckedEventToAnsweredCordon(b *testing.B) {
	for _, pause := range []time.Duration{0, 50 * time.Millisecond} {
		b.Run(fmt.Sprintf("pause=%v", pause), func(b *testing.B) { cordonLatency(b, pause) })
	}
}

func cordonLatency(b *testing.B, pause time.Duration) {
	s := sandboxtest.Cluster(b)
	warm := make([]string, 10)
	for i := range warm {
		warm[i] = fmt.Sprintf("warm-%d-%d-%d", pause.Milliseconds(), b.N, i)
	}
	measured := make([]string, b.N)
	for i := range measured {
		measured[i] = fmt.Sprintf("bench-%d-%d-%d", pause.Milliseconds(), b.N, i)
	}
	bare(b, s, slices.Concat(warm, measured))
	acked := &times{at: map[string]time.Time{}}
	audit, publishXid := leading(b, s, acked, latencyPolicy)
	publish := func(node string) { publishXid(node, "79", event.Fatal) }
	cordoned := cordons(b, s)

	wait := func(node string) {
		b.Helper()
		select {
		case got := <-cordoned:
			if got != node {
				b.Fatalf("%s was cordoned, not %s", got, node)
			}
		case <-time.After(20 * time.Second):
			b.Fatalf("%s was not cordoned", node)
		}
	}
	for _, n := range warm {
		publish(n)
		wait(n)
	}
	b.ResetTimer()
	for _, n := range measured {
		publish(n)
		if pause > 0 {
			time.Sleep(pause)
		} else {
			wait(n)
		}
	}
	for range measured {
		if pause == 0 {
			break
		}
		select {
		case <-cordoned:
		case <-time.After(20 * time.Second):
			b.Fatal("not every node was cordoned")
		}
	}
	b.StopTimer()
	answered := answers(b, audit)
	for end := time.Now().Add(2 * time.Second); len(answered) < len(warm)+len(measured) && time.Now().Before(end); answered = answers(b, audit) {
		time.Sleep(20 * time.Millisecond) // the watch may be faster than the answer is written down
	}
	var took []float64
	for _, n := range measured {
		a, c := acked.of(n), answered[n]
		if a.IsZero() || c.IsZero() {
			b.Fatalf("%s: acknowledged %v, answered %v", n, a, c)
		}
		took = append(took, max(0, c.Sub(a).Seconds()*1000)) // the consumer may be faster than the publisher's acknowledgement
	}
	slices.Sort(took)
	at := func(q float64) float64 { return took[min(len(took)-1, int(q*float64(len(took))))] }
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(took[len(took)-1], "max-ms")
}

// bare makes nodes without a kubelet, and takes them away at the end.
func bare(b testing.TB, s *sandbox.Sandbox, names []string) {
	b.Helper()
	nodes := s.Client().CoreV1().Nodes()
	for _, name := range names {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.product": sandbox.GPUProduct}}}
		if _, err := nodes.Create(b.Context(), n, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		for _, name := range names {
			if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				b.Error(err)
			}
		}
	})
	time.Sleep(2 * time.Second) // set-up: the node controller has had its say about them
}

// times are moments by node.
type times struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (t *times) set(node string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at[node] = now
}

func (t *times) of(node string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[node]
}

// leading runs a bus and a remediator until the benchmark ends. audit is where the remediator writes down its writes.
func leading(b testing.TB, s *sandbox.Sandbox, acked *times, policy string, change ...func(*remediator.Options)) (audit string, publish func(node, xid string, severity event.Severity)) {
	b.Helper()
	dir := b.TempDir()
	policies := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policies, []byte(policy), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := s.CreateNamespace(b.Context(), "pitcrew-system", nil); err != nil && !apierrors.IsAlreadyExists(err) {
		b.Fatal(err)
	}
	server, err := bus.StartServer(bus.ServerOptions{Port: -1, Dir: filepath.Join(dir, "bus")})
	if err != nil {
		b.Fatal(err)
	}
	c, err := bus.Connect(bus.Options{URL: server.URL(), Cluster: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	pub, err := c.NewPublisher("", func(m event.Message, _ time.Duration) { acked.set(m.Node) })
	if err != nil {
		b.Fatal(err)
	}
	audit = filepath.Join(dir, "audit.jsonl")
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	o := remediator.Options{
		NATS: server.URL(), Cluster: "bench", Namespace: "pitcrew-system", Kubeconfig: asEnforcer(b, s), Policies: []string{policies}, Audit: audit,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, f := range change {
		f(&o)
	}
	go func() { ended <- remediator.Run(ctx, o) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		_ = pub.Close(context.Background())
		c.Close()
		server.Stop()
	})
	return audit, func(node, xid string, severity event.Severity) {
		src, now := event.Source("bench", node, "xid"), time.Now()
		if err := pub.Publish(event.Event{
			ID: event.NewID(src, now.String()), Source: src, Type: event.Fault, Time: now,
			Data: event.Data{
				Target: event.Target{Cluster: "bench", Node: node, GPU: "GPU-" + node}, Cause: event.Cause{Kind: "xid", Code: xid},
				Severity: severity, Advice: "reboot-node", Onset: now,
			},
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// cordons tells the name of each node when its quarantine shows.
func cordons(b *testing.B, s *sandbox.Sandbox) <-chan string {
	b.Helper()
	w, err := s.Client().CoreV1().Nodes().Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.Stop)
	out, told := make(chan string, 1<<16), map[string]bool{}
	go func() {
		for e := range w.ResultChan() {
			n, ok := e.Object.(*corev1.Node)
			if ok && !told[n.Name] && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "pitcrew.dev/quarantine" }) {
				told[n.Name] = true
				out <- n.Name
			}
		}
	}()
	return out
}

// answers reads from the audit log when each node's cordon was answered.
func answers(b *testing.B, file string) map[string]time.Time {
	b.Helper()
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	out := map[string]time.Time{}
	for in := bufio.NewScanner(f); in.Scan(); {
		var l struct {
			At                               time.Time
			Stage, Verb, Object, What, Error string
		}
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			b.Fatal(err)
		}
		node, isNode := strings.CutPrefix(l.Object, "Node ")
		if isNode && l.Stage == "done" && l.What == "cordon" && l.Error == "" && out[node].IsZero() {
			out[node] = l.At
		}
	}
	return out
}
