package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ErrNotQuarantined means that a node carries no quarantine of Pitcrew, so there is nothing to lift.
var ErrNotQuarantined = errors.New("the node is not quarantined by Pitcrew")

// Lift is a person's command to lift a quarantine. It stays on the node as AnnotationUncordoned until the leader has recorded it.
type Lift struct {
	Incident string    `json:"incident"`
	By       string    `json:"by,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	At       time.Time `json:"at"`
}

// commandManager owns the fields that a person's command wrote.
const commandManager = "pitcrew"

// maxLiftText bounds who and why: they are written on the node.
const maxLiftText = 256

// QuarantineOf reads Pitcrew's quarantine off a node, and why the node has it, as its condition PitcrewHealthy says.
func QuarantineOf(n *corev1.Node) (q Quarantine, why string, quarantined bool) {
	q = Quarantine{Node: n.Name, Incident: taintValue(n, TaintQuarantine), FoundCordoned: n.Annotations[AnnotationCordon] == cordonFound}
	if since, err := time.Parse(time.RFC3339, n.Annotations[AnnotationSince]); err == nil {
		q.Since = since
	}
	for _, c := range n.Status.Conditions {
		if c.Type == ConditionHealthy && c.Status == corev1.ConditionFalse {
			why = c.Message
		}
	}
	return q, why, q.Incident != ""
}

// LiftQuarantine removes from a node what Pitcrew wrote when it quarantined it for an incident: its taint, its annotations, and the cordon
// unless that was there before. It acts with the caller's own rights and takes no running remediator; the next leader reads the command and
// records it. ErrNotQuarantined: nothing was there. ErrQuarantined: another incident has the node by now.
func LiftQuarantine(ctx context.Context, nodes typedcore.NodeInterface, node string, l Lift) error {
	op := fmt.Sprintf("lift the quarantine of node %s for incident %s", node, l.Incident)
	return patchLive(ctx, nodes, node, op, func(n *corev1.Node) ([]byte, error) {
		switch q, _, quarantined := QuarantineOf(n); {
		case !quarantined:
			return nil, ErrNotQuarantined
		case q.Incident != l.Incident:
			return nil, fmt.Errorf("%w: %s", ErrQuarantined, q.Incident)
		}
		return l.patch(n)
	})
}

// patchLive reads a node and sends the patch that change makes of it, again if somebody else wrote the node in between. Nothing is sent if
// change returns no patch.
func patchLive(ctx context.Context, nodes typedcore.NodeInterface, node, op string, change func(*corev1.Node) ([]byte, error)) error {
	for range nodeTries {
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return wrap(op, err)
		}
		body, err := change(n)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if body == nil {
			return nil
		}
		if _, err = nodes.Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{FieldManager: commandManager}); !apierrors.IsConflict(err) {
			return wrap(op, err)
		}
	}
	return fmt.Errorf("%s: %w", op, ErrConflict)
}

func (l Lift) patch(n *corev1.Node) ([]byte, error) {
	l.By, l.Reason = bounded(l.By), bounded(l.Reason)
	raw, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	p, command := liftQuarantine(n), string(raw)
	p.annotations[AnnotationUncordoned] = &command
	return p.body(n)
}

func bounded(s string) string {
	r := []rune(s)
	return string(r[:min(len(r), maxLiftText)])
}

// commanded reads a person's command off a node. One that cannot be read is a command all the same: somebody put it there.
func commanded(annotations map[string]string) (l Lift, there bool) {
	raw, there := annotations[AnnotationUncordoned]
	if there && json.Unmarshal([]byte(raw), &l) != nil {
		l = Lift{}
	}
	return l, there
}
