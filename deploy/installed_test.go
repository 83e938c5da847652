package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/sandbox"
)

// boxed are the values for a sandbox, whose nodes are folders of one machine with an address each: where a real node has /dev/kmsg or the
// kubelet's folder, these name the node's own, and listeners take the node's address and not all of the machine's.
func boxed(t *testing.T, s *sandbox.Sandbox, bin string) map[string]any {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	nats := "nats://127.0.1.1:" + strconv.Itoa(port)
	node := filepath.Join(s.Dir(), "nodes", "$(NODE_NAME)")
	at := func(port int) string { return fmt.Sprintf("[$(POD_IP)]:%d", port) }
	on := func(node string) map[string]any { return map[string]any{"kubernetes.io/hostname": node} }
	return map[string]any{
		"nats": map[string]any{"keysSecret": "pitcrew-nats-keys"},
		"node": map[string]any{"tolerations": []any{}}, // Pitcrew's own are to be enough
		"agent": map[string]any{"kubeletRoot": filepath.Join(s.Dir(), "nodes"), "stateDir": filepath.Join(s.Dir(), "state"), "env": map[string]any{
			"PITCREW_NATS": nats, "PITCREW_KMSG": node + "/kmsg", "PITCREW_BOOT_ID": node + "/boot_id", "PITCREW_KUBELET_ROOT": node + "/kubelet",
			"PITCREW_POD_RESOURCES": node + "/kubelet/pod-resources/kubelet.sock", "PITCREW_STATE_DIR": node + "/state", "PITCREW_GATEWAY": "127.0.1.2:4317",
			"PITCREW_PROMETHEUS": at(9400), "PITCREW_HEALTH": at(13133), "PITCREW_PROMETHEUS_INTERVAL": "1s",
		}},
		"dcgm": map[string]any{"libraryHostPath": filepath.Join(bin, "libdcgm.so.4"), "expectedGPUs": 8, "env": map[string]any{
			"PITCREW_DCGM_MODE": "embedded", "PITCREW_DCGM_SCRIPT": node + "/dcgm.script", "PITCREW_NVML_LIBRARY": filepath.Join(bin, "libnvidia-ml.so.1"), "PITCREW_HEALTH": at(13134),
			"PITCREW_PROMETHEUS_INTERVAL": "1s", "PITCREW_DCGM_MAX_INTERVAL": "1s",
		}},
		"gateway": map[string]any{"persistence": map[string]any{"enabled": false}, "nodeSelector": on("a2"), "env": map[string]any{
			"PITCREW_NATS": nats, "PITCREW_OTLP": at(4317), "PITCREW_PROMETHEUS": at(9401), "PITCREW_HEALTH": at(13135)}},
		"remediator": map[string]any{"env": map[string]any{"PITCREW_NATS": nats, "PITCREW_METRICS": at(9402), "KUBECONFIG": as(t, s, "pitcrew-remediator")}},
		"uninstall":  map[string]any{"env": map[string]any{"KUBECONFIG": as(t, s, "pitcrew-uninstall")}},
		"bus":        map[string]any{"port": port, "persistence": map[string]any{"enabled": false}, "nodeSelector": on("a1"), "env": map[string]any{"BUS_HOST": "$(POD_IP)"}},
	}
}

// keys makes the Secret by which NATS and remediators know each other, as docs/install.md says.
func keys(t *testing.T, s *sandbox.Sandbox, bin string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "pitcrew"), "bus", "keys", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew-nats-keys"}, Data: map[string][]byte{"keys": raw}}
	if _, err := s.Client().CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Client().CoreV1().Secrets(namespace).Delete(context.Background(), secret.Name, metav1.DeleteOptions{})
	})
}

// as is a kubeconfig with the rights of an account of the chart and no others: the sandbox's nodes cannot put a token where clients look for it.
func as(t *testing.T, s *sandbox.Sandbox, account string) string {
	t.Helper()
	cfg, err := clientcmd.LoadFromFile(s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range cfg.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + namespace + ":" + account
	}
	file := filepath.Join(t.TempDir(), "kubeconfig-"+account)
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	began := time.Now()
	for end := began.Add(60 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := ok()
		if err == nil {
			t.Logf("%.1f s: %s", time.Since(began).Seconds(), what)
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s: %v", what, err)
		}
	}
}

// installed is a release of the chart in the sandbox.
type installed struct {
	*testing.T
	s                *sandbox.Sandbox
	bin, nats, token string
}

func (i installed) pods(selector string) []corev1.Pod {
	i.Helper()
	list, err := i.s.Client().CoreV1().Pods(namespace).List(i.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		i.Fatal(err)
	}
	return list.Items
}

// ready asks every probe of every container, as a kubelet would.
func (i installed) ready(want map[string]int) error {
	got := map[string]int{}
	for _, p := range i.pods("app.kubernetes.io/name=pitcrew") {
		for _, c := range p.Spec.Containers {
			for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
				port := 0
				name := ""
				if probe.HTTPGet != nil {
					name = probe.HTTPGet.Port.StrVal
				} else {
					name = probe.TCPSocket.Port.StrVal
				}
				for _, x := range c.Ports {
					if x.Name == name {
						port = int(x.ContainerPort)
					}
				}
				if name == "metrics" && c.Name == "remediator" {
					port = 9402 // 9401 of a2 is the gateway's: there a pod has no address of its own
				}
				address := net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port))
				if probe.HTTPGet == nil {
					conn, err := net.DialTimeout("tcp", address, time.Second)
					if err != nil {
						return fmt.Errorf("%s: %w", p.Name, err)
					}
					conn.Close()
				} else if body, err := fetch("http://" + address + probe.HTTPGet.Path); err != nil {
					return fmt.Errorf("%s, container %s: %w %s", p.Name, c.Name, err, body)
				}
			}
			got[c.Name]++
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("containers %v, want %v", got, want)
	}
	return nil
}

func fetch(url string) (string, error) {
	resp, err := (&http.Client{Timeout: 2 * time.Second}).Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), err
}

// incidents are what pitcrew incident list shows.
func (i installed) incidents() (list []map[string]any, err error) {
	cmd := exec.CommandContext(i.Context(), filepath.Join(i.bin, "pitcrew"), "incident", "list", "-o", "json", "--nats", i.nats)
	if cmd.Args = append(cmd.Args, "--token-file", i.token); i.token == "" {
		cmd.Args = append(cmd.Args, "--wait", "1s")
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return list, json.Unmarshal(out, &list)
}

// install puts the chart into the sandbox and returns when everything answers.
func install(t *testing.T, s *sandbox.Sandbox, more map[string]any) (installed, map[string]any) {
	t.Helper()
	bin := binaries(t)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", s.Kubeconfig())
	values := boxed(t, s, bin)
	i := installed{t, s, bin, values["agent"].(map[string]any)["env"].(map[string]any)["PITCREW_NATS"].(string), ""}
	if err := s.CreateNamespace(t.Context(), namespace, nil); err != nil {
		t.Fatal(err)
	}
	keys(t, s, bin)
	if _, said, err := helm(t, "install", "pitcrew", chart, "-n", namespace, "-f", valuesFile(t, values), "-f", valuesFile(t, more)); err != nil {
		t.Fatal(said)
	}
	t.Cleanup(func() {
		if t.Failed() {
			keep, _ := os.MkdirTemp("", "pitcrew-chart-logs-")
			_ = os.CopyFS(keep, os.DirFS(s.Logs()))
			t.Log("logs: ", keep)
		}
	})
	eventually(t, "all probes", func() error {
		return i.ready(map[string]int{"agent": 6, "dcgm": 6, "gateway": 1, "remediator": 2, "bus": 1})
	})
	return i, values
}

// read gives pitcrew the token of an account that may read.
func (i *installed) read() {
	i.Helper()
	made, err := i.s.Client().CoreV1().ServiceAccounts(namespace).CreateToken(i.Context(), "pitcrew-reader",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{bus.Audience}}}, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	i.token = filepath.Join(i.TempDir(), "token")
	if err := os.WriteFile(i.token, []byte(made.Status.Token), 0o600); err != nil {
		i.Fatal(err)
	}
}

func (i installed) on(node string) corev1.Pod {
	i.Helper()
	pods := i.pods("app.kubernetes.io/component=node")
	k := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && p.DeletionTimestamp == nil })
	if k < 0 {
		return corev1.Pod{}
	}
	return pods[k]
}

// remains asks for an object with kubectl's manners: by kind and name.
func remains(t *testing.T, s *sandbox.Sandbox, apiVersion, kind, ns, name string) bool {
	t.Helper()
	path := "/apis/" + apiVersion
	if !strings.Contains(apiVersion, "/") {
		path = "/api/" + apiVersion
	}
	if ns != "" {
		path += "/namespaces/" + ns
	}
	plural := strings.ToLower(kind) + "s"
	if strings.HasSuffix(plural, "ys") {
		plural = strings.TrimSuffix(plural, "ys") + "ies"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var code int
	s.Client().CoreV1().RESTClient().Get().AbsPath(path + "/" + plural + "/" + name).Do(ctx).StatusCode(&code)
	if code != http.StatusOK && code != http.StatusNotFound {
		t.Errorf("%s: status %d", path+"/"+plural+"/"+name, code)
	}
	return code == http.StatusOK
}
