package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	return changeHold(ctx, nodes, "hold node "+node, node, func(n *corev1.Node) (any, error) {
		if why := held(n.Annotations); why != "" {
			return nil, fmt.Errorf("%w: %s", ErrHeld, why)
		}
		return reason, nil
	})
}

// ReleaseNode takes the hold off a node. ErrNotHeld: there is none.
func ReleaseNode(ctx context.Context, nodes typedcore.NodeInterface, node string) error {
	return changeHold(ctx, nodes, "release node "+node, node, func(n *corev1.Node) (any, error) {
		if held(n.Annotations) == "" {
			return nil, ErrNotHeld
		}
		return nil, nil
	})
}

// changeHold patches the annotation to what decide makes of the node as it is; nil removes it. A node that changed meanwhile is read again.
func changeHold(ctx context.Context, nodes typedcore.NodeInterface, op, node string, decide func(*corev1.Node) (any, error)) error {
	for range nodeTries {
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return wrap(op, err)
		}
		value, err := decide(n)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": n.ResourceVersion, "uid": n.UID, "annotations": map[string]any{AnnotationHold: value}}})
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if _, err = nodes.Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{FieldManager: "pitcrew"}); !apierrors.IsConflict(err) {
			return wrap(op, err)
		}
	}
	return fmt.Errorf("%s: %w", op, ErrConflict)
}
