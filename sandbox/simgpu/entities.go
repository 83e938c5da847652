package simgpu

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Instance is a MIG GPU instance.
type Instance struct {
	GI      int    // NVML's number on its GPU
	Profile string // 1g.10gb
	Slices  int
	Compute []Compute // none stands for one whose UUID the engine does not tell
}

// Compute is a compute instance of a GPU instance.
type Compute struct {
	CI   int
	UUID string // MIG-...; empty where nobody tells
	NVML bool   // the driver alone tells it, and not DCGM
}

// entities are what a node has beside GPUs.
type entities struct {
	mig        map[int][]Instance
	switches   int
	gone       map[int]bool
	links      map[[2]int]string            // of switches
	fields     map[string]map[uint16]string // of an instance, a switch or a switch's link, by the script's name
	profiling  []string
	paths      map[[2]int]string
	switchWell []string // health lines
}

func newEntities() entities {
	return entities{mig: map[int][]Instance{}, gone: map[int]bool{}, links: map[[2]int]string{}, fields: map[string]map[uint16]string{}, paths: map[[2]int]string{}}
}

// MIG divides a GPU into instances, in place of those it had; none turns MIG off.
func (n *Node) MIG(gpu int, instances ...Instance) error {
	return n.change(gpu, func() {
		n.entities.mig[gpu] = instances
		for name := range n.entities.fields { // of instances that are no more
			if strings.HasPrefix(name, slot(gpu)+"/") {
				delete(n.entities.fields, name)
			}
		}
	})
}

// Switches gives the node NVSwitches, each with 64 links that are up.
func (n *Node) Switches(count int) error {
	return n.change(All, func() { n.entities.switches = count })
}

// RemoveSwitch makes a switch unknown to the engine; RestoreSwitch brings it back.
func (n *Node) RemoveSwitch(number int) error {
	return n.change(All, func() { n.entities.gone[number] = true })
}

// RestoreSwitch brings a removed switch back.
func (n *Node) RestoreSwitch(number int) error {
	return n.change(All, func() { delete(n.entities.gone, number) })
}

// SwitchLink sets the state of one of a switch's links: up, down, disabled, notsupported.
func (n *Node) SwitchLink(number, link int, state string) error {
	return n.change(All, func() { n.entities.links[[2]int{number, link}] = state })
}

// SwitchHealth adds a health incident of a switch: nvswitch_nonfatal or nvswitch_fatal, warn or fail.
func (n *Node) SwitchHealth(number int, system, result string, code int, message string) error {
	return n.change(All, func() {
		n.entities.switchWell = append(n.entities.switchWell, fmt.Sprintf("health switch:%d %s %s %d %q", number, system, result, code, message))
	})
}

// SetInstance holds a field of an instance at a value.
func (n *Node) SetInstance(gpu, gi int, field uint16, value float64) error {
	return n.setEntity(fmt.Sprintf("%d/%d", gpu, gi), field, value)
}

// SetSwitch holds a field of a switch at a value.
func (n *Node) SetSwitch(number int, field uint16, value float64) error {
	return n.setEntity(fmt.Sprintf("switch:%d", number), field, value)
}

// SetSwitchLink holds a field of a switch's link at a value.
func (n *Node) SetSwitchLink(number, link int, field uint16, value float64) error {
	return n.setEntity(fmt.Sprintf("switch:%d/%d", number, link), field, value)
}

func (n *Node) setEntity(name string, field uint16, value float64) error {
	return n.change(All, func() {
		if n.entities.fields[name] == nil {
			n.entities.fields[name] = map[uint16]string{}
		}
		n.entities.fields[name][field] = fmt.Sprintf("const %v", value)
	})
}

// Profiling says what can be profiled: "none", "busy" (another program has the counters), or groups such as "group 0 1 1001 1002" whose
// first number is the major: of one major, one group can be watched at a time. Nothing stands for a Hopper card.
func (n *Node) Profiling(lines ...string) error {
	return n.change(All, func() { n.entities.profiling = lines })
}

// Topology says how two GPUs reach each other: sys, node, phb, pxb, pix, psb, or nv and the number of links.
func (n *Node) Topology(a, b int, path string) error {
	return n.change(All, func() { n.entities.paths[[2]int{a, b}] = path })
}

// lines renders what there is beside GPUs.
func (e *entities) lines() (out []string) {
	add := func(format string, a ...any) { out = append(out, fmt.Sprintf(format, a...)) }
	for _, gpu := range slices.Sorted(maps.Keys(e.mig)) {
		for _, in := range e.mig[gpu] {
			line := fmt.Sprintf("mig %d %d %s %d", gpu, in.GI, in.Profile, in.Slices)
			for _, c := range in.Compute {
				line += " " + strconv.Itoa(c.CI)
				switch {
				case c.UUID == "":
				case c.NVML:
					line += "=" + c.UUID
				default:
					line += ":" + c.UUID
				}
			}
			add("%s", line)
		}
	}
	if e.switches > 0 {
		add("switches %d", e.switches)
	}
	for _, i := range slices.Sorted(maps.Keys(e.gone)) {
		add("switch %d gone", i)
	}
	for _, k := range slices.SortedFunc(maps.Keys(e.links), byPair) {
		add("nvlink switch:%d %d %s", k[0], k[1], e.links[k])
	}
	for _, name := range slices.Sorted(maps.Keys(e.fields)) {
		for _, id := range slices.Sorted(maps.Keys(e.fields[name])) {
			add("field %s %d %s", name, id, e.fields[name][id])
		}
	}
	for _, l := range e.profiling {
		add("profiling %s", l)
	}
	for _, k := range slices.SortedFunc(maps.Keys(e.paths), byPair) {
		add("path %d %d %s", k[0], k[1], e.paths[k])
	}
	return append(out, e.switchWell...)
}
