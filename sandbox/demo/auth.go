package demo

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/callout"
	"github.com/pitcrew/pitcrew/deploy"
	"github.com/pitcrew/pitcrew/sandbox"
)

const tokenSeconds = 24 * 60 * 60 // nobody renews the stage's tokens

// keys is the file by which NATS asks the remediator who may connect.
func (s *Stage) keys() string { return filepath.Join(s.box.Dir(), "nats.keys") }

// token is the file of an account's token, for what it is bound to, if anything.
func (s *Stage) token(account string, bound *authenticationv1.BoundObjectReference) (string, error) {
	name := account
	if bound != nil {
		name += "-" + bound.Name
	}
	file := filepath.Join(s.box.Dir(), "tokens", name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lasts := int64(tokenSeconds)
	made, err := s.box.Client().CoreV1().ServiceAccounts(SystemNamespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{bus.Audience}, ExpirationSeconds: &lasts, BoundObjectRef: bound}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return file, os.WriteFile(file, []byte(made.Status.Token), 0o600)
}

// Token is the file of an account's token that is bound to nothing: of the remediator, an operator or a reader.
func (s *Stage) Token(account string) (string, error) { return s.token(account, nil) }

// ofNode binds a token to a node, since the stage's agents are processes of it and no pods.
func (s *Stage) ofNode(n *sandbox.Node) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	node, err := s.box.Client().CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return s.token("pitcrew-agent", &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: node.UID})
}

// ofPod binds a token to a pod that is there for its name alone.
func (s *Stage) ofPod(account, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p, err := s.box.Client().CoreV1().Pods(SystemNamespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{ServiceAccountName: account, NodeSelector: map[string]string{"pitcrew.dev/none": ""},
			Containers: []corev1.Container{{Name: "none", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return s.token(account, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: p.UID})
}

// makeAccounts makes the accounts that have a role on the bus, the folder of their tokens, and the keys.
func (s *Stage) makeAccounts(ctx context.Context) error {
	if err := s.box.Apply(ctx, deploy.NATSAccounts, deploy.AgentRBAC); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(s.box.Dir(), "tokens"), 0o700); err != nil {
		return err
	}
	return callout.MakeKeys(s.keys())
}

// awaitRemediator waits until it answers: from then on NATS lets clients in.
func (s *Stage) awaitRemediator(ctx context.Context) error {
	url := fmt.Sprintf("http://127.0.0.1:%d/healthz", s.ports["remediator-metrics"])
	return poll(ctx, 20*time.Second, func() (bool, error) {
		r, err := http.Get(url)
		if err != nil {
			return false, nil
		}
		return r.StatusCode == http.StatusOK, r.Body.Close()
	})
}
