package storm

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

//go:embed stages.yaml
var stages []byte

//go:embed policy.yaml
var policyText string

// Options of Run.
type Options struct {
	Nodes, Gangs int
	Fill         int           // pods on each node that belong to no gang
	Cases        []string      // in any order; they run in the order of CaseNames
	Remediators  int           // processes; they elect a leader
	Remediator   []string      // the command of one; flags are added
	Bus          []string      // the command that runs NATS; flags are added
	Duration     time.Duration // of events-5000
	Rate         int           // events a second in events-5000
	Limit        time.Duration // how long a case waits for verdicts; nodes without one by then are unaccounted
	Settle       time.Duration // how long a case then waits for the incidents to end
	LeaseSeconds int           // of the nodes' leases
	Profiles     string        // directory for profiles of the leader; empty: none are taken
	Dir          string        // state directory, kept; empty: a temporary one
	Progress     io.Writer
}

func (o *Options) complete() error {
	known := CaseNames()
	if len(o.Cases) == 0 {
		o.Cases = known
	}
	for _, c := range o.Cases {
		if !slices.Contains(known, c) {
			return fmt.Errorf("unknown case %q; the cases are %s", c, strings.Join(known, " "))
		}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Duration <= 0 || o.Rate <= 0 || o.Limit <= 0 || o.Remediators < 1 {
		return fmt.Errorf("duration %s, rate %d, limit %s and remediators %d must be positive", o.Duration, o.Rate, o.Limit, o.Remediators)
	}
	return nil
}

// bench is a running cluster on which cases run one after another.
type bench struct {
	o     Options
	fleet fleet
	box   *sandbox.Sandbox
	proxy *proxy
	dir   string // of files of the benchmark's own
}

// Run builds the cluster, runs the cases, and takes everything down. A case that fails to run is an error; a missed goal is not.
func Run(ctx context.Context, o Options) (Report, error) {
	if err := o.complete(); err != nil {
		return Report{}, err
	}
	f, err := newFleet(o.Nodes, o.Gangs, o.Fill)
	if err != nil {
		return Report{}, err
	}
	b := &bench{o: o, fleet: f}
	defer b.close()
	if err := b.up(ctx); err != nil {
		return Report{}, err
	}
	report := Report{Nodes: len(f.nodes), Gangs: len(f.gangs), Pods: f.pods(), Remediators: o.Remediators, Machine: machine(), Rate: o.Rate, DurationS: o.Duration.Seconds()}
	for i := range scenarios {
		if !slices.Contains(o.Cases, scenarios[i].name) {
			continue
		}
		c, err := b.run(ctx, &scenarios[i])
		if err != nil {
			return report, fmt.Errorf("case %s: %w", scenarios[i].name, err)
		}
		report.Cases = append(report.Cases, c)
		fmt.Fprintln(o.Progress, c.String())
	}
	return report, nil
}

func (b *bench) say(format string, a ...any) { fmt.Fprintf(b.o.Progress, format+"\n", a...) }

// up starts the control plane, creates the fleet, and waits until every pod runs.
func (b *bench) up(ctx context.Context) (err error) {
	began := time.Now()
	b.box, err = sandbox.Up(ctx, sandbox.Options{Dir: b.o.Dir, Nodes: []sandbox.NodeSpec{}, NoAudit: true, Progress: b.o.Progress,
		Prepare: func(ctx context.Context, s *sandbox.Sandbox) error {
			if err := b.fleet.create(ctx, s.Client()); err != nil {
				return err
			}
			b.say("%d nodes, %d gangs, %d pods created after %.0f s", len(b.fleet.nodes), len(b.fleet.gangs), b.fleet.pods(), time.Since(began).Seconds())
			return nil
		}})
	if err != nil {
		return err
	}
	b.dir = filepath.Join(b.box.Dir(), "storm")
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	file := filepath.Join(b.dir, "stages.yaml")
	if err := writeFile(file, stages); err != nil {
		return err
	}
	port, err := freeport.Claim()
	if err != nil {
		return err
	}
	if err := b.box.StartKwok(ctx, sandbox.KwokOptions{Stages: file, Port: port, LeaseSeconds: b.o.LeaseSeconds}); err != nil {
		return err
	}
	if err := b.box.Apply(ctx, deploy.RBAC, deploy.RBACEnforce, deploy.RemediatorBounds, deploy.PlacementPolicy); err != nil {
		return err
	}
	if b.proxy, err = startProxy(b.box.Config()); err != nil {
		return err
	}
	lasts := int64((24 * time.Hour).Seconds())
	token, err := b.box.Client().CoreV1().ServiceAccounts(systemNamespace).CreateToken(ctx, "pitcrew-remediator",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lasts}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := b.proxy.kubeconfig(b.kubeconfig(), token.Status.Token); err != nil {
		return err
	}
	if err := b.awaitFleet(ctx, 10*time.Minute); err != nil {
		return err
	}
	b.say("all run after %.0f s", time.Since(began).Seconds())
	return nil
}

func (b *bench) kubeconfig() string { return filepath.Join(b.dir, "remediator.kubeconfig") }

func (b *bench) close() {
	if b.proxy != nil {
		b.proxy.close()
	}
	if b.box != nil {
		if err := b.box.Stop(); err != nil {
			b.say("stop the cluster: %v", err)
		}
	}
}

// awaitFleet waits until every node is ready and schedulable and every pod runs.
func (b *bench) awaitFleet(ctx context.Context, within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		nodes, err := b.box.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		ready := 0
		for i := range nodes.Items {
			if n := &nodes.Items[i]; len(n.Spec.Taints) == 0 && !n.Spec.Unschedulable && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		pods, err := b.pods(ctx)
		if err != nil {
			return err
		}
		running := 0
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodRunning && pods[i].DeletionTimestamp == nil {
				running++
			}
		}
		if ready == len(b.fleet.nodes) && running == b.fleet.pods() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s, %d of %d nodes are ready and %d of %d pods run; the logs are in %s", within, ready, len(b.fleet.nodes), running, b.fleet.pods(), b.box.Logs())
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *bench) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := b.box.Client().CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// reset takes back what a case left on the cluster, as an operator would who repaired everything.
func (b *bench) reset(ctx context.Context) error {
	kube := b.box.Client()
	maps, err := kube.CoreV1().ConfigMaps(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "pitcrew.dev/reservation=true"})
	if err != nil {
		return err
	}
	if err := each(ctx, len(maps.Items), func(ctx context.Context, i int) error {
		return kube.CoreV1().ConfigMaps(systemNamespace).Delete(ctx, maps.Items[i].Name, metav1.DeleteOptions{})
	}); err != nil {
		return fmt.Errorf("delete reservations: %w", err)
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if err := each(ctx, len(nodes.Items), func(ctx context.Context, i int) error { return b.cleanNode(ctx, &nodes.Items[i]) }); err != nil {
		return fmt.Errorf("uncordon nodes: %w", err)
	}
	jobs, err := kube.BatchV1().Jobs(jobNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return each(ctx, len(jobs.Items), func(ctx context.Context, i int) error {
		j := &jobs.Items[i]
		if j.Spec.Suspend == nil || !*j.Spec.Suspend {
			return nil
		}
		_, err := kube.BatchV1().Jobs(jobNamespace).Patch(ctx, j.Name, types.MergePatchType, []byte(`{"spec":{"suspend":false}}`), metav1.PatchOptions{})
		return err
	})
}

// cleanNode removes everything of Pitcrew's from a node.
func (b *bench) cleanNode(ctx context.Context, n *corev1.Node) error {
	kube := b.box.Client().CoreV1().Nodes()
	taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "pitcrew.dev/") || t.Key == corev1.TaintNodeUnschedulable
	})
	annotations := map[string]any{}
	for k := range n.Annotations {
		if strings.HasPrefix(k, "pitcrew.dev/") {
			annotations[k] = nil
		}
	}
	if len(taints) != len(n.Spec.Taints) || len(annotations) > 0 || n.Spec.Unschedulable {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}, "spec": map[string]any{"unschedulable": nil, "taints": taints}})
		if err != nil {
			return err
		}
		if _, err := kube.Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type != "PitcrewHealthy" {
			continue
		}
		patch := []byte(`{"status":{"conditions":[{"type":"PitcrewHealthy","$patch":"delete"}]}}`)
		if _, err := kube.Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	return nil
}

// startBus runs a NATS server of the case's own, with nothing in it.
func (b *bench) startBus(ctx context.Context, name string) (url string, err error) {
	port, err := freeport.Claim()
	if err != nil {
		return "", err
	}
	argv := append(slices.Clone(b.o.Bus), "--port", strconv.Itoa(port), "--dir", filepath.Join(b.dir, name))
	if err := b.box.StartProcess("", name, argv, nil); err != nil {
		return "", err
	}
	address := "127.0.0.1:" + strconv.Itoa(port)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			return "nats://" + address, c.Close()
		}
	}
	return "", errors.New("NATS did not start; its log is " + filepath.Join(b.box.Logs(), name+".log"))
}

// policies writes the policy of a case.
func (b *bench) policies(s *scenario) (string, error) {
	path := filepath.Join(b.dir, s.name+".yaml")
	return path, writeFile(path, []byte(strings.ReplaceAll(policyText, "LIMIT", strconv.Itoa(s.breaker))))
}

// run measures one case.
func (b *bench) run(ctx context.Context, s *scenario) (c Case, err error) {
	b.say("%s: %s", s.name, s.what)
	b.proxy.delay.Store(0)
	if err := b.reset(ctx); err != nil {
		return c, err
	}
	if err := b.awaitFleet(ctx, 5*time.Minute); err != nil {
		return c, err
	}
	url, err := b.startBus(ctx, "bus-"+s.name)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, b.box.StopProcess("", "bus-"+s.name)) }()
	pods, err := b.pods(ctx)
	if err != nil {
		return c, err
	}
	agents, err := startAgents(ctx, url, b.fleet, pods)
	if err != nil {
		return c, err
	}
	defer agents.close()
	verdicts, err := watchVerdicts(ctx, b.box.Client(), agents.buses[0])
	if err != nil {
		return c, err
	}
	defer verdicts.close()
	policies, err := b.policies(s)
	if err != nil {
		return c, err
	}
	tested, err := startRemediators(b.box, s.name, b.o.Remediators, b.o, url, b.kubeconfig(), policies)
	if err != nil {
		return c, err
	}
	defer tested.close()
	if err := b.awaitLeader(ctx, agents.buses[0], tested); err != nil {
		return c, err
	}
	b.proxy.delay.Store(int64(s.delay))
	m, err := b.measure(ctx, s, agents, verdicts, tested)
	if err != nil {
		return c, err
	}
	return m.result(s), verdicts.save(filepath.Join(b.box.Logs(), s.name+"-incidents.json"))
}

// idleFor is how long the remediators are watched before a storm, to know what they use when nothing happens.
const idleFor = 5 * time.Second

// awaitLeader returns when a remediator consumes events.
func (b *bench) awaitLeader(ctx context.Context, conn *bus.Bus, tested *remediators) error {
	for end := time.Now().Add(2 * time.Minute); ; {
		backlog, err := conn.EventBacklog(ctx)
		if err == nil && backlog.Consumers > 0 {
			if _, err = tested.leader(ctx); err == nil {
				return nil
			}
		}
		if dead := tested.died(""); dead != nil {
			return dead
		}
		if time.Now().After(end) {
			return fmt.Errorf("no remediator leads after two minutes (%w); their logs are in %s", err, b.box.Logs())
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// measured is what a case showed.
type measured struct {
	tally
	o           Options
	fleet       fleet
	failed      int
	window      time.Duration // of the processor time and the requests
	cpu, idle   float64       // seconds in the window; seconds a second before it
	rss         float64
	requests    map[request]int
	events      int64
	lost        map[string]float64
	notes       map[string]float64
	backlogMost uint64
}

// measure lets the storm loose and watches until every node has its verdict and the incidents have ended, or the time is up.
func (b *bench) measure(ctx context.Context, s *scenario, a *agents, v *verdicts, tested *remediators) (m measured, err error) {
	m = measured{o: b.o, fleet: b.fleet, lost: map[string]float64{}}
	victims := s.victims(b.o, b.fleet, a.occupied(b.fleet.nodes))
	m.failed = len(victims)
	quiet := tested.cpu()
	time.Sleep(idleFor)
	cpu := tested.cpu()
	m.idle = (cpu - quiet) / idleFor.Seconds()
	tested.resetPeak()
	requests, began := b.proxy.counted(), time.Now()
	stormed := make(chan error, 1)
	storm, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { stormed <- s.storm(storm, b.o, a, v, victims) }()
	profiled := b.profile(storm, s, tested)
	killed := ""
	over := false
	var accounted, asked time.Time
	for deadline := began.Add(s.over(b.o) + b.o.Limit); ; {
		select {
		case err := <-stormed:
			if err != nil {
				return m, err
			}
			over = true
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return m, ctx.Err()
		}
		if time.Since(asked) > time.Second {
			if backlog, err := a.buses[0].EventBacklog(ctx); err == nil {
				m.backlogMost = max(m.backlogMost, backlog.Pending)
			}
			asked = time.Now()
		}
		m.tally = v.tally()
		if s.kill && killed == "" && (3*len(m.took) >= m.failed || time.Since(began) > time.Second) {
			if killed, err = tested.leader(ctx); err != nil {
				return m, err
			}
			if err := tested.kill(killed); err != nil {
				return m, err
			}
		}
		if err := tested.died(killed); err != nil {
			return m, err
		}
		now := time.Now()
		all := over && len(m.open) == 0
		if all && accounted.IsZero() {
			accounted = now
		}
		if all && (m.unsettled == 0 || now.Sub(accounted) > b.o.Settle) || now.After(deadline) {
			break
		}
	}
	backlog := b.drain(ctx, a.buses[0])
	if err := <-profiled; err != nil && !s.kill { // of a leader that was killed there is none
		return m, err
	}
	m.tally = v.tally()
	m.window = time.Since(began)
	m.cpu = tested.cpu() - cpu
	m.rss = tested.peakRSS()
	m.requests = map[request]int{}
	for r, n := range b.proxy.counted() {
		if n -= requests[r]; n > 0 {
			m.requests[r] = n
		}
	}
	var given int64
	m.events, given = a.acked()
	m.notes, m.lost["dropped by the remediator"] = tested.notes(ctx)
	m.lost["never stored"] = float64(given)
	if m.lost["not consumed"], err = leftOver(ctx, a.buses[0], backlog, began); err != nil {
		return m, err
	}
	if left := int64(backlog.Stored) - int64(backlog.Delivered) - int64(backlog.Pending); left > 0 { // overwritten before anybody had read them
		m.lost["overwritten"] = float64(min(left, int64(backlog.Discarded)))
	}
	maps.DeleteFunc(m.lost, func(_ string, n float64) bool { return n == 0 })
	return m, nil
}

// leftOver counts the nodes' events that no remediator has received. The stream holds the remediator's own as well, which are not counted.
func leftOver(ctx context.Context, conn *bus.Bus, backlog bus.Backlog, since time.Time) (n float64, err error) {
	if backlog.Pending == 0 {
		return 0, nil
	}
	err = conn.Replay(ctx, since, func(d bus.Delivery) {
		if d.Event.Type != event.Incident && d.Sequence > backlog.Reached {
			n++
		}
	}, func(string, error) {})
	return n, err
}

// drain gives the remediator the time in which an event may still act to deal with those that wait.
func (b *bench) drain(ctx context.Context, conn *bus.Bus) (last bus.Backlog) {
	for end := time.Now().Add(b.o.Settle); ; time.Sleep(200 * time.Millisecond) {
		backlog, err := conn.EventBacklog(ctx)
		if err == nil {
			last = backlog
		}
		if err == nil && backlog.Pending == 0 && backlog.Unacked == 0 || time.Now().After(end) || ctx.Err() != nil {
			return last
		}
	}
}
