package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	uid = "1f2e3d4c-5b6a-4798-8697-a5b4c3d2e1f0"
	id  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

var underscored = strings.ReplaceAll(uid, "-", "_")

func TestTheContainerIsReadFromEveryShapeOfControlGroup(t *testing.T) {
	for name, c := range map[string]struct {
		path string
		want Container
		ok   bool
	}{
		"systemd, burstable":               {"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", Container{uid, id}, true},
		"systemd, guaranteed, CRI-O":       {"/kubepods.slice/kubepods-pod" + underscored + ".slice/crio-" + id + ".scope", Container{uid, id}, true},
		"systemd, nested":                  {"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", Container{uid, id}, true},
		"cgroupfs":                         {"/kubepods/burstable/pod" + uid + "/" + id, Container{uid, id}, true},
		"a group of the container's own":   {"/kubepods/pod" + uid + "/" + id + "/workers/3", Container{uid, id}, true},
		"from another namespace":           {"/../../kubepods-burstable-pod" + underscored + ".slice/cri-containerd-" + id + ".scope", Container{uid, id}, true},
		"a static pod":                     {"/kubepods/burstable/pod0123456789abcdef0123456789abcdef/" + id, Container{"0123456789abcdef0123456789abcdef", id}, true},
		"a pod without a container":        {"/kubepods/pod" + uid, Container{uid, ""}, true},
		"the host's daemon":                {"/system.slice/nvidia-persistenced.service", Container{}, false},
		"a login":                          {"/user.slice/user-1000.slice/session-4.scope", Container{}, false},
		"podman, which is no pod's":        {"/user.slice/user-0.slice/libpod-" + id + ".scope", Container{}, false},
		"a directory that only looks like": {"/kubepods/podracer/" + id, Container{}, false},
		"nothing":                          {"", Container{}, false},
		"too long":                         {"/kubepods/pod" + uid + "/" + strings.Repeat("x", maxGroup), Container{}, false},
	} {
		if got, ok := containerOf(c.path); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v %v, want %+v %v", name, got, ok, c.want, c.ok)
		}
	}
}

func TestAProcessIsFoundInItsContainer(t *testing.T) {
	root := t.TempDir()
	write(t, root, "42/cgroup", "0::/kubepods/pod"+uid+"/"+id+"\n")
	write(t, root, "42/comm", "python3\n")
	write(t, root, "43/cgroup", "12:memory:/kubepods/pod"+uid+"/"+id+"\n1:name=systemd:/\n") // v1
	write(t, root, "44/cgroup", "garbage")
	fs, err := NewFS(root)
	if err != nil {
		t.Fatal(err)
	}
	for pid, want := range map[int]bool{42: true, 43: true, 44: false, 45: false} {
		if c, ok := fs.ContainerOf(pid); ok != want || ok && c != (Container{uid, id}) {
			t.Errorf("process %d: %+v %v", pid, c, ok)
		}
	}
	if comm, ok := fs.Comm(42); !ok || comm != "python3" {
		t.Errorf("comm %q %v", comm, ok)
	}
}

func write(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func FuzzAControlGroup(f *testing.F) {
	f.Add("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscored + ".slice/cri-containerd-" + id + ".scope")
	f.Add("/kubepods/burstable/pod" + uid + "/" + id)
	f.Add("-pod.slice/-.scope")
	f.Fuzz(func(t *testing.T, path string) {
		c, ok := containerOf(path)
		if ok != isUID(c.PodUID) || c.ID != "" && len(c.ID) != idLength {
			t.Fatalf("%+v %v", c, ok)
		}
	})
}
