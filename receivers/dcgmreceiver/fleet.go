package dcgmreceiver

import (
	"fmt"
	"slices"
	"strings"
)

// fleet remembers which GPUs the node should have, so that one that vanished is said and not left out.
type fleet struct {
	configured int // expected_gpus; 0 takes the most seen
	most       int
	seen       []Device // by the order of their first answer
}

// presence is one GPU of the fleet, there or not.
type presence struct {
	Device
	ok bool
}

// update takes in an inventory and returns each GPU's presence: those listed, and while fewer answer than are expected also those
// that were here before and are listed no longer.
func (f *fleet) update(devices []Device) (all []presence, answering int) {
	for _, d := range devices {
		all = append(all, presence{d, d.Answer})
		if d.Answer {
			answering++
		}
		i := slices.IndexFunc(f.seen, func(s Device) bool { return s.id() == d.id() })
		if i < 0 {
			f.seen = append(f.seen, d)
		} else {
			f.seen[i] = d
		}
	}
	f.most = max(f.most, len(devices))
	kept := f.seen[:0]
	for _, s := range f.seen {
		listed := slices.ContainsFunc(devices, func(d Device) bool { return d.id() == s.id() })
		if !listed && answering >= f.expected() {
			continue // replaced: its place is taken
		}
		kept = append(kept, s)
		if !listed {
			all = append(all, presence{s, false})
		}
	}
	f.seen = kept
	return all, answering
}

func (f *fleet) expected() int {
	if f.configured > 0 {
		return f.configured
	}
	return f.most
}

// id is the GPU's hw.id: its UUID, or what else is known of a card whose UUID the engine does not tell.
func (d Device) id() string {
	switch {
	case d.UUID != "":
		return d.UUID
	case d.PCI != "":
		return "pci-" + d.PCI
	}
	return fmt.Sprintf("gpu-%d", d.ID)
}

// pci is the address as the kernel log has it: 0000:1a:00.
func (d Device) pci() string {
	parts := strings.Split(strings.ToLower(d.PCI), ":")
	if len(parts) != 3 {
		return ""
	}
	if n := len(parts[0]); n > 4 {
		parts[0] = parts[0][n-4:]
	}
	parts[2], _, _ = strings.Cut(parts[2], ".")
	return strings.Join(parts, ":")
}
