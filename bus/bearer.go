package bus

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Audience is what a service account's token must be meant for to be shown to NATS. The API server takes no such token for itself, so
// that whoever reads one on its way has no rights on the cluster.
const Audience = "pitcrew-nats"

const maxToken = 4000 // bytes; nats-server takes no longer line

// Bearer is whom a service account's token is for.
type Bearer struct {
	Namespace, Account string
	Node, Pod, PodUID  string // that the token is bound to; empty where it is not
	Expires            time.Time
}

// String is the account as Kubernetes names it.
func (b Bearer) String() string {
	return "system:serviceaccount:" + b.Namespace + ":" + b.Account
}

// Inbox begins the subjects on which a bearer, and nobody else, receives answers.
func (b Bearer) Inbox() string {
	return subject("_INBOX", b.Namespace, b.Account, b.Node, b.PodUID)
}

// ReadBearer reads what a token says of itself, and verifies nothing: only the API server can. A token that is not meant for Audience
// is an error.
func ReadBearer(token string) (Bearer, error) {
	if len(token) > maxToken {
		return Bearer{}, fmt.Errorf("it has more than %d bytes", maxToken)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Bearer{}, errors.New("it is no service account's token")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Bearer{}, errors.New("it is no service account's token")
	}
	type named struct{ Name, UID string }
	var c struct {
		Audiences  []string `json:"aud"`
		Expires    int64    `json:"exp"`
		Kubernetes struct {
			Namespace      string
			ServiceAccount named
			Pod, Node      named
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(raw, &c); err != nil || c.Kubernetes.ServiceAccount.Name == "" {
		return Bearer{}, errors.New("it is no service account's token")
	}
	if !slices.Contains(c.Audiences, Audience) {
		return Bearer{}, fmt.Errorf("it is meant for %q, not for %q", c.Audiences, Audience)
	}
	k := c.Kubernetes
	return Bearer{
		Namespace: k.Namespace, Account: k.ServiceAccount.Name, Node: k.Node.Name, Pod: k.Pod.Name, PodUID: k.Pod.UID, Expires: time.Unix(c.Expires, 0),
	}, nil
}

// readTokenFile reads the token that stands in a file now: the kubelet replaces a projected one before it expires.
func readTokenFile(file string) (token string, who Bearer, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", who, fmt.Errorf("token for NATS: %w; PITCREW_NATS_TOKEN_FILE names a file that holds one, as `kubectl create token ACCOUNT --audience %s` prints it", err, Audience)
	}
	token = strings.TrimSpace(string(raw))
	if who, err = ReadBearer(token); err != nil {
		return "", who, fmt.Errorf("token for NATS in %s: %w; project one of audience %q into the pod, or write one by `kubectl create token ACCOUNT --audience %s`", file, err, Audience, Audience)
	}
	return token, who, nil
}
