package dcgmreceiver

import (
	"slices"
	"testing"
)

func gpu(id uint, uuid string, answers bool) Device {
	return Device{ID: id, UUID: uuid, PCI: "00000000:1A:00.0", Answer: answers}
}

func TestWhoIsMissingIsSaid(t *testing.T) {
	type step struct {
		devices  []Device
		present  []string
		lost     []string
		expected int
	}
	a, b, c := gpu(0, "a", true), gpu(1, "b", true), gpu(2, "c", true)
	for _, k := range []struct {
		name       string
		configured int
		steps      []step
	}{
		{"all are there", 0, []step{{[]Device{a, b}, []string{"a", "b"}, nil, 2}}},
		{"one is listed and does not answer", 0, []step{
			{[]Device{a, b}, []string{"a", "b"}, nil, 2},
			{[]Device{a, gpu(1, "b", false)}, []string{"a"}, []string{"b"}, 2},
		}},
		{"one is listed no longer, and comes back", 0, []step{
			{[]Device{a, b}, []string{"a", "b"}, nil, 2},
			{[]Device{a}, []string{"a"}, []string{"b"}, 2},
			{[]Device{a, b}, []string{"a", "b"}, nil, 2},
		}},
		{"one is replaced by another card", 0, []step{
			{[]Device{a, b}, []string{"a", "b"}, nil, 2},
			{[]Device{a}, []string{"a"}, []string{"b"}, 2},
			{[]Device{a, c}, []string{"a", "c"}, nil, 2},
			{[]Device{a}, []string{"a"}, []string{"c"}, 2},
		}},
		{"one comes late", 0, []step{
			{[]Device{a}, []string{"a"}, nil, 1},
			{[]Device{a, b}, []string{"a", "b"}, nil, 2},
		}},
		{"one was never there, but is expected", 2, []step{{[]Device{a}, []string{"a"}, nil, 2}}},
		{"all are gone", 0, []step{
			{[]Device{a, b}, []string{"a", "b"}, nil, 2},
			{[]Device{}, nil, []string{"a", "b"}, 2},
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			f := fleet{configured: k.configured}
			for i, st := range k.steps {
				all, n := f.update(st.devices)
				var present, lost []string
				for _, g := range all {
					if g.ok {
						present = append(present, g.id())
					} else {
						lost = append(lost, g.id())
					}
				}
				if !slices.Equal(present, st.present) || !slices.Equal(lost, st.lost) || n != len(st.present) || f.expected() != st.expected {
					t.Errorf("step %d: present %v, lost %v, %d answer, %d expected; want %v, %v, %d", i, present, lost, n, f.expected(), st.present, st.lost, st.expected)
				}
			}
		})
	}
}

func TestACardWithoutUUIDHasAnIdentity(t *testing.T) {
	for _, c := range []struct {
		d    Device
		want string
	}{
		{Device{ID: 3, UUID: "GPU-x", PCI: "p"}, "GPU-x"},
		{Device{ID: 3, PCI: "00000000:1A:00.0"}, "pci-00000000:1A:00.0"},
		{Device{ID: 3}, "gpu-3"},
	} {
		if got := c.d.id(); got != c.want {
			t.Errorf("%+v is %s", c.d, got)
		}
	}
}

func TestPCIIsSpelledAsInTheKernelLog(t *testing.T) {
	for in, want := range map[string]string{"00000000:1A:00.0": "0000:1a:00", "0001:E4:00.0": "0001:e4:00", "": "", "nonsense": ""} {
		if got := (Device{PCI: in}).pci(); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
