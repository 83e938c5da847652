package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cordoned is what a Cordon or an Uncordon found and did.
type Cordoned struct {
	Changed bool   // a PATCH was needed
	Owner   string // the incident whose quarantine is on the node now; empty: none
	Foreign bool   // the node was cordoned by someone else before us and stays so after us
}

// Cordon quarantines a node for an incident: unschedulable, tainted, and annotated with whose it is and whether the cordon was found there.
// It is one PATCH on the watched node; when that is out of date the node is read live and the PATCH made again. Repeating it changes
// nothing. A node that another incident quarantined stays that incident's, and is reported so, without an error.
func (c *Cluster) Cordon(ctx context.Context, node, incident string) (Cordoned, error) {
	if err := checkIncident(incident); err != nil {
		return Cordoned{}, fmt.Errorf("cordon node %s: %w", node, err)
	}
	var done Cordoned
	err := c.patchNode(ctx, node, incident, "cordon", func(n *corev1.Node) (nodePatch, bool) {
		owner := taintValue(n, TaintQuarantine)
		foreign := n.Annotations[AnnotationCordon] == cordonFound
		if owner == "" {
			foreign = n.Spec.Unschedulable
		}
		done = Cordoned{Owner: owner, Foreign: foreign}
		if owner != "" && n.Spec.Unschedulable {
			return nodePatch{}, false
		}
		if owner == "" {
			owner = incident
		}
		done.Owner, done.Changed = owner, true
		how := cordonMade
		if foreign {
			how = cordonFound
		}
		return nodePatch{unschedulable: yes(true), taints: withTaint(n.Spec.Taints, TaintQuarantine, owner),
			annotations: map[string]*string{AnnotationQuarantine: &owner, AnnotationCordon: &how}}, true
	})
	return done, err
}

// Uncordon lifts an incident's quarantine: its taint, its annotations, and the cordon unless that was found on the node. What another
// incident or another person did stays.
func (c *Cluster) Uncordon(ctx context.Context, node, incident string) (Cordoned, error) {
	var done Cordoned
	err := c.patchNode(ctx, node, incident, "uncordon", func(n *corev1.Node) (nodePatch, bool) {
		done = Cordoned{Owner: taintValue(n, TaintQuarantine), Foreign: n.Annotations[AnnotationCordon] == cordonFound}
		if done.Owner != incident {
			return nodePatch{}, false
		}
		done.Owner, done.Changed = "", true
		return liftQuarantine(n), true
	})
	if err == nil && done.Owner != "" {
		return done, fmt.Errorf("uncordon node %s for incident %s: %w: %s", node, incident, ErrQuarantined, done.Owner)
	}
	return done, err
}

func liftQuarantine(n *corev1.Node) nodePatch {
	p := nodePatch{taints: withoutTaint(n.Spec.Taints, TaintQuarantine), annotations: map[string]*string{AnnotationQuarantine: nil, AnnotationCordon: nil}}
	if n.Annotations[AnnotationCordon] != cordonFound && n.Spec.Unschedulable {
		p.unschedulable = yes(false)
	}
	return p
}

// Uncordoned is a quarantine that a human has lifted.
type Uncordoned struct{ Node, Incident string }

// OnUncordon obeys humans until ctx ends: where a quarantined node is found schedulable, someone ran kubectl uncordon, so our taint and
// annotations go as well and obeyed is told. It begins with the nodes as they are, so what happened while nobody led is obeyed too.
// Only the leader may call it. It returns when ctx has ended.
func (c *Cluster) OnUncordon(ctx context.Context, obeyed func(Uncordoned)) error {
	return c.changes.await(ctx, anyNode, func() (bool, error) {
		for _, o := range c.nodes.GetStore().List() {
			n, ok := o.(*corev1.Node)
			if !ok || !humanUncordoned(n) {
				continue
			}
			if u, err := c.obeyUncordon(ctx, n.Name); err != nil {
				c.log.Warn("obey an uncordon", "node", n.Name, "error", err)
				time.AfterFunc(time.Second, func() { c.changes.notify(anyNode) })
			} else if u.Incident != "" {
				obeyed(u)
			}
		}
		return false, nil
	})
}

// We set the taint and the cordon in one PATCH, so one without the other is someone else's doing.
func humanUncordoned(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && taintValue(n, TaintQuarantine) != ""
}

func (c *Cluster) obeyUncordon(ctx context.Context, node string) (Uncordoned, error) {
	u := Uncordoned{Node: node}
	err := c.patchNode(ctx, node, "", "obey uncordon", func(n *corev1.Node) (nodePatch, bool) {
		u.Incident = ""
		if !humanUncordoned(n) {
			return nodePatch{}, false
		}
		u.Incident = taintValue(n, TaintQuarantine)
		return liftQuarantine(n), true
	})
	return u, err
}

// nodePatch is what changes on a node. A nil annotation is removed; nil taints stay.
type nodePatch struct {
	unschedulable *bool
	taints        []corev1.Taint
	annotations   map[string]*string
}

func yes(b bool) *bool { return &b }

// nodeTries bounds how often a node that changes under us is read again; kubelets write a node seldom.
const nodeTries = 6

// patchNode applies what change wants. It is decided on the watched node first, and again on a live one after a conflict or when the
// watched one seems to need nothing: the watch may not have shown us our own last write yet.
func (c *Cluster) patchNode(ctx context.Context, node, incident, what string, change func(*corev1.Node) (nodePatch, bool)) error {
	op := what + " node " + node
	n, fromWatch := cached[*corev1.Node](c.nodes, node)
	var err error
	for range nodeTries {
		if !fromWatch {
			n, err = read(ctx, c, func(ctx context.Context) (*corev1.Node, error) {
				return c.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
			})
			if err != nil {
				return wrap(op, err)
			}
		}
		patch, needed := change(n)
		if !needed && fromWatch {
			fromWatch = false
			continue
		}
		if !needed {
			return nil
		}
		body, err := patch.body(n)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		w := Write{Verb: "patch", Kind: "Node", Name: node, UID: string(n.UID), Incident: incident, What: what}
		err = c.write(ctx, w, func(ctx context.Context) error {
			_, err := c.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
			return err
		})
		if !apierrors.IsConflict(err) {
			return wrap(op, err)
		}
		fromWatch = false
	}
	return fmt.Errorf("%s: %w", op, ErrConflict)
}

// body is a JSON merge patch that holds only for this object at this version.
func (p nodePatch) body(n *corev1.Node) ([]byte, error) {
	if n.UID == "" || n.ResourceVersion == "" {
		return nil, errors.New("the node has no UID or version")
	}
	metadata := map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion}
	if len(p.annotations) > 0 {
		metadata["annotations"] = p.annotations
	}
	spec := map[string]any{}
	if p.unschedulable != nil {
		spec["unschedulable"] = *p.unschedulable
	}
	if p.taints != nil {
		spec["taints"] = p.taints
	}
	body := map[string]any{"metadata": metadata}
	if len(spec) > 0 {
		body["spec"] = spec
	}
	return json.Marshal(body)
}

func withTaint(taints []corev1.Taint, key, value string) []corev1.Taint {
	return append(withoutTaint(taints, key), corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
}

// withoutTaint never returns nil: an empty list is what removes the last taint. The unschedulable taint is the node lifecycle controller's
// and follows spec.unschedulable by itself.
func withoutTaint(taints []corev1.Taint, key string) []corev1.Taint {
	return slices.DeleteFunc(append([]corev1.Taint{}, taints...), func(t corev1.Taint) bool { return t.Key == key })
}
