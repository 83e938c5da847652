package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// mounts maps a container's mount paths to where they really are on this machine.
type mounts []struct{ container, host string }

// rewrite replaces a mount path at the beginning of s, or after the first "=" in it, by the place it stands for. The longest
// mount path wins, as a nested mount would.
func (m mounts) rewrite(s string) string {
	if out, ok := m.prefix(s); ok {
		return out
	}
	if key, value, ok := strings.Cut(s, "="); ok {
		if out, ok := m.prefix(value); ok {
			return key + "=" + out
		}
	}
	return s
}

func (m mounts) prefix(s string) (string, bool) {
	best := -1
	for i, v := range m {
		inside := s == v.container || strings.HasPrefix(s, strings.TrimSuffix(v.container, "/")+"/")
		if inside && (best < 0 || len(v.container) > len(m[best].container)) {
			best = i
		}
	}
	if best < 0 {
		return s, false
	}
	return m[best].host + strings.TrimPrefix(s, strings.TrimSuffix(m[best].container, "/")), true
}

// volumes makes a pod's volumes and returns, by volume name, the path that stands for each. An emptyDir lies where a kubelet puts
// it; processes are given a short link to it, because the path of a unix socket may not be longer than 107 bytes.
func (k *kubelet) volumes(pod *corev1.Pod) (map[string]string, error) {
	if err := os.MkdirAll(filepath.Join(k.node.PodsDir(), string(pod.UID)), 0o755); err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for i, v := range pod.Spec.Volumes {
		switch {
		case v.EmptyDir != nil:
			dir := filepath.Join(k.node.PodsDir(), string(pod.UID), "volumes", "kubernetes.io~empty-dir", v.Name)
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return nil, err
			}
			link := filepath.Join(k.node.sandbox.dir, "v", fmt.Sprintf("%s-%s-%d", k.node.Name, pod.UID[:8], i))
			if err := os.Symlink(dir, link); err != nil && !os.IsExist(err) {
				return nil, err
			}
			paths[v.Name] = link
		case v.HostPath != nil:
			t := v.HostPath.Type
			if t != nil && *t == corev1.HostPathDirectoryOrCreate {
				if err := os.MkdirAll(v.HostPath.Path, 0o755); err != nil {
					return nil, err
				}
			} else if _, err := os.Stat(v.HostPath.Path); err != nil && t != nil && *t != corev1.HostPathUnset {
				return nil, fmt.Errorf("volume %s: %w", v.Name, err)
			}
			paths[v.Name] = v.HostPath.Path
		case v.Projected != nil && strings.HasPrefix(v.Name, "kube-api-access-"):
			dir := filepath.Join(k.node.PodsDir(), string(pod.UID), "volumes", "kubernetes.io~projected", v.Name)
			if err := os.MkdirAll(dir, 0o755); err != nil { // left empty: its path is fixed in clients, and cannot be rewritten
				return nil, err
			}
			paths[v.Name] = dir
		case v.ConfigMap != nil || v.Secret != nil || v.Projected != nil:
			dir := filepath.Join(k.node.PodsDir(), string(pod.UID), "volumes", "kubernetes.io~projected", v.Name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
			if err := k.projected(pod, dir, v); err != nil {
				return nil, err
			}
			paths[v.Name] = dir
		default:
			return nil, fmt.Errorf("volume %s: the sandbox's nodes offer emptyDir, hostPath, configMap, secret and projected volumes only", v.Name)
		}
	}
	return paths, nil
}

// removeVolumes forgets a pod's files. Nothing of it runs any more.
func (k *kubelet) removeVolumes(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		_ = os.Remove(filepath.Join(k.node.sandbox.dir, "v", fmt.Sprintf("%s-%s-%d", k.node.Name, pod.UID[:8], i)))
	}
	_ = os.RemoveAll(filepath.Join(k.node.PodsDir(), string(pod.UID)))
}

func mountsOf(c *corev1.Container, volumes map[string]string) (mounts, error) {
	var m mounts
	for _, vm := range c.VolumeMounts {
		host, ok := volumes[vm.Name]
		if !ok {
			return nil, fmt.Errorf("container %s mounts volume %s, which the pod does not have", c.Name, vm.Name)
		}
		if vm.SubPath != "" {
			host = filepath.Join(host, vm.SubPath)
			if err := os.MkdirAll(host, 0o777); err != nil {
				return nil, err
			}
		}
		m = append(m, struct{ container, host string }{vm.MountPath, host})
	}
	return m, nil
}
