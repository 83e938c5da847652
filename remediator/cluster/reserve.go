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
)

// Reservation promises a node to one member of a gang, or to whatever the owner creates next.
type Reservation struct {
	Incident  string
	Node      string
	Namespace string // of the job: a pod elsewhere that claims the same owner is not sent to the node; empty: any
	OwnerUID  string // UID of the Job that owns the replacement pod, see Member.OwnerUID
	Index     *int   // its completion index, see Member.CompletionIndex; nil: any
	// For a JobSet whose Jobs are made anew, so that their UIDs are not known yet: its UID and the Job's global index instead of OwnerUID.
	JobSetUID string
	JobIndex  *int

	Requests map[string]int64 // what the replacement will ask for, counted against the node until Release; see Member.Requests

	Expires time.Time // SweepReservations ends it after this; default ReservedFor from now. Repeating Reserve renews it
}

// ReservedFor is how long a reservation is kept if nobody asks for it any more.
const ReservedFor = time.Hour

// Keys of a reservation's ConfigMap, which deploy/placement-policy.yaml reads.
const (
	keyIncident  = "incident"
	keyNode      = "node"
	keyHostname  = "hostname"
	keyNamespace = "namespace"
	keyOwner     = "ownerUID"
	keyIndex     = "index"
	keyJobSet    = "jobSetUID"
	keyJobIndex  = "jobIndex"
	keyRequests  = "requests" // JSON, resource to amount
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
	if !r.Expires.IsZero() {
		m.Annotations = map[string]string{AnnotationExpires: r.Expires.UTC().Format(time.RFC3339)}
	}
	for key, value := range map[string]string{keyNamespace: r.Namespace, keyOwner: r.OwnerUID, keyIndex: optional(r.Index), keyJobSet: r.JobSetUID, keyJobIndex: optional(r.JobIndex)} {
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
	if r.Expires.IsZero() {
		r.Expires = c.opts.Now().Add(ReservedFor)
	}
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
	if was == r.Node && !c.endsSoon(have) {
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
	if was == r.Node {
		return nil // renewed
	}
	return c.unreserve(ctx, was, r.Incident)
}

// endsSoon reports that half of a reservation's time is over.
func (c *Cluster) endsSoon(m *corev1.ConfigMap) bool {
	end, err := time.Parse(time.RFC3339, m.Annotations[AnnotationExpires])
	return err != nil || end.Sub(c.opts.Now()) < ReservedFor/2
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
