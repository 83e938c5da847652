//go:build cgo && linux

package stubtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/pitcrew/pitcrew/sandbox/simgpu"
)

const envBuilt = "PITCREW_STUBTEST_BUILT"

// TestMain builds the stub and starts itself again with the loader's path set: go-dcgm finds libdcgm.so.4 by name alone.
func TestMain(m *testing.M) {
	if os.Getenv(envBuilt) != "" {
		os.Exit(m.Run())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "libdcgm-stub-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if out, err := exec.Command("../build.sh", dir).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the stub: %v\n%s", err, out)
			return 1
		}
		self, err := os.Executable()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		cmd := exec.Command(self, os.Args[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), envBuilt+"=1", "LD_LIBRARY_PATH="+dir)
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}())
}

// start writes a node of eight GPUs and connects to it as to a standalone host engine.
func start(t *testing.T) *simgpu.Node {
	t.Helper()
	node, err := simgpu.New(filepath.Join(t.TempDir(), "script"), simgpu.H100s(t.Name(), 8))
	must(t, err)
	t.Setenv(simgpu.EnvScript, node.Path())
	connect(t)
	return node
}

func connect(t *testing.T) {
	t.Helper()
	stop, err := dcgm.Init(dcgm.Standalone, "localhost:5555", "0")
	must(t, err)
	t.Cleanup(stop)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watch watches fields of all GPUs every freq and returns the group pair.
func watch(t *testing.T, freq time.Duration, keep int32, fields ...dcgm.Short) (dcgm.GroupHandle, dcgm.FieldHandle) {
	t.Helper()
	fg, err := dcgm.FieldGroupCreate(t.Name(), fields)
	must(t, err)
	g := dcgm.GroupAllGPUs()
	must(t, dcgm.WatchFieldsWithGroupEx(fg, g, freq.Microseconds(), 0, keep))
	return g, fg
}

func read(t *testing.T, gpu uint, flags uint, fields ...dcgm.Short) []dcgm.FieldValue_v2 {
	t.Helper()
	v, err := dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{{EntityGroupId: dcgm.FE_GPU, EntityId: gpu}}, fields, flags)
	must(t, err)
	return v
}

// eventually asks until the answer is yes, for at most two seconds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}
