package cluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Fence puts a node out of service: Kubernetes then ends its pods and detaches their volumes without asking its kubelet. Only for a node
// that is known to be off or cut off; otherwise two writers can meet on one volume. Unfence undoes it.
func (c *Cluster) Fence(ctx context.Context, node, incident string) error {
	if err := checkIncident(incident); err != nil {
		return fmt.Errorf("fence node %s: %w", node, err)
	}
	return c.patchNode(ctx, node, incident, "fence", func(n *corev1.Node) (nodePatch, bool) {
		if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == TaintOutOfService }) {
			return nodePatch{}, false // ours from before, or someone else's, which does as well and stays
		}
		taint := corev1.Taint{Key: TaintOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
		return nodePatch{taints: append(withoutTaint(n.Spec.Taints, TaintOutOfService), taint), annotations: map[string]*string{AnnotationFenced: &incident}}, true
	})
}

// Unfence lifts the out-of-service taint of an incident. One that someone else set stays.
func (c *Cluster) Unfence(ctx context.Context, node, incident string) error {
	return c.patchNode(ctx, node, incident, "unfence", func(n *corev1.Node) (nodePatch, bool) {
		if by, ok := n.Annotations[AnnotationFenced]; !ok || by != incident {
			return nodePatch{}, false
		}
		return nodePatch{taints: withoutTaint(n.Spec.Taints, TaintOutOfService), annotations: map[string]*string{AnnotationFenced: nil}}, true
	})
}
