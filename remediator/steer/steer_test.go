package steer

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pitcrew/pitcrew/remediator/cluster"
)

const service = "pitcrew-webhook.pitcrew-system.svc"

// byName stamps the pods that it names.
type byName map[string]cluster.Stamp

func (b byName) StampOf(p *corev1.Pod) (cluster.Stamp, bool) {
	s, ok := b[p.Namespace+"/"+p.Name]
	return s, ok
}

// hook is a webhook that runs, and a clock that the test moves.
type hook struct {
	*testing.T
	dir   string
	addr  string
	ahead atomic.Int64
	mu    sync.Mutex
	count map[Result]int
}

func (h *hook) now() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }

func run(t *testing.T, s Stamper) *hook {
	t.Helper()
	h := &hook{T: t, dir: filepath.Join(t.TempDir(), "ca"), count: map[Result]int{}}
	h.authority()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Options{Listener: l, CA: h.dir, Names: []string{ServiceName("pitcrew-system")}, Stamper: s, Now: h.now, Count: func(r Result) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.count[r]++
		}})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h
}

// authority puts a new one where the webhook reads it.
func (h *hook) authority() *Authority {
	h.Helper()
	a, err := NewAuthority(h.now(), ServiceName("pitcrew-system"))
	if err != nil {
		h.Fatal(err)
	}
	if err := a.Write(h.dir); err != nil {
		h.Fatal(err)
	}
	return a
}

// client believes the authority that lies in the directory, as the API server believes caBundle.
func (h *hook) client() *http.Client {
	h.Helper()
	a, err := ReadAuthority(h.dir)
	if err != nil {
		h.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Bundle())
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: service, Time: h.now}}}
}

func (h *hook) post(body []byte) (int, []byte, error) {
	resp, err := h.client().Post("https://"+h.addr+Path, "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, raw, err
}

func (h *hook) review(p *corev1.Pod, op admissionv1.Operation) *admissionv1.AdmissionResponse {
	h.Helper()
	raw, _ := json.Marshal(p)
	body, _ := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "u-1", Operation: op, Namespace: "train", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Object: runtime.RawExtension{Raw: raw}}})
	code, answer, err := h.post(body)
	if err != nil || code != http.StatusOK {
		h.Fatalf("%d, %v: %s", code, err, answer)
	}
	var got admissionv1.AdmissionReview
	if err := json.Unmarshal(answer, &got); err != nil || got.Response == nil || got.Kind != "AdmissionReview" || got.Response.UID != "u-1" || !got.Response.Allowed {
		h.Fatalf("%v: %s", err, answer)
	}
	return got.Response
}

func TestAReservedPodIsSentToItsNodeAndEveryOtherPasses(t *testing.T) {
	stamp := cluster.Stamp{Incident: "inc-1", Hostname: "host-3"}
	h := run(t, byName{"train/mine": stamp})
	own := corev1.Toleration{Key: cluster.TaintReserved, Operator: corev1.TolerationOpEqual, Value: "inc-1", Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		pod  string
		spec corev1.PodSpec
		op   admissionv1.Operation
		want []string
	}{
		"bare":                     {"mine", corev1.PodSpec{}, admissionv1.Create, []string{"/spec/nodeSelector", "/spec/tolerations"}},
		"with its own constraints": {"mine", corev1.PodSpec{NodeSelector: map[string]string{"pool": "h100"}, Tolerations: []corev1.Toleration{{Key: "gpu"}}}, admissionv1.Create, []string{"/spec/nodeSelector/kubernetes.io~1hostname", "/spec/tolerations/-"}},
		"pinned elsewhere":         {"mine", corev1.PodSpec{NodeSelector: map[string]string{hostname: "host-1"}}, admissionv1.Create, []string{"/spec/nodeSelector/kubernetes.io~1hostname", "/spec/tolerations"}},
		"stamped before":           {"mine", corev1.PodSpec{NodeSelector: map[string]string{hostname: "host-3"}, Tolerations: []corev1.Toleration{own}}, admissionv1.Create, nil},
		"somebody else's":          {"other", corev1.PodSpec{}, admissionv1.Create, nil},
		"no new pod":               {"mine", corev1.PodSpec{}, admissionv1.Update, nil},
	} {
		a := h.review(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: test.pod}, Spec: test.spec}, test.op)
		var ops []operation
		if len(a.Patch) > 0 {
			if err := json.Unmarshal(a.Patch, &ops); err != nil {
				t.Fatal(err)
			}
		}
		var paths []string
		for _, op := range ops {
			paths = append(paths, op.Path)
		}
		if !slices.Equal(paths, test.want) || (len(ops) > 0) != (a.PatchType != nil) || (len(ops) > 0 && !strings.Contains(string(a.Patch), `"host-3"`)) {
			t.Errorf("%s: patch %s, want the paths %v", name, a.Patch, test.want)
		}
	}
	if h.count[Stamped] != 3 || h.count[Passed] != 3 {
		t.Errorf("counted %v", h.count)
	}
}

func TestWhatIsNoReviewIsRefusedAndTheWebhookGoesOn(t *testing.T) {
	h := run(t, byName{})
	for _, body := range []string{"", "{", "{}", `{"request":{"kind":{"kind":"Secret"}}}`, strings.Repeat(" ", maxReview+10)} {
		if code, answer, err := h.post([]byte(body)); err == nil && code != http.StatusBadRequest {
			t.Errorf("%.40q: %d %s", body, code, answer)
		}
	}
	a := h.review(&corev1.Pod{}, admissionv1.Create)
	if len(a.Patch) > 0 {
		t.Errorf("patch %s", a.Patch)
	}
}

// served is the certificate that a connection shows.
func (h *hook) served() *x509.Certificate {
	h.Helper()
	conn, err := tls.Dial("tcp", h.addr, h.client().Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		h.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

func TestCertificatesRenewThemselvesAndFollowANewAuthority(t *testing.T) {
	h := run(t, byName{})
	first := h.served()
	h.ahead.Store(int64(time.Hour))
	if again := h.served(); again.SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("it was renewed after an hour")
	}
	for day := range 40 { // each within the life of the one before, as a remediator lives
		h.ahead.Store(int64(time.Duration(day)*13*time.Hour + 2*time.Hour))
		now := h.served()
		if left := now.NotAfter.Sub(h.now()); left < certLasts/2-time.Hour || left > certLasts+time.Minute {
			t.Errorf("after %d times 13 h the certificate is good for %v", day, left)
		}
	}
	before := h.served()
	h.authority()
	h.ahead.Add(int64(rereadEvery))
	if after := h.served(); after.SerialNumber.Cmp(before.SerialNumber) == 0 { // served by a chain that the new authority's bundle verifies
		t.Error("the new authority signed nothing")
	}
}

// The CA may go missing for a while, as when its Secret is replaced; what is valid goes on.
func TestACertificateIsServedWhileTheAuthorityCannotBeRead(t *testing.T) {
	h := run(t, byName{})
	client := h.client()
	was := h.served()
	if err := os.RemoveAll(h.dir); err != nil {
		t.Fatal(err)
	}
	h.ahead.Store(int64(certLasts - 2*time.Hour))
	conn, err := tls.Dial("tcp", h.addr, client.Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.ConnectionState().PeerCertificates[0]; got.SerialNumber.Cmp(was.SerialNumber) != 0 {
		t.Error("another certificate, from nowhere")
	}
	conn.Close()
	h.ahead.Store(int64(certLasts + time.Hour))
	if conn, err := tls.Dial("tcp", h.addr, client.Transport.(*http.Transport).TLSClientConfig); err == nil {
		conn.Close()
		t.Error("an expired certificate is served")
	}
}

func TestTheAuthoritySignsForTheWebhookAlone(t *testing.T) {
	a, err := NewAuthority(time.Now(), service)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Bundle())
	for name, want := range map[string]bool{service: true, "kubernetes.default.svc": false} {
		made, err := a.issue(time.Now(), time.Hour, []string{name})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := made.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := a.issue(time.Now().Add(authorityLasts+time.Hour), time.Hour, []string{service}); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("after its end it signs: %v", err)
	}
}
