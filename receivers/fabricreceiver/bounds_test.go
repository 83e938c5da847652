package fabricreceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
)

// Whatever a driver shows, what is kept of it is bounded.
func TestAdaptersAndPortsWithoutEndAreBounded(t *testing.T) {
	r := newRig(t, "mlx5_0")
	for n := 2; n <= 2*maxPorts; n++ {
		dir := fmt.Sprintf("devices/pci0000:15/%s/infiniband/mlx5_0/ports/%d/", ib, n)
		r.write(dir+"state", "4: ACTIVE")
		r.write(dir+"phys_state", "5: LinkUp")
	}
	r.write("devices/pci0000:15/"+ib+"/infiniband/mlx5_0/ports/1/phys_state", "5: "+strings.Repeat("x", 1<<20))
	got, err := r.adapters["mlx5_0"].states(r.at)
	if err != nil || len(got) != maxPorts {
		t.Errorf("%d ports, %v", len(got), err)
	}
	for _, c := range got {
		if len(c.phys) > maxState {
			t.Errorf("%d bytes of a state are kept", len(c.phys))
		}
	}
	for n := range 2 * maxAdapters {
		if err := os.MkdirAll(filepath.Join(r.root, fmt.Sprintf("class/infiniband/x_%d/ports", n)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Start(t.Context(), componenttest.NewNopHost()); err != nil {
		t.Fatal(err)
	}
	following := func() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.read) }
	for end := time.Now().Add(20 * time.Second); following() < maxAdapters && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	r.list(t.Context())
	if n := following(); n != maxAdapters {
		t.Errorf("%d adapters are followed", n)
	}
	if err := r.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func FuzzASysfsTree(f *testing.F) {
	f.Add("4: ACTIVE", "5: LinkUp", "400 Gb/sec (4X NDR)", "18446744073709551615")
	f.Add(":", "::", "x Gb", "-1")
	f.Fuzz(func(t *testing.T, state, phys, rate, counter string) {
		r := newRig(t, "mlx5_0")
		r.state("mlx5_0", ib, state, phys)
		r.write("devices/pci0000:15/"+ib+"/infiniband/mlx5_0/ports/1/rate", rate)
		r.counter("mlx5_0", ib, "port_xmit_data", counter)
		r.counter("mlx5_0", ib, "link_downed", counter)
		r.said(t, "mlx5_0", 0)
		r.said(t, "mlx5_0", time.Minute)
	})
}
