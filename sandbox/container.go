package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// container is one container of a pod on a node: its process, and what its status says.
type container struct {
	spec     *corev1.Container
	init     bool
	gpus     []GPU
	proc     *process
	restarts int32
	state    corev1.ContainerState
	last     corev1.ContainerState
	backoff  backoff
	retryAt  time.Time // set while it waits for its next start
	again    bool      // that start is a restart
}

func (c *container) running() bool    { return c.state.Running != nil }
func (c *container) terminated() bool { return c.state.Terminated != nil }

func (c *container) status(node string, uid string) corev1.ContainerStatus {
	started := c.running()
	return corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, ImageID: "sandbox://host", Ready: c.running() || c.init && c.succeeded(),
		Started: &started, RestartCount: c.restarts, State: c.state, LastTerminationState: c.last,
		ContainerID: fmt.Sprintf("sandbox://%s/%s/%s/%d", node, uid, c.spec.Name, c.restarts)}
}

func (c *container) succeeded() bool { return c.terminated() && c.state.Terminated.ExitCode == 0 }

// wait puts it back to waiting for a start; what it was becomes its last state.
func (c *container) wait(reason, message string) {
	if c.terminated() {
		c.last = c.state
	}
	c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// ended records the exit of its process.
func (c *container) ended() {
	code, signal := c.proc.status()
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	c.terminate(code, signal, reason, "", c.proc.started, c.proc.ended)
}

func (c *container) terminate(code, signal int32, reason, message string, from, to time.Time) {
	c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Signal: signal, Reason: reason, Message: message,
		StartedAt: metav1.NewTime(from), FinishedAt: metav1.NewTime(to)}}
}

// start runs the container's command. What it cannot offer is an error for the pod's status.
func (k *kubelet) start(pod *corev1.Pod, c *container, volumes map[string]string) error {
	m, err := mountsOf(c.spec, volumes)
	if err != nil {
		return err
	}
	env, err := k.environment(pod, c, m)
	if err != nil {
		return err
	}
	vars := map[string]string{}
	for _, kv := range env {
		key, value, _ := strings.Cut(kv, "=")
		vars[key] = value
	}
	var argv []string
	for _, a := range append(append([]string{}, c.spec.Command...), c.spec.Args...) {
		argv = append(argv, m.rewrite(expand(a, vars)))
	}
	if len(argv) == 0 {
		return fmt.Errorf("container %s has no command, and the sandbox has no images to take one from", c.spec.Name)
	}
	dir := filepath.Join(k.node.PodsDir(), string(pod.UID))
	if c.spec.WorkingDir != "" {
		dir = m.rewrite(c.spec.WorkingDir)
	}
	logs := k.node.LogDir(pod)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	c.proc, err = k.node.sandbox.procs.start(processSpec{
		unit: fmt.Sprintf("%spod/%s/%s/%d/", k.node.unit(), pod.UID, c.spec.Name, c.restarts),
		argv: argv, env: env, dir: dir, log: filepath.Join(logs, c.spec.Name+".log"),
	})
	if err != nil {
		return err
	}
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.proc.started)}}
	return nil
}

// environment is what an image would bring (PATH, HOME, a locale), the container's own variables, and its GPUs.
func (k *kubelet) environment(pod *corev1.Pod, c *container, m mounts) ([]string, error) {
	var env []string
	vars := map[string]string{}
	add := func(key, value string) {
		env = append(env, key+"="+value)
		vars[key] = value
	}
	add("TMPDIR", filepath.Join(k.node.sandbox.dir, scratch))
	for _, key := range []string{"PATH", "HOME", "LANG"} {
		if v, ok := os.LookupEnv(key); ok {
			add(key, v)
		}
	}
	add("HOSTNAME", pod.Name)
	if len(c.spec.EnvFrom) > 0 {
		return nil, fmt.Errorf("container %s: the sandbox's nodes do not offer envFrom", c.spec.Name)
	}
	for _, e := range c.spec.Env {
		value := expand(e.Value, vars)
		if e.ValueFrom != nil {
			if e.ValueFrom.FieldRef == nil {
				return nil, fmt.Errorf("container %s: env %s: the sandbox's nodes offer fieldRef only", c.spec.Name, e.Name)
			}
			var ok bool
			if value, ok = k.field(pod, e.ValueFrom.FieldRef.FieldPath); !ok {
				return nil, fmt.Errorf("container %s: env %s: unknown field %s", c.spec.Name, e.Name, e.ValueFrom.FieldRef.FieldPath)
			}
		}
		if e.Name == masterPort {
			var err error
			if value, err = k.node.sandbox.meetingPort(value); err != nil {
				return nil, err
			}
		}
		add(e.Name, m.rewrite(value))
	}
	if len(c.gpus) > 0 {
		var uuids, files []string
		for _, g := range c.gpus {
			uuids, files = append(uuids, g.UUID), append(files, g.File)
		}
		add("NVIDIA_VISIBLE_DEVICES", strings.Join(uuids, ","))
		add("PITCREW_SIM_GPU", strings.Join(files, ","))
	}
	return env, nil
}

// field is the downward API.
func (k *kubelet) field(pod *corev1.Pod, path string) (string, bool) {
	for prefix, values := range map[string]map[string]string{"metadata.labels": pod.Labels, "metadata.annotations": pod.Annotations} {
		if key, ok := strings.CutPrefix(path, prefix+"['"); ok {
			return values[strings.TrimSuffix(key, "']")], true
		}
	}
	value, ok := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID), "spec.nodeName": pod.Spec.NodeName,
		"spec.serviceAccountName": pod.Spec.ServiceAccountName, "status.podIP": k.node.IP, "status.podIPs": k.node.IP,
		"status.hostIP": k.node.IP, "status.hostIPs": k.node.IP,
	}[path]
	return value, ok
}

// expand replaces $(NAME) by the variable's value, as the kubelet does: an unknown name stays, "$$" stands for "$".
func expand(s string, vars map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch end := strings.IndexByte(s[i:], ')'); {
		case s[i+1] == '$':
			b.WriteByte('$')
			i++
		case s[i+1] == '(' && end > 0:
			name := s[i+2 : i+end]
			if v, ok := vars[name]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}
