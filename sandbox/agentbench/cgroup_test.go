package agentbench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// groups are control groups of processors, as the kubelet makes them: one for each container of the agent's pod with the request of the
// chart as its weight, and one for the hostile pods with all that is left of a node that is full by requests. None has a limit, which is
// the worst case for the agent: the pods may take every cycle that it does not ask for at once.
type groups struct {
	dir  string // "" where no such groups can be made
	v2   bool
	said string // how pods and agent were bounded
}

const (
	cgroupV1 = "/sys/fs/cgroup/cpu"
	cgroupV2 = "/sys/fs/cgroup"
	// envRequest is another request of the agent's container than the chart's, in thousandths of a core.
	envRequest = "REQUEST"
)

// newGroups makes them, and removes them at the end, when their processes have ended.
func newGroups(t testing.TB) *groups {
	t.Helper()
	agent, dcgm := request(t, "agent"), request(t, "dcgm")
	if s := os.Getenv(envRequest); s != "" {
		var err error
		if agent, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	pods := 1000*runtime.NumCPU() - agent - dcgm
	g := &groups{dir: filepath.Join(cgroupV1, fmt.Sprintf("pitcrew-bench-%d", os.Getpid()))}
	if raw, err := os.ReadFile(filepath.Join(cgroupV2, "cgroup.controllers")); err == nil {
		g.v2 = true
		g.dir = filepath.Join(cgroupV2, filepath.Base(g.dir))
		if !slices.Contains(strings.Fields(string(raw)), "cpu") {
			return g.without("the kernel has no controller cpu")
		}
	} else if _, err := os.Stat(filepath.Join(cgroupV1, "cpu.shares")); err != nil {
		return g.without("no control groups")
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return g.without(err.Error())
	}
	t.Cleanup(g.remove)
	if g.v2 {
		if err := os.WriteFile(filepath.Join(g.dir, "cgroup.subtree_control"), []byte("+cpu"), 0o644); err != nil {
			return g.without(err.Error())
		}
	}
	for name, milli := range map[string]int{"": 1000 * runtime.NumCPU(), "agent": agent, "dcgm": dcgm, "pods": pods} {
		dir := filepath.Join(g.dir, name)
		if name != "" {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return g.without(err.Error())
			}
		}
		file, weight := "cpu.shares", max(2, milli*1024/1000)
		if g.v2 { // KEP-2254
			file, weight = "cpu.weight", 1+(weight-2)*9999/262142
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(weight)), 0o644); err != nil {
			return g.without(err.Error())
		}
	}
	g.said = fmt.Sprintf("control groups with the weights of requests, no limits: agent %dm, dcgm %dm, hostile pods %dm together", agent, dcgm, pods)
	return g
}

func (g *groups) without(why string) *groups {
	g.remove()
	g.dir, g.said = "", "hostile pods run at nice 19 in place of control groups: "+why
	return g
}

// put moves a process that has just been started. It is nil-safe.
func (g *groups) put(t testing.TB, name string, pid int) {
	t.Helper()
	if g == nil || g.dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(g.dir, name, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (g *groups) remove() {
	for _, name := range []string{"agent", "dcgm", "pods", ""} {
		for range 100 { // until the last process is reaped
			if err := os.Remove(filepath.Join(g.dir, name)); err == nil || os.IsNotExist(err) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// request is what the chart asks of the scheduler for a container, in thousandths of a core.
func request(t testing.TB, container string) int {
	t.Helper()
	raw, err := os.ReadFile("../../deploy/chart/pitcrew/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]struct {
		Resources struct {
			Requests struct {
				CPU string `yaml:"cpu"`
			} `yaml:"requests"`
		} `yaml:"resources"`
	}
	_ = yaml.Unmarshal(raw, &values) // other values of the chart have other forms
	milli, err := strconv.Atoi(strings.TrimSuffix(values[container].Resources.Requests.CPU, "m"))
	if err != nil {
		t.Fatalf("%s.resources.requests.cpu in the chart's values: %v", container, err)
	}
	return milli
}

func TestTheHostilePodsHaveTheWeightThatTheSchedulerLeavesThem(t *testing.T) {
	if request(t, "agent") <= 0 || request(t, "dcgm") <= 0 {
		t.Fatal("the chart requests no processor time")
	}
	t.Setenv(envRequest, "50")
	g := newGroups(t)
	if g.dir == "" {
		t.Skip(g.said)
	}
	file := map[bool]string{false: "cpu.shares", true: "cpu.weight"}[g.v2]
	weight := func(name string) int {
		raw, err := os.ReadFile(filepath.Join(g.dir, name, file))
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
		return n
	}
	if !g.v2 && weight("agent") != 51 || weight("pods") < weight("agent") || weight("agent") < weight("dcgm") {
		t.Errorf("agent %d, dcgm %d, pods %d", weight("agent"), weight("dcgm"), weight("pods"))
	}
	g.remove()
	if _, err := os.Stat(g.dir); !os.IsNotExist(err) {
		t.Errorf("the groups are left behind: %v", err)
	}
}
