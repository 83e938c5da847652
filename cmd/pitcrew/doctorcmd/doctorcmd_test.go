package doctorcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/statuscmd"
	kube "github.com/pitcrew/pitcrew/remediator/cluster"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func write(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestANodeIsExaminedByItsFiles(t *testing.T) {
	root, err := os.MkdirTemp("", "n") // short: a socket's path is limited
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	grades := func() map[string]Grade {
		t.Helper()
		out, err := run(t, "--on", "node", "--root", root, "-o", "json")
		var all []Result
		if json.Unmarshal([]byte(out), &all) != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		by := map[string]Grade{}
		for _, r := range all {
			by[r.Check] = r.Grade
			if r.Grade != OK && r.Remedy == "" {
				t.Errorf("no remedy: %+v", r)
			}
		}
		return by
	}
	for check, want := range map[string]Grade{"GPUs": Warn, "NVIDIA driver": Warn, "kernel log": Bad, "DCGM": Warn, "kubelet's pod resources": Warn, "cgroup v2": Warn, "fabric": OK} {
		if got := grades()[check]; got != want {
			t.Errorf("an empty node: %s: %s, want %s", check, got, want)
		}
	}
	write(t, root, "dev/nvidia0", "")
	write(t, root, "dev/kmsg", "6,1,1,-;line\n")
	write(t, root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04\nGCC version: 12\n")
	write(t, root, "usr/lib64/libdcgm.so.4", "")
	write(t, root, "sys/fs/cgroup/cgroup.controllers", "")
	write(t, root, "sys/class/infiniband/mlx5_0", "")
	write(t, root, "var/lib/kubelet/pod-resources/.keep", "")
	l, err := net.Listen("unix", filepath.Join(root, "var/lib/kubelet/pod-resources/kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for check, got := range grades() {
		if got != OK {
			t.Errorf("a node with everything: %s: %s", check, got)
		}
	}
}

func TestAFailedCheckSetsTheExitCodeAndNamesTheRemedy(t *testing.T) {
	out, err := run(t, "--on", "cluster", "--kubeconfig", filepath.Join(t.TempDir(), "none"))
	if exit.Code(err) != exit.Unhealthy || !strings.Contains(out, "✗ kubeconfig") || !strings.Contains(out, "→ ") || !strings.HasSuffix(out, "0 ok, 0 with a limit, 0 unknown, 1 failed\n") {
		t.Errorf("%d, %v\n%s", exit.Code(err), err, out)
	}
	if _, err := run(t, "--on", "moon"); exit.Code(err) != exit.Usage || !strings.Contains(err.Error(), "laptop, cluster, node") {
		t.Errorf("%v", err)
	}
}

func TestAnAPIServerThatIsAwayLeavesEachCheckAnAnswer(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	write(t, "/", config, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}]}`)
	out, err := run(t, "--on", "cluster", "--kubeconfig", config, "--nats", "nats://127.0.0.1:1", "--wait", "100ms", "-o", "json")
	var all []Result
	if json.Unmarshal([]byte(out), &all) != nil || len(all) != len(clusterChecks(nil, nil)) || exit.Code(err) != exit.Unhealthy {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, r := range all {
		if r.Grade != Bad && r.Grade != Unknown || !strings.Contains(r.Found, "127.0.0.1:1") {
			t.Errorf("%+v", r)
		}
	}
}

// A NATS that is away or slow must not keep the nodes from being read.
func TestNodesAreReadBeforeNATSIsTried(t *testing.T) {
	var asked atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/nodes" {
			asked.Store(true)
		}
		http.NotFound(w, r)
	}))
	defer api.Close()
	config := filepath.Join(t.TempDir(), "config")
	write(t, "/", config, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"`+api.URL+`"}}]}`)
	if out, err := run(t, "--on", "cluster", "--kubeconfig", config, "--nats", "nats://127.0.0.1:1", "--wait", "100ms"); exit.Code(err) != exit.Unhealthy || !asked.Load() {
		t.Errorf("%v, nodes read: %t\n%s", err, asked.Load(), out)
	}
}

func TestAgentsAreComparedWithNodesThatHaveGPUs(t *testing.T) {
	status := func(heard int, problems ...string) statuscmd.Status {
		return statuscmd.Status{Agents: statuscmd.Agents{Heard: heard}, Problems: problems}
	}
	for name, c := range map[string]struct {
		s     statuscmd.Status
		fleet kube.Fleet
		err   error
		want  Grade
	}{
		"all report":             {status(4), kube.Fleet{Nodes: 6, GPU: 4}, nil, OK},
		"none reports":           {status(0), kube.Fleet{Nodes: 6, GPU: 4}, nil, Bad},
		"one is missing":         {status(3), kube.Fleet{Nodes: 6, GPU: 4}, nil, Warn},
		"a cluster without GPUs": {status(0), kube.Fleet{Nodes: 6}, nil, OK},
		"nodes cannot be listed": {status(3), kube.Fleet{}, errors.New("forbidden"), Unknown},
		"something needs a look": {status(4, "paused"), kube.Fleet{Nodes: 4, GPU: 4}, nil, Warn},
		"more agents than GPUs":  {status(6), kube.Fleet{Nodes: 6, GPU: 4}, nil, OK},
	} {
		if got := heard(c.s, c.fleet, c.err); got.grade != c.want {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
}

func TestVersionsOfKubernetesAreRead(t *testing.T) {
	for version, want := range map[string]int{"v1.36.3": 36, "v1.30.1-gke.100": 30, "1.31+": 31, "v2.0.0": -1, "": -1, "v1.x": -1} {
		if got := minorOf(version); got != want {
			t.Errorf("%q: %d, want %d", version, got, want)
		}
	}
}

func TestACheckThatHangsIsUnknownAndTheNextOneIsAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []Result
	examine(ctx, laptop, []check{
		{"hangs", func(context.Context) (answer, error) { return answer{}, context.DeadlineExceeded }},
		{"answers", func(context.Context) (answer, error) { return ok("fine") }},
	}, func(r Result) { got = append(got, r) })
	if len(got) != 2 || got[0].Grade != Unknown || !strings.Contains(got[0].Found, "no answer within 10s") || got[1].Grade != OK {
		t.Errorf("%+v", got)
	}
}
