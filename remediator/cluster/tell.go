package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SetCondition says on the node, as its condition PitcrewHealthy, what Pitcrew holds of it. Saying the same again writes nothing.
func (c *Cluster) SetCondition(ctx context.Context, node string, healthy bool, reason, message string) error {
	op := "set the condition of node " + node
	n, ok := cached[*corev1.Node](c.nodes, node)
	if !ok {
		return fmt.Errorf("%s: %w", op, ErrNotFound)
	}
	now := metav1.NewTime(c.opts.Now())
	want := corev1.NodeCondition{Type: ConditionHealthy, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	if healthy {
		want.Status = corev1.ConditionTrue
	}
	for _, have := range n.Status.Conditions {
		if have.Type != want.Type || have.Status != want.Status {
			continue
		}
		if have.Reason == reason && have.Message == message {
			return nil
		}
		want.LastTransitionTime = have.LastTransitionTime
	}
	// Conditions merge by their type, so no other writer's condition is touched and no version is needed; the UID is.
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID}, "status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	w := Write{Verb: "patch", Kind: "Node", Name: node, UID: string(n.UID), What: "condition"}
	return wrap(op, c.write(ctx, w, func(ctx context.Context) error {
		_, err := c.kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager}, "status")
		return err
	}))
}

// Ref names an object that an Event is about.
type Ref struct {
	APIVersion, Kind, Namespace, Name, UID string
}

// NodeRef refers to a node; without a UID where the watch does not know it.
func (c *Cluster) NodeRef(name string) Ref {
	r := Ref{APIVersion: "v1", Kind: "Node", Name: name}
	if n, ok := cached[*corev1.Node](c.nodes, name); ok {
		r.UID = string(n.UID)
	}
	return r
}

// Ref refers to a member's pod.
func (m Member) Ref() Ref {
	return Ref{APIVersion: "v1", Kind: "Pod", Namespace: m.Namespace, Name: m.Pod, UID: m.PodUID}
}

// Levels of an Event.
const (
	Normal  = corev1.EventTypeNormal
	Warning = corev1.EventTypeWarning
)

// Event leaves a Kubernetes Event on an object, for those who look there first. Reason is one CamelCase word.
func (c *Cluster) Event(ctx context.Context, about Ref, level, reason, message string) error {
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	now := metav1.NewTime(c.opts.Now())
	if len(message) > 1024 { // the API's bound
		message = message[:1021] + "..."
	}
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: "pitcrew-", Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{APIVersion: about.APIVersion, Kind: about.Kind, Namespace: about.Namespace, Name: about.Name, UID: types.UID(about.UID)},
		Type:           level, Reason: reason, Message: message, Source: corev1.EventSource{Component: fieldManager},
		ReportingController: "pitcrew.dev/remediator", FirstTimestamp: now, LastTimestamp: now, Count: 1}
	w := Write{Verb: "create", Kind: "Event", Namespace: namespace, Name: about.Kind + "/" + about.Name, UID: about.UID, What: reason}
	return wrap("event "+reason+" on "+about.Kind+" "+about.Name, c.write(ctx, w, func(ctx context.Context) error {
		_, err := c.kube.CoreV1().Events(namespace).Create(ctx, e, metav1.CreateOptions{})
		return err
	}))
}
