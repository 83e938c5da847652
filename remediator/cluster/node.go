package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// NodeState is a node as the watches show it: fleet.Node, and the age of its lease.
type NodeState struct {
	Name          string
	UID           string
	BootID        string
	Ready         bool
	Unschedulable bool
	Quarantined   string            // the incident in our taint; empty: not quarantined by Pitcrew
	FoundCordoned bool              // quarantined by Pitcrew, cordoned before by someone else
	Reserved      string            // the incident it is reserved for
	Held          string            // why nobody may touch it; empty: nobody asked for that
	Healthy       string            // our condition's status: True, False or Unknown; empty: never said
	Leased        bool              // a lease was seen
	LeaseAge      time.Duration     // since its lease was last seen to move, by our clock; counts from our own start
	KubeletAddr   string            // host:port; empty when the node names no address
	Labels        map[string]string // shared with the watch: read only
	Annotations   map[string]string // shared with the watch: read only
}

// NodeState tells what the watches know of a node; ErrNotFound where they know none.
func (c *Cluster) NodeState(name string) (NodeState, error) {
	n, err := c.Node(name)
	if err != nil {
		return NodeState{}, err
	}
	s := NodeState{Name: n.Name, UID: n.UID, BootID: n.BootID, Unschedulable: n.Unschedulable, Quarantined: n.Quarantined, Reserved: n.Reserved,
		FoundCordoned: n.FoundCordoned, Held: n.Held, Ready: n.Ready, Healthy: n.Healthy, KubeletAddr: n.KubeletAddr, Labels: n.Labels, Annotations: n.Annotations}
	s.LeaseAge, s.Leased = c.LeaseAge(name)
	return s, nil
}

// LeaseAge is how long ago the node's lease was last seen to move, by this machine's clock; false if no lease was seen. It counts from this
// process's start, since the node's own clock may be wrong.
func (c *Cluster) LeaseAge(node string) (time.Duration, bool) {
	return c.renewed.age(node, c.opts.Now())
}

// NodeNames lists the nodes that the watch knows.
func (c *Cluster) NodeNames() []string { return c.nodes.GetStore().ListKeys() }

func conditionOf(n *corev1.Node, kind corev1.NodeConditionType) corev1.ConditionStatus {
	for _, cond := range n.Status.Conditions {
		if cond.Type == kind {
			return cond.Status
		}
	}
	return ""
}

func taintValue(n *corev1.Node, key string) string {
	for _, t := range n.Spec.Taints {
		if t.Key == key {
			return t.Value
		}
	}
	return ""
}

// held gives the reason of a hold. An empty annotation is a hold as well, without a reason given.
func held(annotations map[string]string) string {
	reason, ok := annotations[AnnotationHold]
	switch {
	case !ok || strings.EqualFold(reason, "false"):
		return ""
	case reason == "":
		return "held"
	}
	return reason
}

func kubeletAddr(n *corev1.Node) string {
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = 10250
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return net.JoinHostPort(a.Address, strconv.Itoa(int(port)))
		}
	}
	return ""
}

// ErrSilent is wrapped by ProbeKubelet when the kubelet gives no answer.
var ErrSilent = errors.New("the kubelet does not answer")

// probe asks only "is somebody there": it sends no credentials and believes no certificate, so neither can be wrong.
var probe = &http.Client{Transport: &http.Transport{
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // nothing is sent and nothing in the answer is used
	DisableKeepAlives: true,
}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// ProbeKubelet asks the node's kubelet for a sign of life until ctx ends: any HTTP answer is one, also a refusal of our credentials. An
// error that wraps ErrSilent is a witness for the node being lost; any other says that it could not be asked.
func (c *Cluster) ProbeKubelet(ctx context.Context, node string) error {
	n, ok := cached[*corev1.Node](c.nodes, node)
	if !ok {
		return fmt.Errorf("probe the kubelet of node %s: %w", node, ErrNotFound)
	}
	addr := kubeletAddr(n)
	if addr == "" {
		return fmt.Errorf("probe the kubelet of node %s: it names no InternalIP", node)
	}
	var last error
	for _, scheme := range []string{"https", "http"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+"/healthz", nil)
		if err != nil {
			return fmt.Errorf("probe the kubelet of node %s: %w", node, err)
		}
		resp, err := probe.Do(req)
		if err == nil {
			resp.Body.Close()
			return nil
		}
		last = err
		if !strings.Contains(err.Error(), "HTTP response to HTTPS client") {
			break // nobody there; a plain-text kubelet would have answered so
		}
	}
	if errors.Is(last, context.Canceled) {
		return fmt.Errorf("probe the kubelet of node %s: %w", node, last)
	}
	return fmt.Errorf("probe the kubelet of node %s at %s: %w: %w", node, addr, ErrSilent, last)
}
