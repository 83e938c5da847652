package fabricreceiver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
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

func TestAnAdapterThatCannotBeOpenedIsSaidOnceUntilThatIsOtherwise(t *testing.T) {
	r := newRig(t)
	core, said := observer.New(zap.WarnLevel)
	r.set.Logger = zap.New(core)
	r.adapter("mlx5_0", ib, "InfiniBand")
	r.dir = t.TempDir()
	in := filepath.Join(r.dir, "mlx5_0") // where its tree is to be
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	looks := func(n int, want int) {
		t.Helper()
		for range n {
			r.list(t.Context())
			r.at = r.at.Add(listEvery)
		}
		if got := len(said.TakeAll()); got != want {
			t.Errorf("said %d times in %d looks, want %d", got, n, want)
		}
	}
	must(os.WriteFile(in, nil, 0o600))
	looks(100, 1)
	looks(100, 1) // an hour is 120
	must(os.Remove(in))
	must(os.Mkdir(in, 0o700))
	must(os.WriteFile(filepath.Join(in, "class"), nil, 0o600))
	looks(10, 1)
	if len(r.failed) != 1 {
		t.Errorf("%v", r.failed)
	}
	link := filepath.Join(r.root, "class/infiniband/mlx5_0")
	to, err := os.Readlink(link)
	must(err)
	must(os.Remove(link))
	looks(10, 0)
	if len(r.failed) != 0 {
		t.Errorf("one that is gone stands as %v", r.failed)
	}
	must(os.Symlink(to, link))
	looks(10, 1)
	must(os.RemoveAll(in))
	ctx, cancel := context.WithCancel(t.Context())
	r.list(ctx)
	cancel()
	r.workers.Wait()
	if len(said.TakeAll()) != 0 || len(r.failed) != 0 || len(r.read) != 1 {
		t.Errorf("%v, %v", r.failed, r.read)
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
