package sandbox

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// auditPolicy records every write to what a remediation may touch, with bodies where the question "what exactly" may come up.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - {group: "", resources: [nodes/status]}
- level: Request
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - {group: "", resources: [pods, pods/status, pods/eviction, pods/binding, nodes, configmaps]}
  - {group: batch, resources: [jobs]}
  - {group: jobset.x-k8s.io, resources: [jobsets]}
- level: None
`

// controllers are the ones that a training cluster's behaviour depends on.
var controllers = []string{
	"namespace-controller", "serviceaccount-controller", "serviceaccount-token-controller", "job-controller",
	"garbage-collector-controller", "pod-garbage-collector-controller", "node-lifecycle-controller", "taint-eviction-controller",
	"disruption-controller", "replicaset-controller", "deployment-controller", "daemonset-controller", "statefulset-controller",
	"ttl-after-finished-controller", "ephemeral-volume-controller", "root-ca-certificate-publisher-controller",
}

// plane is a running control plane.
type plane struct {
	procs  *processes
	dir    string
	logs   string
	config *rest.Config
	client *kubernetes.Clientset
	ca     *authority
	audit  string
	kube   string // the admin kubeconfig
	files  planeFiles
}

// startPlane returns when the API server is ready; nothing acts on its objects yet.
func startPlane(ctx context.Context, procs *processes, bin, dir, logs string, o Options) (*plane, error) {
	p := &plane{procs: procs, dir: dir, logs: logs, audit: filepath.Join(dir, "audit.log"), kube: filepath.Join(dir, "kubeconfig")}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	etcdURL, peerURL := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	etcd, err := p.start(bin, "etcd", "--name=sandbox", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=sandbox="+peerURL,
		"--log-level=warn", "--quota-backend-bytes=2147483648")
	if err != nil {
		return nil, err
	}
	files, err := p.writeFiles(ports[2])
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, etcd, "etcd", httpOK(etcdURL+"/health", http.DefaultClient)); err != nil {
		return nil, err
	}
	args := []string{"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]), "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
		"--tls-cert-file=" + files.serving.cert, "--tls-private-key-file=" + files.serving.key, "--client-ca-file=" + files.ca,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + files.saPub, "--service-account-signing-key-file=" + files.saKey,
		"--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged",
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000", "--v=0"}
	if !o.NoAudit {
		args = append(args, "--audit-policy-file="+files.audit, "--audit-log-path="+p.audit, "--audit-log-format=json", "--audit-log-mode=blocking")
	}
	if o.Emulate != "" {
		args = append(args, "--emulated-version="+o.Emulate)
	}
	apiserver, err := p.start(bin, "kube-apiserver", args...)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(p.config)
	if err != nil {
		return nil, err
	}
	ready := httpOK(p.config.Host+"/readyz", &http.Client{Transport: transport})
	if err := p.await(ctx, apiserver, "kube-apiserver", ready); err != nil {
		return nil, err
	}
	if p.client, err = kubernetes.NewForConfig(p.config); err != nil {
		return nil, err
	}
	p.files = files
	return p, nil
}

// startControllers starts what acts on the API's objects.
func (p *plane) startControllers(bin string) error {
	if _, err := p.start(bin, "kube-controller-manager", "--kubeconfig="+p.kube, "--leader-elect=false", "--secure-port=0",
		"--controllers="+strings.Join(controllers, ","), "--service-account-private-key-file="+p.files.saKey, "--root-ca-file="+p.files.ca,
		"--use-service-account-credentials=false", "--kube-api-qps=2000", "--kube-api-burst=4000", "--v=0"); err != nil {
		return err
	}
	_, err := p.start(bin, "kube-scheduler", "--config="+p.files.scheduler, "--secure-port=0", "--v=0")
	return err
}

type planeFiles struct {
	serving                            struct{ cert, key string }
	ca, saKey, saPub, audit, scheduler string
}

// writeFiles makes certificates, keys, the kubeconfig and the configuration files, and the client's configuration with them.
func (p *plane) writeFiles(port int) (f planeFiles, err error) {
	dir := filepath.Join(p.dir, "pki")
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return f, err
	}
	if p.ca, err = newAuthority(); err != nil {
		return f, err
	}
	serving, err := p.ca.issue("kube-apiserver", nil, "127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1")
	if err != nil {
		return f, err
	}
	if f.serving.cert, f.serving.key, err = serving.write(dir, "apiserver"); err != nil {
		return f, err
	}
	sa, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	private, err := x509.MarshalECPrivateKey(sa)
	if err != nil {
		return f, err
	}
	public, err := x509.MarshalPKIXPublicKey(&sa.PublicKey)
	if err != nil {
		return f, err
	}
	admin, err := p.ca.issue("sandbox-admin", []string{"system:masters"})
	if err != nil {
		return f, err
	}
	host := fmt.Sprintf("https://127.0.0.1:%d", port)
	// No client-side rate limit: a kubelet or a controller of the sandbox must never be what a measurement waits for.
	p.config = &rest.Config{Host: host, QPS: -1, UserAgent: "pitcrew-sandbox", TLSClientConfig: rest.TLSClientConfig{
		CAData: p.ca.pem, CertData: admin.cert, KeyData: admin.key},
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON}}
	if err := p.writeKubeconfig(host, admin); err != nil {
		return f, err
	}
	f.ca, f.saKey, f.saPub = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "sa.key"), filepath.Join(dir, "sa.pub")
	f.audit, f.scheduler = filepath.Join(p.dir, "audit-policy.yaml"), filepath.Join(p.dir, "scheduler.yaml")
	scheduler := fmt.Sprintf("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+
		"leaderElection: {leaderElect: false}\nclientConnection: {kubeconfig: %q, qps: 2000, burst: 4000}\n", p.kube)
	for path, body := range map[string][]byte{
		f.ca: p.ca.pem, f.saKey: pemOf("EC PRIVATE KEY", private), f.saPub: pemOf("PUBLIC KEY", public),
		f.audit: []byte(auditPolicy), f.scheduler: []byte(scheduler),
	} {
		if err := os.WriteFile(path, body, 0o600); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (p *plane) writeKubeconfig(host string, admin keyPair) error {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["sandbox"] = &clientcmdapi.Cluster{Server: host, CertificateAuthorityData: p.ca.pem}
	cfg.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.cert, ClientKeyData: admin.key}
	cfg.Contexts["sandbox"] = &clientcmdapi.Context{Cluster: "sandbox", AuthInfo: "admin"}
	cfg.CurrentContext = "sandbox"
	return clientcmd.WriteToFile(*cfg, p.kube)
}

func (p *plane) start(bin, name string, args ...string) (*process, error) {
	return p.procs.start(processSpec{unit: "cluster/" + name + "/", argv: append([]string{filepath.Join(bin, name)}, args...),
		env: os.Environ(), dir: p.dir, log: filepath.Join(p.logs, name+".log")})
}

// await polls until ready says so; starting is the one place where there is nothing to watch yet.
func (p *plane) await(ctx context.Context, proc *process, name string, ready func() bool) error {
	for !ready() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready: %w: %s", name, ctx.Err(), tail(filepath.Join(p.logs, name+".log"), 2000))
		case <-proc.exited:
			code, _ := proc.status()
			return fmt.Errorf("%s exited with code %d: %s", name, code, tail(filepath.Join(p.logs, name+".log"), 2000))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func httpOK(url string, client *http.Client) func() bool {
	return func() bool {
		resp, err := client.Get(url)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
}

func freePorts(n int) (ports []int, err error) {
	ports = make([]int, n)
	for i := range ports {
		if ports[i], err = freeport.Claim(); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[max(0, len(b)-n):]))
}
