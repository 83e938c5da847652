package sandbox

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podWorker runs one pod on one node: one goroutine owns the containers, another writes the status, so that a slow API server never
// holds up a signal.
type podWorker struct {
	k       *kubelet
	uid     string
	changed chan struct{}
	exits   chan *container

	mu   sync.Mutex
	pod  *corev1.Pod
	gone bool // the object is no longer in the API

	volumes    map[string]string
	containers []*container // init containers first
	started    metav1.Time
	failure    *failure // the pod never ran
	killAt     time.Time
	stopping   bool
	writer     *statusWriter
}

type failure struct{ reason, message string }

func newPodWorker(k *kubelet, pod *corev1.Pod) *podWorker {
	return &podWorker{k: k, uid: string(pod.UID), pod: pod, changed: make(chan struct{}, 1),
		exits: make(chan *container, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))}
}

func (w *podWorker) update(pod *corev1.Pod, gone bool) {
	w.mu.Lock()
	w.pod, w.gone = pod, w.gone || gone
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *podWorker) latest() (*corev1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod, w.gone
}

// run ends when the pod's object is gone and nothing of it runs, or when the node loses power.
func (w *podWorker) run(ctx context.Context) {
	pod, _ := w.latest()
	w.writer = newStatusWriter(w.k.client, pod)
	w.k.tasks.Go(func() { w.writer.run(ctx) })
	defer w.writer.stop()
	w.begin(pod)
	for ctx.Err() == nil {
		pod, gone := w.latest()
		w.reconcile(pod, gone)
		if gone && !w.alive() {
			w.k.gpus.release(pod.UID)
			w.k.removeVolumes(pod)
			return
		}
		timer := time.NewTimer(w.nextDeadline())
		select {
		case <-ctx.Done():
		case <-w.changed:
		case <-timer.C:
		case c := <-w.exits:
			// The main process is PID 1: what it leaves behind goes with it.
			w.k.node.sandbox.procs.kill(c.proc.unit)
			c.ended()
		}
		timer.Stop()
	}
}

// begin decides what a pod that this boot of the node sees for the first time is: new, a leftover of an earlier boot, or over.
func (w *podWorker) begin(pod *corev1.Pod) {
	w.started = metav1.Now()
	if pod.Status.StartTime != nil {
		w.started = *pod.Status.StartTime
	}
	for i := range pod.Spec.InitContainers {
		w.containers = append(w.containers, &container{spec: &pod.Spec.InitContainers[i], init: true})
	}
	for i := range pod.Spec.Containers {
		w.containers = append(w.containers, &container{spec: &pod.Spec.Containers[i]})
	}
	old := map[string]corev1.ContainerStatus{}
	for _, s := range append(append([]corev1.ContainerStatus{}, pod.Status.InitContainerStatuses...), pod.Status.ContainerStatuses...) {
		old[s.Name] = s
	}
	for _, c := range w.containers {
		c.wait("ContainerCreating", "")
		s, known := old[c.spec.Name]
		if !known {
			continue
		}
		c.restarts, c.last, c.state = s.RestartCount, s.LastTerminationState, s.State
		if s.State.Running != nil { // it ran when the node went down
			c.terminate(137, 9, "ContainerStatusUnknown", "the container was lost with the node", s.State.Running.StartedAt.Time, time.Now())
		}
	}
	if isTerminal(pod.Status.Phase) || pod.DeletionTimestamp != nil {
		return
	}
	if err := w.admit(pod); err != nil {
		w.failure = err
	}
}

// admit gives the pod its devices and volumes.
func (w *podWorker) admit(pod *corev1.Pod) *failure {
	for _, c := range w.containers {
		q := c.spec.Resources.Limits[gpuResource]
		n := int(q.Value())
		if n == 0 {
			continue
		}
		var ok bool
		if c.gpus, ok = w.k.gpus.take(n, gpuOwner{pod.UID, pod.Namespace, pod.Name, c.spec.Name}); !ok {
			w.k.gpus.release(pod.UID)
			return &failure{"UnexpectedAdmissionError", fmt.Sprintf("Allocate failed: %d %s wanted on %s, not that many are free", n, gpuResource, w.k.node.Name)}
		}
	}
	var err error
	if w.volumes, err = w.k.volumes(pod); err != nil {
		w.k.gpus.release(pod.UID)
		return &failure{"FailedMount", err.Error()}
	}
	return nil
}

// reconcile starts what should run, ends what should not, and reports.
func (w *podWorker) reconcile(pod *corev1.Pod, gone bool) {
	if w.failure == nil && !isTerminal(pod.Status.Phase) {
		if pod.DeletionTimestamp != nil || gone {
			w.stop(pod, gone)
		} else {
			w.advance(pod)
		}
	}
	if gone {
		return
	}
	over := w.failure != nil || isTerminal(pod.Status.Phase) || !w.alive() && (w.stopping || w.finished(pod))
	if over {
		w.k.gpus.release(pod.UID)
	}
	status := w.status(pod, over)
	w.writer.write(status, over && pod.DeletionTimestamp != nil)
}

// advance runs init containers one after the other, then the containers together, and restarts by the pod's policy.
func (w *podWorker) advance(pod *corev1.Pod) {
	for _, c := range w.containers {
		w.advanceOne(pod, c)
		if c.init && !c.succeeded() {
			return
		}
	}
}

func (w *podWorker) advanceOne(pod *corev1.Pod, c *container) {
	now := time.Now()
	if c.running() || c.terminated() && !c.restartable(pod) {
		return
	}
	if c.terminated() { // and to be restarted
		ran := c.state.Terminated.FinishedAt.Sub(c.state.Terminated.StartedAt.Time)
		delay := c.backoff.next(ran)
		c.retryAt = now.Add(delay)
		c.wait("CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", delay, c.spec.Name, pod.Name))
		c.again = true
	}
	if now.Before(c.retryAt) {
		return
	}
	if c.again { // counted when it happens, not when it is due
		c.restarts, c.again = c.restarts+1, false
	}
	if err := w.k.start(pod, c, w.volumes); err != nil {
		c.retryAt = now.Add(max(c.backoff.next(0), time.Second))
		c.wait("CreateContainerError", err.Error())
		return
	}
	go func(p *process) { <-p.exited; w.exits <- c }(c.proc)
}

// restartable says whether the container's end is to be followed by another start.
func (c *container) restartable(pod *corev1.Pod) bool {
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyAlways:
		return !c.init || !c.succeeded()
	}
	return !c.succeeded()
}

// finished says whether no container will run again.
func (w *podWorker) finished(pod *corev1.Pod) bool {
	for _, c := range w.containers {
		if c.init && c.terminated() && !c.succeeded() && !c.restartable(pod) {
			return true
		}
	}
	for _, c := range w.containers {
		if !c.terminated() || c.restartable(pod) {
			return false
		}
	}
	return true
}

func (w *podWorker) alive() bool {
	for _, c := range w.containers {
		if c.running() {
			return true
		}
	}
	return false
}

// stop sends SIGTERM once, and SIGKILL to all of the pod when the grace period is over. A deletion may shorten the period while it
// runs, never lengthen it; at least one second is given, as the kubelet does.
func (w *podWorker) stop(pod *corev1.Pod, gone bool) {
	grace := time.Second
	if pod.DeletionGracePeriodSeconds != nil && !gone {
		grace = max(grace, time.Duration(*pod.DeletionGracePeriodSeconds)*time.Second)
	}
	deadline := time.Now().Add(grace)
	if !w.stopping {
		w.stopping, w.killAt = true, deadline
		for _, c := range w.containers {
			if c.running() {
				c.proc.signal(syscall.SIGTERM)
			}
		}
	}
	if deadline.Before(w.killAt) {
		w.killAt = deadline
	}
	if w.alive() && !time.Now().Before(w.killAt) {
		w.k.node.sandbox.procs.kill(w.k.node.unit() + "pod/" + w.uid + "/")
	}
	for _, c := range w.containers {
		if c.state.Waiting != nil {
			c.terminate(137, 0, "ContainerStatusUnknown", "the pod was deleted before the container started", w.started.Time, time.Now())
		}
	}
}

// nextDeadline is how long nothing needs to happen by itself.
func (w *podWorker) nextDeadline() time.Duration {
	next := time.Hour
	if w.stopping && w.alive() {
		return max(time.Until(w.killAt), time.Millisecond)
	}
	for _, c := range w.containers {
		if c.state.Waiting != nil && !c.retryAt.IsZero() {
			next = min(next, max(time.Until(c.retryAt), time.Millisecond))
		}
	}
	return next
}

func isTerminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
