package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// status says what the kubelet would say; nil where the API already holds the last word on the pod. A pod that ends by deletion gets
// a terminal phase as well: Succeeded only if every container left with 0.
func (w *podWorker) status(pod *corev1.Pod, over bool) *corev1.PodStatus {
	if isTerminal(pod.Status.Phase) {
		return nil
	}
	s := &corev1.PodStatus{Phase: corev1.PodPending, HostIP: w.k.node.IP, HostIPs: []corev1.HostIP{{IP: w.k.node.IP}},
		PodIP: w.k.node.IP, PodIPs: []corev1.PodIP{{IP: w.k.node.IP}}, StartTime: &w.started}
	if w.failure != nil {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, w.failure.reason, w.failure.message
		return s
	}
	initialized, ready, failed, ran := true, true, false, false
	for _, c := range w.containers {
		cs := c.status(w.k.node.Name, w.uid)
		failed = failed || c.terminated() && !c.succeeded()
		if c.init {
			s.InitContainerStatuses = append(s.InitContainerStatuses, cs)
			initialized = initialized && c.succeeded()
			continue
		}
		s.ContainerStatuses = append(s.ContainerStatuses, cs)
		ready = ready && c.running()
		ran = ran || c.running() || c.terminated() || c.last.Terminated != nil
	}
	switch {
	case over && failed:
		s.Phase = corev1.PodFailed
	case over:
		s.Phase = corev1.PodSucceeded
	case ran:
		s.Phase = corev1.PodRunning
	}
	ready = ready && s.Phase == corev1.PodRunning
	reason := ""
	if over {
		reason = "PodCompleted"
	}
	for _, c := range []struct {
		kind corev1.PodConditionType
		is   bool
	}{{corev1.PodReadyToStartContainers, !over}, {corev1.PodInitialized, initialized}, {corev1.ContainersReady, ready}, {corev1.PodReady, ready}} {
		s.Conditions = append(s.Conditions, w.writer.condition(c.kind, c.is, reason))
	}
	return s
}

// statusWriter brings a pod's status to the API, the newest only, and at the end deletes the pod.
type statusWriter struct {
	client     kubernetes.Interface
	pod        *corev1.Pod
	wake       chan struct{}
	quit       chan struct{}
	conditions map[corev1.PodConditionType]corev1.PodCondition // the pod worker's

	mu     sync.Mutex
	patch  []byte // nil: nothing to write
	delete bool
}

func newStatusWriter(client kubernetes.Interface, pod *corev1.Pod) *statusWriter {
	w := &statusWriter{client: client, pod: pod, wake: make(chan struct{}, 1), quit: make(chan struct{}),
		conditions: map[corev1.PodConditionType]corev1.PodCondition{}}
	for _, c := range pod.Status.Conditions {
		w.conditions[c.Type] = c
	}
	return w
}

func (w *statusWriter) stop() { close(w.quit) }

// condition keeps the transition time of a condition that did not change.
func (w *statusWriter) condition(kind corev1.PodConditionType, is bool, reason string) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.Now()}
	if is {
		c.Status = corev1.ConditionTrue
	}
	if old, ok := w.conditions[kind]; ok && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	w.conditions[kind] = c
	return c
}

// write replaces what is to be written; it never waits.
func (w *statusWriter) write(status *corev1.PodStatus, remove bool) {
	w.mu.Lock()
	if status != nil {
		if patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.pod.UID}, "status": status}); err == nil {
			w.patch = patch
		}
	}
	w.delete = w.delete || remove
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *statusWriter) run(ctx context.Context) {
	pods := w.client.CoreV1().Pods(w.pod.Namespace)
	var written []byte
	var deleted bool
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.quit:
			return
		case <-w.wake:
		}
		w.mu.Lock()
		patch, remove := w.patch, w.delete && !deleted
		w.mu.Unlock()
		var err error
		if patch != nil && !bytes.Equal(patch, written) {
			if _, err = pods.Patch(ctx, w.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err == nil || isGone(err) {
				written, err = patch, nil
			}
		}
		if err == nil && remove {
			now := int64(0)
			err = pods.Delete(ctx, w.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &w.pod.UID}})
			if err == nil || isGone(err) {
				deleted, err = true, nil
			}
		}
		if err != nil && ctx.Err() == nil {
			time.AfterFunc(100*time.Millisecond, func() {
				select {
				case w.wake <- struct{}{}:
				default:
				}
			})
		}
	}
}

// isGone: the pod is not there, or another one bears its name.
func isGone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }
