package podresources

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/pitcrew/pitcrew/collector/apiserver"
	"github.com/pitcrew/pitcrew/event"
)

// Directory explains what the kubelet's answer only names. Its methods are called by one goroutine, aside.
type Directory interface {
	// Pods lists the node's pods.
	Pods(context.Context) ([]apiserver.Pod, error)
	// Devices lists what DRA drivers offer on the node.
	Devices(context.Context) ([]apiserver.Device, error)
}

const (
	askDirectoryFor   = 5 * time.Second  // how long one look may take
	askDirectoryAfter = 15 * time.Second // how soon after a look that left something unexplained the next may be
	directoryKeeps    = 5 * time.Minute  // a look is repeated after this, where anything is held: a job may be made anew under its name
)

type podName struct{ namespace, name string }

// Pod is who a pod is.
type Pod struct {
	UID string
	Job *event.Job // nil: none, or not known
}

// consultation is when the directory was asked, and whether it must be. Guarded by the client's mu.
type consultation struct {
	due    bool
	at     time.Time
	failed bool
}

// note sees an answer of the kubelet before it replaces the one before: who holds what has changed, or the last look is long ago, where
// anything is held that the directory could explain. The caller holds mu.
func (k *consultation) note(c *Client, shares map[string][]share) {
	if c.directory == nil || len(shares) == 0 {
		return
	}
	unexplained := false
	for d, by := range shares {
		if strings.HasPrefix(d, "dra:") && c.claims[d] == "" {
			unexplained = true
		}
		for _, s := range by {
			if _, known := c.pods[podName{s.Namespace, s.Pod}]; !known {
				unexplained = true
			}
		}
		if !slices.Equal(by, c.byDevice[d].by) {
			k.due = true
		}
	}
	age := c.now().Sub(k.at)
	k.due = k.due || unexplained && age >= askDirectoryAfter || age >= directoryKeeps
}

// look asks the directory, where that is due. It is only called aside.
func (c *Client) look() {
	c.mu.Lock()
	due := c.consult.due
	c.consult.due = false
	c.mu.Unlock()
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askDirectoryFor)
	defer cancel()
	pods, err := c.directory.Pods(ctx)
	var devices []apiserver.Device
	if err == nil && c.claimsHeld() {
		devices, err = c.directory.Devices(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.consult.at = c.now()
	if err != nil {
		if !c.consult.failed {
			c.log.Warn("the API server does not say whose jobs this node's pods are; their GPUs' series carry none", zap.Error(err))
		}
		c.consult.failed = true
		return
	}
	c.consult.failed = false
	c.pods = make(map[podName]Pod, len(pods))
	for _, p := range pods {
		c.pods[podName{p.Namespace, p.Name}] = Pod{UID: p.UID, Job: p.Job}
	}
	if devices == nil {
		return
	}
	claims := make(map[string]string, len(devices))
	for _, d := range devices {
		claims[claimed(d.Driver, d.Pool, d.Name)] = d.UUID
		if d.Parent != "" {
			c.learnPart(d.Parent, part{d.UUID, c.instanceOf(d.UUID)})
		}
	}
	maps.DeleteFunc(c.claims, func(name, _ string) bool { _, held := c.byDevice[name]; return !held })
	maps.Copy(c.claims, claims) // what a claim that has ended was, is kept as long as its holder
}

// instanceOf is what is known of a MIG device's place on its GPU. The caller holds mu.
func (c *Client) instanceOf(mig string) string {
	for _, ps := range c.parts {
		for _, p := range ps {
			if p.device == mig {
				return p.instance
			}
		}
	}
	return ""
}

func (c *Client) claimsHeld() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d := range c.byDevice {
		if strings.HasPrefix(d, "dra:") {
			return true
		}
	}
	return false
}

// Pod is who the pod is, where the directory said so.
func (c *Client) Pod(namespace, name string) (Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pods[podName{namespace, name}]
	return p, ok
}

// PodOfUID names the pod of a UID, where the directory said so.
func (c *Client) PodOfUID(uid string) (namespace, name string, ok bool) {
	if uid == "" {
		return "", "", false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, p := range c.pods {
		if p.UID == uid {
			return n.namespace, n.name, true
		}
	}
	return "", "", false
}
