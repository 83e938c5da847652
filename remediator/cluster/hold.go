package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ErrNotHeld means that a node carries no hold, so there is nothing to release.
var ErrNotHeld = errors.New("the node is not on hold")

// HoldOf reads why a node is on hold; empty: it is not.
func HoldOf(n *corev1.Node) string { return held(n.Annotations) }

// HoldNode puts a node on hold with the caller's own rights: Pitcrew changes neither the node nor its pods, and places nothing there. ErrHeld,
// with the present reason: it is on hold already.
func HoldNode(ctx context.Context, nodes typedcore.NodeInterface, node, reason string) error {
	if reason = bounded(strings.TrimSpace(reason)); reason == "" || strings.EqualFold(reason, "false") {
		return fmt.Errorf("hold node %s: a reason is needed, and %q means that there is no hold", node, "false")
	}
	return patchLive(ctx, nodes, node, "hold node "+node, func(n *corev1.Node) ([]byte, error) {
		if why := held(n.Annotations); why != "" {
			return nil, fmt.Errorf("%w; its reason: %s", ErrHeld, why)
		}
		return nodePatch{annotations: map[string]*string{AnnotationHold: &reason}}.body(n)
	})
}

// ReleaseNode takes the hold off a node. ErrNotHeld: there is none.
func ReleaseNode(ctx context.Context, nodes typedcore.NodeInterface, node string) error {
	return patchLive(ctx, nodes, node, "release node "+node, func(n *corev1.Node) ([]byte, error) {
		if held(n.Annotations) == "" {
			return nil, ErrNotHeld
		}
		return nodePatch{annotations: map[string]*string{AnnotationHold: nil}}.body(n)
	})
}

// HoldJob annotates a gang's top object with a hold, so that Pitcrew leaves the job alone until a person removes it. A hold that somebody set
// stays as it is. Repeating it changes nothing.
func (c *Cluster) HoldJob(ctx context.Context, g Gang, incident, why string) error {
	return c.patchTop(ctx, g, incident, "hold", func(t top) (topPatch, error) {
		if v, held := t.annotations[AnnotationHold]; held && v != "false" {
			return topPatch{}, nil
		}
		return topPatch{needed: true, annotations: map[string]*string{AnnotationHold: &why}}, nil
	})
}
