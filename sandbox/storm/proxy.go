package storm

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// proxy stands between the remediators and the API server. It counts each request by verb and resource, and can delay them. It passes
// the remediator's own token on, so that authentication and authorization are the API server's.
type proxy struct {
	server *http.Server
	addr   string
	ca     []byte
	delay  atomic.Int64 // nanoseconds before a request is passed on

	mu     sync.Mutex
	counts map[request]int
}

// request is a kind of API request, or of refused answer to one.
type request struct {
	verb, resource string
	code           int // of the answer if it was refused; 0: a request
}

func (r request) String() string {
	if r.code != 0 {
		return fmt.Sprintf("%s %s: %d", r.verb, r.resource, r.code)
	}
	return r.verb + " " + r.resource
}

// electionLease is what leader election reads and writes while nothing happens; incidents do not cause it.
const electionLease = "leases"

func startProxy(to *rest.Config) (*proxy, error) {
	target, err := url.Parse(to.Host)
	if err != nil {
		return nil, err
	}
	cert, ca, err := servingCertificate()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(to.CAData) {
		return nil, fmt.Errorf("the API server's CA certificate is unreadable")
	}
	p := &proxy{ca: ca, counts: map[request]int{}}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1, // watches
		ModifyResponse: func(r *http.Response) error {
			if r.StatusCode >= http.StatusBadRequest {
				refused := requestOf(r.Request)
				refused.code = r.StatusCode
				p.count(refused)
			}
			return nil
		},
		ErrorLog: log.New(io.Discard, "", 0), // a remediator that is killed leaves broken watches behind
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64,
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.addr = "https://" + listener.Addr().String()
	p.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: forward.ErrorLog, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.count(requestOf(r))
			if d := time.Duration(p.delay.Load()); d > 0 {
				select {
				case <-time.After(d):
				case <-r.Context().Done():
					return
				}
			}
			forward.ServeHTTP(w, r)
		})}
	go func() { _ = p.server.ServeTLS(listener, "", "") }()
	return p, nil
}

func (p *proxy) count(r request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[r]++
}

// counted is how many requests of each kind there have been.
func (p *proxy) counted() map[request]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

func (p *proxy) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if p.server.Shutdown(ctx) != nil {
		_ = p.server.Close() // watches do not end by themselves
	}
}

// kubeconfig writes a client configuration that leads through the proxy with a service account's token.
func (p *proxy) kubeconfig(path, token string) error {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["storm"] = &clientcmdapi.Cluster{Server: p.addr, CertificateAuthorityData: p.ca}
	cfg.AuthInfos["remediator"] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts["storm"] = &clientcmdapi.Context{Cluster: "storm", AuthInfo: "remediator"}
	cfg.CurrentContext = "storm"
	return clientcmd.WriteToFile(*cfg, path)
}

// requestOf names a request as Kubernetes does: /apis/batch/v1/namespaces/a/jobs/b is a get of jobs.
func requestOf(r *http.Request) request {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return request{verb: strings.ToLower(r.Method), resource: "other"}
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) == 0 {
		return request{verb: "get", resource: "other"} // discovery
	}
	resource, named := parts[0], len(parts) > 1
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	switch {
	case verb != "":
	case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
		verb = "watch"
	case named:
		verb = "get"
	default:
		verb = "list"
	}
	return request{verb: verb, resource: resource}
}

func servingCertificate() (cert tls.Certificate, ca []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	own := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "storm-proxy"}, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, own, own, &key.PublicKey, key)
	if err != nil {
		return cert, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// writeFile is os.WriteFile for files that only this user may read.
func writeFile(path string, body []byte) error { return os.WriteFile(path, body, 0o600) }
