package simgpu

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// render writes the state in the stub's format (sandbox/libdcgm/README.md), in a fixed order: equal states give equal bytes.
func (n *Node) render() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# written by package simgpu; see sandbox/libdcgm/README.md\norigin %s\ngpus %d\n", seconds(n.origin), len(n.gpus))
	for i, g := range n.gpus {
		fmt.Fprintf(&b, "gpu %d uuid %q pci %q name %q serial %q\n", i, g.UUID, g.PCI, g.Name, g.Serial)
	}
	if n.down {
		b.WriteString("engine down\n")
	}
	if n.restart > 0 {
		fmt.Fprintf(&b, "restart %d\n", n.restart)
	}
	for _, gpu := range slices.Sorted(maps.Keys(n.fields)) { // All is -1 and comes first: one GPU's own word is the last
		for _, field := range slices.Sorted(maps.Keys(n.fields[gpu])) {
			fmt.Fprintf(&b, "field %s %d %s\n", slot(gpu), field, n.fields[gpu][field])
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(n.links), byPair) {
		fmt.Fprintf(&b, "nvlink %s %s %s\n", slot(k[0]), slot(k[1]), n.links[k])
	}
	for _, lines := range [][]string{n.entities.lines(), n.health, n.events, slices.Sorted(maps.Values(n.calls))} {
		for _, l := range lines {
			b.WriteString(l + "\n")
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(n.state)) {
		fmt.Fprintf(&b, "%s %s\n", n.state[gpu], slot(gpu))
	}
	return b.Bytes()
}

func byPair(a, b [2]int) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) }

func slot(i int) string {
	if i == All {
		return "*"
	}
	return strconv.Itoa(i)
}

func seconds(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64)
}

func without(lines []string, prefix string) []string {
	return slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, prefix) })
}
