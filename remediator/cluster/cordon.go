package cluster

import (
	"cmp"
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
		since, marked := n.Annotations[AnnotationSince]
		if !marked || taintValue(n, TaintQuarantine) == "" {
			since = c.opts.Now().UTC().Format(time.RFC3339)
		}
		how := cordonMade
		if foreign {
			how = cordonFound
		}
		return nodePatch{unschedulable: yes(true), taints: withTaint(n.Spec.Taints, TaintQuarantine, owner),
			annotations: map[string]*string{AnnotationQuarantine: &owner, AnnotationCordon: &how, AnnotationSince: &since}}, true
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
	p := nodePatch{taints: withoutTaint(n.Spec.Taints, TaintQuarantine), annotations: map[string]*string{AnnotationQuarantine: nil, AnnotationCordon: nil, AnnotationSince: nil, AnnotationUncordoned: nil}}
	if n.Annotations[AnnotationCordon] != cordonFound && n.Spec.Unschedulable {
		p.unschedulable = yes(false)
	}
	return p
}

// Uncordoned is a quarantine that a person has lifted. By and Reason are known of one that was lifted by `pitcrew node uncordon`.
type Uncordoned struct {
	Node, Incident, By, Reason string
	At                         time.Time // of the command; zero: just now
}

// Quarantine is a node that Pitcrew has quarantined.
type Quarantine struct {
	Node, Incident string
	Since          time.Time // zero if an earlier version quarantined it
	FoundCordoned  bool      // someone else had cordoned it before
}

// QuarantinedNodes lists the nodes that carry Pitcrew's quarantine, the oldest first. Uncordon lifts one, by its incident.
func (c *Cluster) QuarantinedNodes() (out []Quarantine) {
	for _, n := range c.Fleet() {
		if n.Quarantined == "" {
			continue
		}
		since, err := time.Parse(time.RFC3339, n.Annotations[AnnotationSince])
		if err != nil {
			since = time.Time{}
		}
		out = append(out, Quarantine{Node: n.Name, Incident: n.Quarantined, Since: since, FoundCordoned: n.FoundCordoned})
	}
	slices.SortStableFunc(out, func(a, b Quarantine) int { return a.Since.Compare(b.Since) })
	return out
}

// OnUncordon obeys people until ctx ends: if a quarantined node is found schedulable, someone ran kubectl uncordon, so our taint, annotations
// and condition go as well and obeyed is told. It is told as well of each quarantine that `pitcrew node uncordon` lifted. It begins with the nodes as they are, so what happened while nobody led is obeyed too. A node
// that cannot be written is tried again after a pause that doubles from 1 s to 5 min; the others do not wait for it.
// Only the leader may call it. It returns when ctx has ended.
func (c *Cluster) OnUncordon(ctx context.Context, obeyed func(Uncordoned)) error {
	tries := map[string]retry{}
	return c.changes.await(ctx, anyNode, func() (bool, error) {
		for _, n := range c.Fleet() {
			if _, command := n.Annotations[AnnotationUncordoned]; !command && (n.Quarantined == "" || n.Unschedulable) {
				delete(tries, n.Name)
				continue
			}
			if c.opts.Now().Before(tries[n.Name].next) || ctx.Err() != nil {
				continue
			}
			u, err := c.obeyUncordon(ctx, n.Name)
			if err == nil {
				delete(tries, n.Name)
				if u.Incident != "" {
					obeyed(u)
				}
				continue
			}
			r := tries[n.Name].failed(c.opts.Now())
			tries[n.Name] = r
			c.log.Warn("obey an uncordon", "node", n.Name, "again_in", r.pause, "error", err)
			time.AfterFunc(r.pause, func() { c.changes.notify(anyNode) })
		}
		return false, nil
	})
}

// retry is when to try again what has failed.
type retry struct {
	next  time.Time
	pause time.Duration
}

func (r retry) failed(now time.Time) retry {
	r.pause = min(max(2*r.pause, time.Second), 5*time.Minute)
	r.next = now.Add(r.pause)
	return r
}

// We set the taint and the cordon in one PATCH, so one without the other is someone else's doing.
func humanUncordoned(n *corev1.Node) bool {
	return !n.Spec.Unschedulable && taintValue(n, TaintQuarantine) != ""
}

func (c *Cluster) obeyUncordon(ctx context.Context, node string) (Uncordoned, error) {
	u := Uncordoned{Node: node}
	err := c.patchNode(ctx, node, "", "obey uncordon", func(n *corev1.Node) (nodePatch, bool) {
		u = Uncordoned{Node: node}
		command, there := commanded(n.Annotations)
		switch {
		case humanUncordoned(n):
			u.Incident = taintValue(n, TaintQuarantine)
			return liftQuarantine(n), true
		case there && taintValue(n, TaintQuarantine) != "": // quarantined again since: the command was about an earlier quarantine
			return nodePatch{annotations: map[string]*string{AnnotationUncordoned: nil}}, true
		case there:
			u.Incident, u.By, u.Reason, u.At = cmp.Or(command.Incident, "unknown"), command.By, command.Reason, command.At
			return nodePatch{annotations: map[string]*string{AnnotationUncordoned: nil}}, true
		}
		return nodePatch{}, false
	})
	if err == nil && u.Incident != "" {
		if _, err := c.unsetCondition(ctx, node); err != nil { // the uncordon is obeyed all the same; the next incident says it anew
			c.log.Warn("remove the condition of an uncordoned node", "node", node, "error", err)
		}
	}
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
