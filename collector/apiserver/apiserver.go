// Package apiserver asks the Kubernetes API for the two things about its own node that an agent cannot learn from the kubelet's socket: which
// GPU a DRA claim's device is, and whose job a pod is.
//
// It promises to read nothing but the node's ResourceSlices and the metadata of the node's pods (no specification, no environment), to ask
// only when it is told to, to bound what it reads, and to change nothing. It is plain HTTP and JSON: the Kubernetes client would be half of
// the agent's program and a third of its memory for these two lists. Without a server it is nil, and its methods say that nothing is known.
package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Where a pod finds its service account.
const (
	tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	caFile    = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
)

const (
	maxAnswer = 32 << 20 // bytes of one list
	maxItems  = 4096     // pods or devices that are taken from one list
)

// Options say where the server is. The zero value is the pod's own cluster.
type Options struct {
	// Server is https://host:port; "auto": the pod's own cluster, if it runs in one with a service account; empty: none.
	Server    string `mapstructure:"server"`
	TokenFile string `mapstructure:"token_file"` // read for each question: the kubelet renews it
	CAFile    string `mapstructure:"ca_file"`
	Node      string `mapstructure:"-"`
}

// Client asks one API server about one node. A nil Client knows nothing.
type Client struct {
	server, token, node string
	http                *http.Client
}

// New makes a client; nil without an error where there is no server to ask.
func New(o Options) (*Client, error) {
	if o.Server == "auto" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" {
			return nil, nil
		}
		o.Server = "https://" + net.JoinHostPort(host, port)
		if o.TokenFile == "" {
			o.TokenFile = tokenFile
		}
		if o.CAFile == "" {
			o.CAFile = caFile
		}
		if _, err := os.Stat(o.TokenFile); errors.Is(err, os.ErrNotExist) {
			return nil, nil // a pod without a token was not meant to ask
		}
	}
	if o.Server == "" {
		return nil, nil
	}
	if u, err := url.Parse(o.Server); err != nil {
		return nil, errors.New("api server: the address cannot be parsed: want https://host:port") // it may hold a secret
	} else if u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("api server %q: want https://host:port", u.Redacted())
	}
	if o.Node == "" {
		return nil, errors.New("api server: the node has no name (set node)")
	}
	c := &Client{server: strings.TrimSuffix(o.Server, "/"), token: o.TokenFile, node: o.Node}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("api server: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("api server: %s holds no certificate", o.CAFile)
		}
	}
	c.http = &http.Client{Transport: &http.Transport{
		TLSClientConfig: conf, ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: 30 * time.Second, // asked seldom: nothing is kept open for it
	}}
	return c, nil
}

// Close lets go of the connection.
func (c *Client) Close() {
	if c != nil {
		c.http.CloseIdleConnections()
	}
}

// ErrRefused is wrapped where the server does not let this account read the list.
var ErrRefused = errors.New("not allowed")

// errAbsent is for a kind that the server does not have.
var errAbsent = errors.New("no such resource")

// list reads one list of objects whose field says that they are of this node.
func (c *Client) list(ctx context.Context, path, accept string, into any) error {
	q := url.Values{"fieldSelector": {"spec.nodeName=" + c.node}, "resourceVersion": {"0"}} // of the server's cache
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+path+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", accept)
	if c.token != "" {
		token, err := os.ReadFile(c.token)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return errAbsent
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("list %s of node %s: %w (see deploy/agent-rbac.yaml)", path, c.node, ErrRefused)
	default:
		return fmt.Errorf("list %s of node %s: %s", path, c.node, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return err
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("list %s of node %s: more than %d bytes", path, c.node, maxAnswer)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("list %s of node %s: %w", path, c.node, err)
	}
	return nil
}
