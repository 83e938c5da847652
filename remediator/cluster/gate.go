package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GatePlacement is the scheduling gate of job templates on clusters without MutatingAdmissionPolicy v1. Nothing schedules such a pod until
// LiftGate, not even the job's very first ones.
const GatePlacement = "pitcrew.dev/placement"

// LiftGate lets a gated pod be scheduled: to the reserved node alone or, with an empty node, to wherever the scheduler likes. A pod
// without the gate is left as it is; ErrStale when it has another UID.
func (c *Cluster) LiftGate(ctx context.Context, m Member, node, incident string) error {
	op := "lift the gate of pod " + m.String()
	for range podTries {
		pod, err := c.getPod(ctx, m.Namespace, m.Pod)
		switch {
		case err != nil:
			return wrap(op, err)
		case string(pod.UID) != m.PodUID:
			return staleUID(op, m.PodUID, string(pod.UID))
		}
		gates := slices.DeleteFunc(append([]corev1.PodSchedulingGate{}, pod.Spec.SchedulingGates...), func(g corev1.PodSchedulingGate) bool { return g.Name == GatePlacement })
		if len(gates) == len(pod.Spec.SchedulingGates) {
			return nil
		}
		spec := map[string]any{"schedulingGates": gates}
		if node != "" {
			spec["nodeSelector"] = map[string]string{hostnameLabel: c.hostnameOf(node)}
			spec["tolerations"] = append(slices.Clone(pod.Spec.Tolerations), corev1.Toleration{Key: TaintReserved, Operator: corev1.TolerationOpEqual,
				Value: incident, Effect: corev1.TaintEffectNoSchedule})
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}, "spec": spec})
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		err = c.write(ctx, podWrite("patch", "lift gate", incident, pod), func(ctx context.Context) error {
			_, err := c.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
			return err
		})
		if !apierrors.IsConflict(err) {
			return wrap(op, err)
		}
	}
	return fmt.Errorf("%s: %w", op, ErrConflict)
}
