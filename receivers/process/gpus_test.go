package process_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pitcrew/pitcrew/receivers/process"
	"github.com/pitcrew/pitcrew/receivers/process/proctest"
)

const group = "/kubepods/burstable/pod1f2e3d4c-5b6a-4798-8697-a5b4c3d2e1f0/"

var container = strings.Repeat("0123456789abcdef", 4)

func open(t *testing.T, root string) process.FS {
	t.Helper()
	fs, err := process.NewFS(root)
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

func TestTheDriversGPUsAreKnownByTheirDeviceFiles(t *testing.T) {
	p := proctest.New(t)
	fs := open(t, p.Root)
	if got, err := fs.GPUs(); got != nil || err != nil {
		t.Errorf("without a driver: %v, %v", got, err)
	}
	p.GPU(0, "GPU-a", "0000:1A:00")
	p.GPU(3, "GPU-b", "0000:e4:00")
	p.GPU(4, "GPU-????????-????-????-????-????????????", "0000:f4:00") // nothing has opened it yet
	if err := os.MkdirAll(filepath.Join(p.Root, "driver/nvidia/gpus/junk"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := fs.GPUs()
	if want := map[int]process.GPU{0: {UUID: "GPU-a", PCI: "0000:1a:00"}, 3: {UUID: "GPU-b", PCI: "0000:e4:00"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("GPUs %v, %v; want %v", got, err, want)
	}
}

func TestAProcessUsesTheGPUsItHasOpen(t *testing.T) {
	p := proctest.New(t)
	p.Process(42, 100, "python3", group+container, []string{"python3", "train.py", "--token=secret"},
		"/dev/null", "socket:[123]", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidia3", "/dev/nvidia0", "/dev/nvidia254", "/nonexistent/file", "/dev/nvidiaX")
	fs := open(t, p.Root)
	if got, err := fs.Uses(42); err != nil || !reflect.DeepEqual(got, []int{0, 3}) {
		t.Errorf("uses %v, %v", got, err)
	}
	if _, err := fs.Uses(43); err == nil {
		t.Error("a process that is not there has open files")
	}
	facts, err := fs.Facts(42)
	if want := (process.Facts{Start: 100, Comm: "python3", Command: "python3 train.py"}); err != nil || facts != want {
		t.Errorf("facts %+v, %v; want %+v", facts, err, want)
	}
	if pids, err := fs.PIDs(); err != nil || !reflect.DeepEqual(pids, []int{42}) {
		t.Errorf("processes %v, %v", pids, err)
	}
}

func TestADeviceFileUnderAnotherNameIsKnownByItsNumber(t *testing.T) {
	p := proctest.New(t)
	hidden := filepath.Join(t.TempDir(), "innocent")
	if err := unix.Mknod(hidden, unix.S_IFCHR|0o600, int(unix.Mkdev(195, 2))); err != nil {
		t.Skip("device files cannot be made here: ", err)
	}
	p.Process(42, 100, "sh", "/", []string{"sh"}, hidden)
	if got, err := open(t, p.Root).Uses(42); err != nil || !reflect.DeepEqual(got, []int{2}) {
		t.Errorf("uses %v, %v", got, err)
	}
}

func TestACommandIsBounded(t *testing.T) {
	p := proctest.New(t)
	p.Process(42, 100, "x", "/", []string{strings.Repeat("y", 4096) + "\xff", "z"})
	facts, err := open(t, p.Root).Facts(42)
	if err != nil || len(facts.Command) > 128 {
		t.Errorf("%d bytes, %v", len(facts.Command), err)
	}
}

func TestAContainersNamesAreThoseOfItsLog(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"llm-0_train_main-" + container + ".log", "a.b_kube-system_c-d-" + strings.Repeat("f", 64) + ".log", "nonsense.log", "x_y_z.log", "_a_b-" + container[1:] + "e.log"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := process.NamesIn(dir)
	want := map[string]process.Names{container: {Namespace: "train", Pod: "llm-0", Container: "main"}, strings.Repeat("f", 64): {Namespace: "kube-system", Pod: "a.b", Container: "c-d"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("names %v, %v", got, err)
	}
	if _, err := process.NamesIn(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there was read")
	}
}

func FuzzTheDriversWordOnAGPU(f *testing.F) {
	f.Add("GPU UUID: \t GPU-a\nDevice Minor: \t 3\n", "python3\x00train.py\x00", "1 (a) S 0")
	f.Add("GPU UUID:\nDevice Minor: 99999999999\n::::", "\x00\x00\x00", ") ( S")
	f.Fuzz(func(t *testing.T, information, cmdline, stat string) {
		p := proctest.New(t)
		p.Process(7, 1, "x", "/", nil)
		dir := filepath.Join(p.Root, "driver/nvidia/gpus/0000:1a:00.0")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{filepath.Join(dir, "information"): information, filepath.Join(p.Root, "7/cmdline"): cmdline, filepath.Join(p.Root, "7/stat"): stat} {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		fs, err := process.NewFS(p.Root)
		if err != nil {
			t.Fatal(err)
		}
		gpus, err := fs.GPUs()
		if err != nil || len(gpus) > 1 {
			t.Fatal(gpus, err)
		}
		if facts, err := fs.Facts(7); err == nil && len(facts.Command) > 3*128 {
			t.Fatal(facts)
		}
	})
}
