package cluster_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/callout"
	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/sandbox"
)

const system = "pitcrew-system"

// accountPod is a pod of one of Pitcrew's accounts; an empty node leaves it pending.
func accountPod(t *testing.T, s *sandbox.Sandbox, account, node string) *corev1.Pod {
	t.Helper()
	now := int64(0)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name(t) + "-" + account}, Spec: corev1.PodSpec{
		ServiceAccountName: account, NodeName: node, TerminationGracePeriodSeconds: &now, AutomountServiceAccountToken: new(bool),
		Containers: []corev1.Container{{Name: "c", Image: "none", Command: []string{"/bin/sleep", "600"}}}}}
	if node == "" {
		p.Spec.NodeSelector = map[string]string{"no": "where"}
	}
	made, err := s.Client().CoreV1().Pods(system).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, s, made) })
	return made
}

func remove(t *testing.T, s *sandbox.Sandbox, p *corev1.Pod) {
	t.Helper()
	now := int64(0)
	pods := s.Client().CoreV1().Pods(p.Namespace)
	if err := pods.Delete(context.Background(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	eventually(t, "the end of pod "+p.Name, func() bool {
		_, err := pods.Get(context.Background(), p.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// tokenOf asks for a token as the kubelet does; without a pod, as a person does.
func tokenOf(t *testing.T, s *sandbox.Sandbox, account string, pod *corev1.Pod, audience string) string {
	t.Helper()
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	made, err := s.Client().CoreV1().ServiceAccounts(system).CreateToken(t.Context(), account, r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// accounts installs what has a role on the bus.
func accounts(t *testing.T, s *sandbox.Sandbox) {
	t.Helper()
	if err := s.Apply(t.Context(), deploy.NATSAccounts, deploy.AgentRBAC); err != nil {
		t.Fatal(err)
	}
	_, err := s.Client().CoreV1().ServiceAccounts(system).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// resigned is a token with other claims and the API server's own signature.
func resigned(t *testing.T, s *sandbox.Sandbox, token string, change func(claims map[string]any)) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(s.Dir(), "pki", "sa.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	signed := rewritten(t, token, change)
	signed = signed[:strings.LastIndex(signed, ".")]
	sum := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...))
}

// rewritten is a token with other claims and the signature that it had.
func rewritten(t *testing.T, token string, change func(claims map[string]any)) string {
	t.Helper()
	parts := strings.Split(token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	claims := map[string]any{}
	if err := d.Decode(&claims); err != nil {
		t.Fatal(err)
	}
	change(claims)
	if raw, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	return parts[0] + "." + base64.RawURLEncoding.EncodeToString(raw) + "." + parts[2]
}

func TestATokenIsReviewedWithWhatItIsBoundTo(t *testing.T) {
	s := kube(t)
	accounts(t, s)
	c, err := cluster.New(asRemediator(s), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	agent := accountPod(t, s, "pitcrew-agent", "a1")
	of := func(account string, pod *corev1.Pod) string { return tokenOf(t, s, account, pod, bus.Audience) }
	who, err := c.ReviewToken(t.Context(), of("pitcrew-agent", agent))
	if err != nil || who.Node != "a1" || who.Pod != agent.Name || who.PodUID != string(agent.UID) || who.Namespace != system || who.Account != "pitcrew-agent" ||
		time.Until(who.Expires) < time.Minute {
		t.Errorf("%+v, %v", who, err)
	}
	if says, err := bus.ReadBearer(of("pitcrew-agent", agent)); err != nil || says.Inbox() != who.Inbox() {
		t.Errorf("the client would listen on %s and be allowed %s: %v", says.Inbox(), who.Inbox(), err)
	}
	if who, err = c.ReviewToken(t.Context(), of("pitcrew-agent", accountPod(t, s, "pitcrew-agent", ""))); err != nil || who.Node != "" || who.Pod == "" {
		t.Errorf("of a pod without a node: %+v, %v", who, err)
	}
	if who, err = c.ReviewToken(t.Context(), of("pitcrew-agent", nil)); err != nil || who.Node != "" || who.Pod != "" {
		t.Errorf("of no pod: %+v, %v", who, err)
	}
	gone := accountPod(t, s, "pitcrew-gateway", "a2")
	revoked := of("pitcrew-gateway", gone)
	remove(t, s, gone)
	expire := func(c map[string]any) {
		c["iat"], c["nbf"], c["exp"] = time.Now().Add(-2*time.Hour).Unix(), time.Now().Add(-2*time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	}
	otherNode := func(c map[string]any) { c["kubernetes.io"].(map[string]any)["node"].(map[string]any)["name"] = "b1" }
	for what, token := range map[string]string{
		"of a pod that is gone":                 revoked,
		"that has expired":                      resigned(t, s, of("pitcrew-agent", agent), expire),
		"meant for the API server":              tokenOf(t, s, "pitcrew-agent", agent, "https://kubernetes.default.svc"),
		"with another node written into it":     rewritten(t, of("pitcrew-agent", agent), otherNode),
		"with our audience written into it":     rewritten(t, tokenOf(t, s, "pitcrew-agent", agent, "https://kubernetes.default.svc"), func(c map[string]any) { c["aud"] = []string{bus.Audience} }),
		"that is none":                          "e30.e30.e30",
		"with an issuer of its own written in ": rewritten(t, of("pitcrew-agent", agent), func(c map[string]any) { c["iss"] = "https://elsewhere" }),
	} {
		if who, err := c.ReviewToken(t.Context(), token); !errors.Is(err, callout.ErrRefused) {
			t.Errorf("a token %s: %+v, %v", what, who, err)
		}
	}
	if _, err := c.ReviewToken(t.Context(), resigned(t, s, of("pitcrew-agent", agent), func(map[string]any) {})); err != nil {
		t.Errorf("the test's own signature is none, so that an expired token would be refused for it: %v", err)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.ReviewToken(stopped, of("pitcrew-agent", agent)); err == nil || errors.Is(err, callout.ErrRefused) {
		t.Errorf("without an answer: %v", err)
	}
}

func TestTheAPIServersWordDecidesWhoSpeaksOnTheBus(t *testing.T) {
	s := kube(t)
	accounts(t, s)
	c, err := cluster.New(asRemediator(s), cluster.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := callout.MakeKeys(filepath.Join(dir, "keys")); err != nil {
		t.Fatal(err)
	}
	keys, err := callout.ReadKeys(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	auth, err := keys.Configure(deploy.NATSAuth)
	if err != nil {
		t.Fatal(err)
	}
	server, err := bus.StartServer(bus.ServerOptions{Dir: dir, Port: -1, Auth: auth})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	var mu sync.Mutex
	counts := map[string]int{}
	called, err := callout.Start(callout.Options{URL: server.URL(), Cluster: "c", Namespace: system, Keys: keys, Reviewer: c,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Count: func(o string) { mu.Lock(); counts[o]++; mu.Unlock() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(called.Close)
	connect := func(token string, within time.Duration) (*bus.Bus, error) {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := bus.Connect(bus.Options{URL: server.URL(), Cluster: "c", Name: "test", TokenFile: file})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return b, b.Wait(ctx)
	}
	const soon, never = 10 * time.Second, 300 * time.Millisecond
	if _, err := connect(tokenOf(t, s, "pitcrew-remediator", nil, bus.Audience), soon); err != nil {
		t.Fatal(err)
	}
	pod := accountPod(t, s, "pitcrew-agent", "a1")
	agent, err := connect(tokenOf(t, s, "pitcrew-agent", pod, bus.Audience), soon)
	if err != nil {
		t.Fatal(err)
	}
	gatewayPod := accountPod(t, s, "pitcrew-gateway", "a2")
	gateway, err := connect(tokenOf(t, s, "pitcrew-gateway", gatewayPod, bus.Audience), soon)
	if err != nil {
		t.Fatal(err)
	}
	says := func(b *bus.Bus, source, node string) bool {
		e := event.Event{ID: event.NewID(source, node, t.Name()), Source: source, Type: event.Anomaly, Time: time.Now(),
			Data: event.Data{Target: event.Target{Node: node}, Cause: event.Cause{Kind: "rank", Name: "straggler"}, Severity: event.Warning}}
		p, err := b.NewPublisher("", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Publish(e); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return p.Close(ctx) == nil
	}
	for what, v := range map[string]struct {
		b            *bus.Bus
		source, node string
		may          bool
	}{
		"a node of itself":                  {agent, event.Source("c", "a1", "detector"), "a1", true},
		"a node of another":                 {agent, event.Source("c", "a2", "detector"), "a2", false},
		"a node as a gateway":               {agent, event.GatewaySource("c", gatewayPod.Name, "detector"), "a1", false},
		"a gateway under its pod's name":    {gateway, event.GatewaySource("c", gatewayPod.Name, "detector"), "a1", true},
		"a gateway under another's name":    {gateway, event.GatewaySource("c", "other", "detector"), "a1", false},
		"a gateway as the node it lives on": {gateway, event.Source("c", "a2", "detector"), "a2", false},
	} {
		if may := says(v.b, v.source, v.node); may != v.may {
			t.Errorf("%s: %t, want %t", what, may, v.may)
		}
	}
	for what, token := range map[string]string{
		"an agent's token without a pod": tokenOf(t, s, "pitcrew-agent", nil, bus.Audience),
		"another account's":              tokenOf(t, s, "stranger", nil, bus.Audience),
	} {
		if _, err := connect(token, never); err == nil {
			t.Errorf("%s is let in", what)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if counts[callout.Allowed] != 3 || counts[callout.Unbound] == 0 || counts[callout.NoRole] == 0 {
		t.Errorf("%v", counts)
	}
}
