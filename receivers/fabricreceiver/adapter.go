package fabricreceiver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs/sysfs"
)

const (
	active    = "ACTIVE"
	absent    = "ABSENT" // a port that there was, and is no longer
	maxPorts  = 64
	maxState  = 64              // bytes of a state's file
	mostPause = 5 * time.Minute // between attempts to read an adapter that answers with errors
)

// adapter is one InfiniBand device of sysfs, and what was last seen of its ports. Its methods are called by its own goroutine.
type adapter struct {
	name, root string // root is a tree that holds this device alone, under /sys's names
	device     string // its folder in /sys
	gone       bool   // at the last look
	pci        string
	iface      string // its network interface; empty: none, or no RoCE
	fs         sysfs.FS
	sys        sysfs.FS // the whole tree, for the network interface
	ports      map[string]*port
	pause      time.Duration // after errors
	next       time.Time     // of the counters
	resume     time.Time     // of the states, after errors
}

// port is what was last seen of a port.
type port struct {
	state, phys, layer string
	downs              uint64 // link_downed, or the interface's carrier_down_count
	counted            bool   // downs is set
	flaps              int64  // transitions seen since the start
}

// change is a port's transition, or its first sight.
type change struct {
	port, layer, before, state, phys string
	downs                            uint64 // the link went down so often, though the port was ACTIVE at both looks
}

// openAdapter makes the tree through which the library reads one device and no other: it reads a whole class, and gives nothing of it where
// one device fails. dir is a folder of our own.
func openAdapter(sys, dir, name string) (*adapter, error) {
	device := filepath.Join(sys, "class", "infiniband", name)
	a := &adapter{name: name, root: filepath.Join(dir, name), device: device, ports: map[string]*port{}}
	err := a.tree()
	if err != nil {
		return nil, err
	}
	if a.fs, err = sysfs.NewFS(a.root); err != nil {
		return nil, err
	}
	if a.sys, err = sysfs.NewFS(sys); err != nil {
		return nil, err
	}
	if to, err := os.Readlink(filepath.Join(device, "device")); err == nil {
		if base := filepath.Base(to); strings.Count(base, ":") == 2 {
			a.pci = strings.TrimSuffix(strings.ToLower(base), ".0")
		}
	}
	if ifaces, err := os.ReadDir(filepath.Join(device, "device", "net")); err == nil && len(ifaces) == 1 {
		a.iface = ifaces[0].Name()
	}
	return a, nil
}

// tree makes root, or makes it anew: it is in a temporary folder, which daemons tidy up.
func (a *adapter) tree() error {
	class := filepath.Join(a.root, "class", "infiniband")
	if err := os.MkdirAll(class, 0o700); err != nil {
		return err
	}
	if err := os.Symlink(a.device, filepath.Join(class, a.name)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// states looks at the ports' states alone: two small files a port.
func (a *adapter) states(now time.Time) ([]change, error) {
	if now.Before(a.resume) {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(a.device, "ports"))
	a.gone = errors.Is(err, os.ErrNotExist) && len(a.ports) > 0
	if err != nil && !a.gone {
		return nil, a.failed(now, err)
	}
	var out []change
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		if len(a.ports) >= maxPorts && a.ports[e.Name()] == nil {
			continue
		}
		dir := filepath.Join(a.device, "ports", e.Name())
		state, err := word(filepath.Join(dir, "state"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return out, a.failed(now, err)
		}
		phys, err := word(filepath.Join(dir, "phys_state"))
		if err != nil {
			return out, a.failed(now, err)
		}
		there[e.Name()] = true
		p := a.ports[e.Name()]
		if p == nil {
			p = &port{layer: layerOf(dir)}
			a.ports[e.Name()] = p
		}
		if p.state != state {
			out = append(out, change{port: e.Name(), layer: p.layer, before: p.state, state: state, phys: phys})
			if p.state == active {
				p.flaps++
			}
		}
		p.state, p.phys = state, phys
	}
	for n, p := range a.ports {
		if !there[n] && p.state != absent {
			out = append(out, change{port: n, layer: p.layer, before: p.state, state: absent})
			p.state, p.phys, p.counted = absent, "", false
		}
	}
	return out, nil
}

// failed makes the next attempt later, and later again.
func (a *adapter) failed(now time.Time, err error) error {
	a.pause = min(max(2*a.pause, time.Second), mostPause)
	a.resume = now.Add(a.pause)
	return fmt.Errorf("adapter %s: %w", a.name, err)
}

// counters reads everything of the adapter, and what its links' own counters say of ports that went down between two looks.
func (a *adapter) counters(now time.Time) (*sysfs.InfiniBandDevice, []change, error) {
	if now.Before(a.resume) || a.gone {
		return nil, nil, nil
	}
	if err := a.tree(); err != nil {
		return nil, nil, a.failed(now, err)
	}
	class, err := a.fs.InfiniBandClass()
	if err != nil {
		return nil, nil, a.failed(now, err)
	}
	a.pause = 0
	d := class[a.name]
	var out []change
	for n, p := range d.Ports {
		known := a.ports[fmt.Sprint(n)]
		if known == nil {
			continue
		}
		downs, ok := a.downs(&p)
		if !ok {
			continue
		}
		// The port's own look counts a transition that it saw; what the counter has beyond that was between two looks.
		if grown := downs - known.downs; known.counted && downs > known.downs && known.state == active && int64(grown) > known.flaps {
			missed := int64(grown) - known.flaps
			out = append(out, change{port: fmt.Sprint(n), layer: known.layer, before: active, state: active, phys: known.phys, downs: uint64(missed)})
		}
		known.downs, known.counted, known.flaps = downs, true, 0
	}
	return &d, out, nil
}

// downs is how often the link went down, by its own counter: an InfiniBand port's, or a RoCE port's network interface's.
func (a *adapter) downs(p *sysfs.InfiniBandPort) (uint64, bool) {
	if p.LinkLayer == "Ethernet" && a.iface != "" {
		if c, err := a.sys.NetClassByIface(a.iface); err == nil && c.CarrierDownCount != nil && *c.CarrierDownCount >= 0 {
			return uint64(*c.CarrierDownCount), true
		}
	}
	if p.Counters.LinkDowned == nil {
		return 0, false
	}
	return *p.Counters.LinkDowned, true
}

func layerOf(dir string) string {
	if raw, err := small(filepath.Join(dir, "link_layer")); err == nil {
		return strings.TrimSpace(raw)
	}
	return ""
}

// word reads the name of a state, "4: ACTIVE".
func word(path string) (string, error) {
	raw, err := small(path)
	if err != nil {
		return "", err
	}
	_, name, ok := strings.Cut(raw, ":")
	if name = strings.TrimSpace(name); !ok || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", fmt.Errorf("%s: %q is no state", path, raw)
	}
	return name, nil
}

func small(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, maxState)
	n, err := io.ReadFull(f, buf)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	return string(buf[:n]), nil
}

// adapters lists the devices there are; none where the node has no such class.
func adapters(sys string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(sys, "class", "infiniband"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out, nil
}
