package demo

import (
	"context"
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

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/remediator/policy"
	"github.com/pitcrew/pitcrew/remediator/steer"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// Names on the stage.
const (
	ClusterName     = "sandbox"
	SystemNamespace = "pitcrew-system"
)

// Stage is a running sandbox with all of Pitcrew on it.
type Stage struct {
	box       *sandbox.Sandbox
	bus       *bus.Bus
	url       string
	python    sandbox.Python
	trainer   string // torch | stand-in
	incidents bus.Bucket[incident.Incident]
	o         StageOptions
	ports     map[string]int
	proxies   map[string]string // of nodes, to NATS

	kubeconfig string // of the remediator's account
	page       string // address of the incident page, which signs in at once
}

// Box is the cluster, Bus the stage's own connection to NATS, Incidents the remediator's records.
func (s *Stage) Box() *sandbox.Sandbox                    { return s.box }
func (s *Stage) Bus() *bus.Bus                            { return s.bus }
func (s *Stage) Incidents() bus.Bucket[incident.Incident] { return s.incidents }

// Trainer is what the ranks run: torch, or stand-in if no Python with torch was found.
func (s *Stage) Trainer() string { return s.trainer }

// NATS is the address of the stage's NATS server.
func (s *Stage) NATS() string { return s.url }

// RemediatorAudit is the file in which the remediator writes down each of its writes to the cluster.
func (s *Stage) RemediatorAudit() string {
	return filepath.Join(s.box.Logs(), "remediator-audit.jsonl")
}

// StageOptions of SetUp. The zero value is the demo's: two racks, every program beside this one, policies as shipped but enforcing.
type StageOptions struct {
	Dir      string // state directory; empty: a temporary one
	Nodes    []sandbox.NodeSpec
	JobSet   bool
	Progress io.Writer
	// Gateway runs one, to which the agents send their ranks' steps.
	Gateway bool
	// Emulate is the Kubernetes version whose APIs the API server has, such as 1.35, which has no placement policy: then the remediator's webhook
	// steers. Empty: its own.
	Emulate string
	// Auth lets NATS in only whom the remediator lets in, by service accounts' tokens.
	Auth     bool
	Policies func([]policy.Policy) []policy.Policy // changes the policies in force; nil: as shipped
	Bin      string                                // folder of Pitcrew's programs; empty: this program's own
	// Page serves the incident page.
	Page bool
	// Links puts each agent's connection to NATS on its node's link, so that Node.Cut cuts it.
	Links bool
	// Remediator is the command of another remediator than the program's own; the stage's flags are added to it.
	Remediator []string
}

// SetUp builds what is missing, starts the cluster and Pitcrew, and returns when every agent beats.
func SetUp(ctx context.Context, o StageOptions) (_ *Stage, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	s := &Stage{o: o, ports: map[string]int{}, proxies: map[string]string{}}
	py, err := sandbox.FindPython(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	_, s.trainer = py.Trainer()
	s.python = py
	s.say("control plane: etcd, kube-apiserver, controller-manager, scheduler")
	if s.box, err = sandbox.Up(ctx, sandbox.Options{Dir: o.Dir, Nodes: o.Nodes, JobSet: o.JobSet, Emulate: o.Emulate, Progress: o.Progress}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	s.say("%d nodes ready, 8 simulated GPUs each", len(s.box.Nodes()))
	if err := s.box.CreateNamespace(ctx, SystemNamespace, nil); err != nil {
		return nil, err
	}
	if err := s.install(ctx); err != nil {
		return nil, err
	}
	if err := s.startBus(ctx); err != nil {
		return nil, err
	}
	if err := s.startRemediator(); err != nil {
		return nil, err
	}
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	if o.Gateway {
		if err := s.startGateway(); err != nil {
			return nil, err
		}
	}
	if err := s.startAgents(ctx); err != nil {
		return nil, err
	}
	s.say("pitcrew is up: bus, remediator (policy: enforce), %d agents with a DCGM process each", len(s.box.Nodes()))
	return s, nil
}

// install gives the remediator's account its rights and the cluster its way of steering, as an administrator does.
func (s *Stage) install(ctx context.Context) (err error) {
	if err := s.box.Apply(ctx, deploy.RBAC, deploy.RBACEnforce, deploy.RemediatorBounds); err != nil {
		return err
	}
	if s.o.Emulate == "" {
		err = s.box.Apply(ctx, deploy.PlacementPolicy)
	} else {
		err = s.installWebhook(ctx)
	}
	if err != nil {
		return err
	}
	s.kubeconfig, err = s.box.AccountKubeconfig(ctx, SystemNamespace, "pitcrew-remediator")
	return err
}

// webhookCA is the folder of the webhook's authority.
func (s *Stage) webhookCA() string { return filepath.Join(s.box.Dir(), "webhook-ca") }

// installWebhook installs deploy/placement-webhook.yaml with an address in place of a Service, which the sandbox's nodes do not serve.
func (s *Stage) installWebhook(ctx context.Context) error {
	ca, err := steer.NewAuthority(time.Now(), steer.ServiceName(SystemNamespace))
	if err != nil {
		return err
	}
	if err := ca.Write(s.webhookCA()); err != nil {
		return err
	}
	p, err := s.port("steer")
	if err != nil {
		return err
	}
	var config admissionv1.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(deploy.PlacementWebhook, &config); err != nil {
		return fmt.Errorf("deploy/placement-webhook.yaml: %w", err)
	}
	url := "https://127.0.0.1:" + strconv.Itoa(p) + steer.Path
	for k := range config.Webhooks {
		config.Webhooks[k].ClientConfig = admissionv1.WebhookClientConfig{URL: &url, CABundle: ca.Bundle()}
	}
	_, err = s.box.Client().AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, &config, metav1.CreateOptions{})
	return err
}

// say tells of progress, folded on a terminal.
func (s *Stage) say(format string, a ...any) {
	fmt.Fprintln(s.o.Progress, incident.Fold(fmt.Sprintf(format, a...), incident.Columns(s.o.Progress), 2))
}

// Close ends everything.
func (s *Stage) Close() {
	if s.bus != nil {
		s.bus.Close()
	}
	if s.box != nil {
		if err := s.box.Stop(); err != nil {
			s.say("stop the sandbox: %v", err)
		}
	}
}

// program is one of Pitcrew's binaries, in the folder given or beside this one.
func (s *Stage) program(name string) (string, error) {
	dir := s.o.Bin
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		dir = filepath.Dir(self)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not in %s: run `make build`", name, dir)
	}
	return path, nil
}

func (s *Stage) port(name string) (int, error) {
	if p := s.ports[name]; p != 0 {
		return p, nil
	}
	p, err := freeport.Claim()
	s.ports[name] = p
	return p, err
}

func (s *Stage) startBus(ctx context.Context) error {
	pitcrew, err := s.program("pitcrew")
	if err != nil {
		return err
	}
	p, err := s.port("nats")
	if err != nil {
		return err
	}
	s.url = "nats://127.0.0.1:" + strconv.Itoa(p)
	argv := []string{pitcrew, "bus", "--port", strconv.Itoa(p), "--dir", filepath.Join(s.box.Dir(), "bus")}
	if s.o.Auth {
		argv = append(argv, "--auth-keys", s.keys())
		if err := s.makeAccounts(ctx); err != nil {
			return err
		}
	}
	if err := s.box.StartProcess("", "bus", argv, nil); err != nil {
		return err
	}
	return poll(ctx, 20*time.Second, func() (bool, error) { // the remediator, which NATS asks, finds it there
		c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(p))
		if err != nil {
			return false, nil
		}
		return true, c.Close()
	})
}

// connect gives the stage a connection of its own.
func (s *Stage) connect(ctx context.Context) (err error) {
	o := bus.Options{URL: s.url, Cluster: ClusterName, Name: "demo"}
	if s.o.Auth {
		if err := s.awaitRemediator(ctx); err != nil {
			return err
		}
		if o.TokenFile, err = s.Token("pitcrew-remediator"); err != nil {
			return err
		}
	}
	if s.bus, err = bus.Connect(o); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s.incidents = bus.NewBucket[incident.Incident](s.bus, bus.IncidentBucket)
	return s.bus.Wait(wait)
}

// startRemediator runs it on the shipped policies, changed in one word: enforce instead of observe.
func (s *Stage) startRemediator() error {
	argv := s.o.Remediator
	if argv == nil {
		exe, err := s.program("pitcrew-remediator")
		if err != nil {
			return err
		}
		argv = []string{exe}
	}
	root, err := sandbox.RepoRoot()
	if err != nil {
		return err
	}
	ps, err := policy.Load(filepath.Join(root, "deploy", "policies"))
	if err != nil {
		return err
	}
	ps = policy.WithMode(ps, policy.Enforce)
	if s.o.Policies != nil {
		ps = s.o.Policies(ps)
	}
	raw, err := policy.Marshal(ps)
	if err != nil {
		return err
	}
	file := filepath.Join(s.box.Dir(), "policies.yaml")
	if err := os.WriteFile(file, raw, 0o644); err != nil {
		return err
	}
	p, err := s.port("remediator-metrics")
	if err != nil {
		return err
	}
	argv = append(slices.Clone(argv), "--nats", s.url, "--cluster", ClusterName, "--kubeconfig", s.kubeconfig, "--policies", file,
		"--metrics", "127.0.0.1:"+strconv.Itoa(p), "--audit", s.RemediatorAudit())
	page, err := s.servePage()
	if err != nil {
		return err
	}
	argv = append(argv, page...)
	if s.o.Emulate != "" {
		argv = append(argv, "--steer", "127.0.0.1:"+strconv.Itoa(s.ports["steer"]), "--steer-ca", s.webhookCA())
	}
	if s.o.Auth {
		token, err := s.Token("pitcrew-remediator")
		if err != nil {
			return err
		}
		argv = append(argv, "--nats-keys", s.keys(), "--nats-token-file", token)
	}
	return s.box.StartProcess("", "remediator", argv, nil)
}

// startGateway runs the collector that compares the ranks of whole jobs.
func (s *Stage) startGateway() error {
	exe, err := s.program("pitcrew-collector")
	if err != nil {
		return err
	}
	env := []string{"PITCREW_NATS=" + s.url, "PITCREW_CLUSTER=" + ClusterName, "PITCREW_NODE=gateway-0"}
	for name, variable := range map[string]string{
		"gateway/otlp": "PITCREW_OTLP", "gateway/health": "PITCREW_HEALTH", "gateway/prometheus": "PITCREW_PROMETHEUS", "gateway/self": "PITCREW_SELF",
	} {
		p, err := s.port(name)
		if err != nil {
			return err
		}
		env = append(env, variable+"=127.0.0.1:"+strconv.Itoa(p))
	}
	if s.o.Auth {
		token, err := s.ofPod("pitcrew-gateway", "gateway-0")
		if err != nil {
			return err
		}
		env = append(env, "PITCREW_NATS_TOKEN_FILE="+token)
	}
	return s.box.StartProcess("", "gateway", []string{exe, "gateway"}, env)
}

// startAgents runs what the DaemonSet runs on a node: the agent, and DCGM's readings in a process of their own.
func (s *Stage) startAgents(ctx context.Context) error {
	beats, cancel := context.WithCancel(ctx)
	defer cancel()
	heard := make(chan string, 256)
	var listening errgroup.Group
	listening.Go(func() error {
		return s.bus.Beats(beats, func(n string) {
			select {
			case heard <- n:
			default:
			}
		})
	})
	for _, n := range s.box.Nodes() {
		if err := s.StartAgent(n); err != nil {
			return err
		}
	}
	missing := map[string]bool{}
	for _, n := range s.box.Nodes() {
		missing[n.Name] = true
	}
	timeout := time.After(90 * time.Second)
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	for len(missing) > 0 {
		select {
		case n := <-heard:
			delete(missing, n)
		case <-look.C:
			if err := s.died(); err != nil {
				return err
			}
		case <-timeout:
			return fmt.Errorf("the agents of %v did not come up in 90 s; --dir keeps their logs", slices.Sorted(maps.Keys(missing)))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	cancel()
	return listening.Wait()
}

// died says which of the processes that should run have ended.
func (s *Stage) died() (err error) {
	for _, p := range s.box.Processes() {
		if n, lost := s.box.Node(p.Node); lost != nil || n.Up() {
			err = errors.Join(err, p.Died())
		}
	}
	return err
}

// natsOf is the address by which a node's agent reaches NATS.
func (s *Stage) natsOf(n *sandbox.Node) (string, error) {
	if !s.o.Links {
		return s.url, nil
	}
	if at := s.proxies[n.Name]; at != "" {
		return at, nil
	}
	at, err := n.Proxy(strings.TrimPrefix(s.url, "nats://"))
	if err != nil {
		return "", err
	}
	s.proxies[n.Name] = "nats://" + at
	return s.proxies[n.Name], nil
}

// StartAgent starts a node's agent and its DCGM process, where they do not run; env is added to theirs.
func (s *Stage) StartAgent(n *sandbox.Node, env ...string) error {
	exe, err := s.program("pitcrew-collector")
	if err != nil {
		return err
	}
	lib, err := s.program("libdcgm.so.4")
	if err != nil {
		return err
	}
	var ports []int
	for _, name := range []string{"prometheus", "agent-self", "dcgm-self", "agent-health", "dcgm-health"} {
		p, err := s.port(n.Name + "/" + name)
		if err != nil {
			return err
		}
		ports = append(ports, p)
	}
	local := func(k int) string { return "127.0.0.1:" + strconv.Itoa(ports[k]) }
	url, err := s.natsOf(n)
	if err != nil {
		return err
	}
	common := []string{
		"PITCREW_NATS=" + url, "PITCREW_CLUSTER=" + ClusterName, "NODE_NAME=" + n.Name, "PITCREW_NODE=" + n.Name,
		"PITCREW_STATE_DIR=" + filepath.Join(n.Dir(), "state"), "PITCREW_RUN_DIR=" + filepath.Join(n.Dir(), "run"),
		"PITCREW_KMSG=" + n.Kmsg(), "PITCREW_FABRIC_LOG=" + n.FabricLog(), "PITCREW_BOOT_ID=" + n.BootIDFile(), "PITCREW_KUBELET_ROOT=" + filepath.Dir(n.PodsDir()),
		"PITCREW_POD_RESOURCES=" + n.PodResources(), "PITCREW_EXPECTED_GPUS=" + strconv.Itoa(len(n.GPUs)),
		"PITCREW_DCGM_MODE=embedded", "PITCREW_DCGM_SCRIPT=" + n.DCGMScript(), "LD_LIBRARY_PATH=" + filepath.Dir(lib),
		"PITCREW_PROMETHEUS=" + local(0), "GOMAXPROCS=1",
	}
	for _, d := range []string{"state", "run"} {
		if err := os.MkdirAll(filepath.Join(n.Dir(), d), 0o755); err != nil {
			return err
		}
	}
	if p := s.ports["gateway/otlp"]; p != 0 {
		common = append(common, "PITCREW_GATEWAY=127.0.0.1:"+strconv.Itoa(p))
	}
	if s.o.Auth {
		token, err := s.ofNode(n)
		if err != nil {
			return err
		}
		common = append(common, "PITCREW_NATS_TOKEN_FILE="+token)
	}
	common = append(common, env...)
	agent := append([]string{"PITCREW_SELF_PORT=" + strconv.Itoa(ports[1]), "PITCREW_HEALTH=" + local(3)}, common...)
	dcgm := append([]string{"PITCREW_SELF_PORT=" + strconv.Itoa(ports[2]), "PITCREW_HEALTH=" + local(4)}, common...)
	return errors.Join(
		s.box.StartProcess(n.Name, "agent", []string{exe, "agent"}, agent),
		s.box.StartProcess(n.Name, "dcgm", []string{exe, "dcgm"}, dcgm),
	)
}
