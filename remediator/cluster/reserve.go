package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	jobsetv1alpha2 "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

// Reservation promises a node to one member of a gang, or to whatever the owner creates next.
type Reservation struct {
	Incident string
	Node     string
	OwnerUID string // UID of the Job that owns the replacement pod, see Member.OwnerUID
	Index    *int   // its completion index, see Member.CompletionIndex; nil: any
	// For a JobSet whose Jobs are made anew, so that their UIDs are not known yet: its UID and the Job's global index instead of OwnerUID.
	JobSetUID string
	JobIndex  *int

	Requests map[string]int64 // what the replacement will ask for, counted against the node until Release; see Member.Requests
}

// Keys of a reservation's ConfigMap, which deploy/placement-policy.yaml reads.
const (
	keyIncident = "incident"
	keyNode     = "node"
	keyHostname = "hostname"
	keyOwner    = "ownerUID"
	keyIndex    = "index"
	keyJobSet   = "jobSetUID"
	keyJobIndex = "jobIndex"
	keyRequests = "requests" // JSON, resource to amount
)

func (r Reservation) check() error {
	if err := checkIncident(r.Incident); err != nil {
		return err
	}
	if r.Node == "" || (r.OwnerUID == "") == (r.JobSetUID == "") {
		return errors.New("a reservation names a node and either its owner's UID or its JobSet's")
	}
	return nil
}

// name is the same for the same reservation, so that repeating it finds the first.
func (r Reservation) name() string {
	sum := sha256.Sum256([]byte(r.Incident + "\x00" + r.OwnerUID + r.JobSetUID + "\x00" + optional(r.JobIndex) + "\x00" + optional(r.Index)))
	return "pitcrew-reservation-" + hex.EncodeToString(sum[:8])
}

func optional(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func (r Reservation) configMap(namespace, hostname string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: r.name(), Namespace: namespace,
		Labels: map[string]string{LabelReservation: "true", LabelIncident: r.Incident}},
		Data: map[string]string{keyIncident: r.Incident, keyNode: r.Node, keyHostname: hostname}}
	for key, value := range map[string]string{keyOwner: r.OwnerUID, keyIndex: optional(r.Index), keyJobSet: r.JobSetUID, keyJobIndex: optional(r.JobIndex)} {
		if value != "" {
			m.Data[key] = value
		}
	}
	if raw, err := json.Marshal(r.Requests); err == nil && len(r.Requests) > 0 {
		m.Data[keyRequests] = string(raw)
	}
	return m
}

// Reserve keeps everyone else off a node by a taint and tells the API server to send the replacement there. Repeating it changes nothing;
// asking again with another node moves the reservation. ErrReserved: another incident has the node, and nothing was done.
func (c *Cluster) Reserve(ctx context.Context, r Reservation) error {
	op := fmt.Sprintf("reserve node %s for incident %s", r.Node, r.Incident)
	if err := r.check(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	var other string
	err := c.patchNode(ctx, r.Node, r.Incident, "reserve", func(n *corev1.Node) (nodePatch, bool) {
		owner := taintValue(n, TaintReserved)
		if other = ""; owner != "" && owner != r.Incident {
			other = owner
		}
		if owner != "" {
			return nodePatch{}, false
		}
		return nodePatch{taints: withTaint(n.Spec.Taints, TaintReserved, r.Incident)}, true
	})
	if err != nil {
		return err
	}
	if other != "" {
		return fmt.Errorf("%s: %w: %s", op, ErrReserved, other)
	}
	return c.writeReservation(ctx, op, r)
}

func (c *Cluster) writeReservation(ctx context.Context, op string, r Reservation) error {
	want := r.configMap(c.opts.Namespace, c.hostnameOf(r.Node))
	maps := c.kube.CoreV1().ConfigMaps(c.opts.Namespace)
	w := Write{Verb: "create", Kind: "ConfigMap", Namespace: want.Namespace, Name: want.Name, Incident: r.Incident, What: "reserve"}
	err := c.write(ctx, w, func(ctx context.Context) error {
		_, err := maps.Create(ctx, want, metav1.CreateOptions{FieldManager: fieldManager})
		return err
	})
	if !apierrors.IsAlreadyExists(err) {
		return wrap(op, err)
	}
	have, err := read(ctx, c, func(ctx context.Context) (*corev1.ConfigMap, error) {
		return maps.Get(ctx, want.Name, metav1.GetOptions{})
	})
	if err != nil {
		return wrap(op, err)
	}
	was := have.Data[keyNode]
	if was == r.Node {
		return nil
	}
	want.UID, want.ResourceVersion = have.UID, have.ResourceVersion
	w.Verb, w.UID = "update", string(have.UID)
	if err := c.write(ctx, w, func(ctx context.Context) error {
		_, err := maps.Update(ctx, want, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	}); err != nil {
		return wrap(op, err)
	}
	return c.unreserve(ctx, was, r.Incident)
}

// Release ends all of an incident's reservations: first the instructions to the API server, then the taints. Repeating it changes nothing.
func (c *Cluster) Release(ctx context.Context, incident string) error {
	op := "release the reservations of incident " + incident
	if err := checkIncident(incident); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	maps := c.kube.CoreV1().ConfigMaps(c.opts.Namespace)
	list, err := read(ctx, c, func(ctx context.Context) (*corev1.ConfigMapList, error) {
		return maps.List(ctx, metav1.ListOptions{LabelSelector: LabelReservation + "=true," + LabelIncident + "=" + incident})
	})
	if err != nil {
		return wrap(op, err)
	}
	nodes := map[string]bool{}
	for _, m := range list.Items {
		nodes[m.Data[keyNode]] = true
		w := Write{Verb: "delete", Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name, UID: string(m.UID), Incident: incident, What: "release"}
		err := c.write(ctx, w, func(ctx context.Context) error {
			return maps.Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID}})
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return wrap(op, err)
		}
	}
	// A node tainted just before a crash has no ConfigMap, so the watched taints are looked at as well.
	for _, o := range c.nodes.GetStore().List() {
		if n, ok := o.(*corev1.Node); ok && taintValue(n, TaintReserved) == incident {
			nodes[n.Name] = true
		}
	}
	var errs []error
	for node := range nodes {
		if err := c.unreserve(ctx, node, incident); err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *Cluster) unreserve(ctx context.Context, node, incident string) error {
	return c.patchNode(ctx, node, incident, "release", func(n *corev1.Node) (nodePatch, bool) {
		if taintValue(n, TaintReserved) != incident {
			return nodePatch{}, false
		}
		return nodePatch{taints: withoutTaint(n.Spec.Taints, TaintReserved)}, true
	})
}

// probePause lies between two questions whether the API server knows a reservation; each of them costs it about 5 ms.
const probePause = 5 * time.Millisecond

// WaitReservationSeen returns when a pod of the reserved member would be sent to the node: it pretends to create one (dry run, in
// Pitcrew's own namespace) until the API server stamps it. Where several API servers share the work only one has been asked, so the
// replacement is still to be read back. ErrNoPolicy when ctx ends before.
func (c *Cluster) WaitReservationSeen(ctx context.Context, r Reservation) error {
	op := fmt.Sprintf("reservation of node %s for incident %s", r.Node, r.Incident)
	if err := r.check(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	pod := r.probePod(c.opts.Namespace)
	var last error
	for {
		var made *corev1.Pod
		w := Write{Verb: "create", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, Incident: r.Incident, What: "see the reservation", DryRun: true}
		last = c.write(ctx, w, func(ctx context.Context) (err error) {
			made, err = c.kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
		if last == nil && made.Spec.NodeSelector[hostnameLabel] == c.hostnameOf(r.Node) {
			return nil
		}
		if last != nil && !errors.Is(wrap(op, last), ErrRetry) && ctx.Err() == nil {
			return wrap(op, last)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: no pod is sent there yet: %w", op, ErrNoPolicy, errors.Join(context.Cause(ctx), last))
		case <-time.After(probePause):
		}
	}
}

// hostnameOf is what a node selector has to say: on some clouds a node is not named as its host is.
func (c *Cluster) hostnameOf(node string) string {
	if n, ok := cached[*corev1.Node](c.nodes, node); ok && n.Labels[hostnameLabel] != "" {
		return n.Labels[hostnameLabel]
	}
	return node
}

// nodeOfHost is hostnameOf the other way round.
func (c *Cluster) nodeOfHost(host string) string {
	if c.hostnameOf(host) == host {
		return host
	}
	for _, o := range c.nodes.GetStore().List() {
		if n, ok := o.(*corev1.Node); ok && n.Labels[hostnameLabel] == host {
			return n.Name
		}
	}
	return host
}

// probePod looks to the policy like the member's next pod. It never comes into being.
func (r Reservation) probePod(namespace string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: r.name(), Namespace: namespace, Labels: map[string]string{}, Annotations: map[string]string{}}}
	p.Spec.AutomountServiceAccountToken = yes(false)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: yes(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	p.Spec.Containers = []corev1.Container{{Name: "probe", Image: "none", SecurityContext: &corev1.SecurityContext{
		AllowPrivilegeEscalation: yes(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}
	if r.OwnerUID != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "probe", UID: uidOf(r.OwnerUID)}}
	}
	if r.Index != nil {
		p.Annotations[completionIndex] = strconv.Itoa(*r.Index)
	}
	if r.JobSetUID != "" {
		p.Labels[jobsetv1alpha2.JobSetUIDKey] = r.JobSetUID
	}
	if r.JobIndex != nil {
		p.Labels[jobsetv1alpha2.JobGlobalIndexKey] = strconv.Itoa(*r.JobIndex)
	}
	return p
}
