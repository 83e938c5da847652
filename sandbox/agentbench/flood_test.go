package agentbench

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/hook"
)

// envFlood turns the test binary into hostile pods: the flood as JSON.
const envFlood = "PITCREW_FLOOD"

// flood is what one process does in the name of several pods.
type flood struct {
	Dirs    []string // of pods
	Seed    uint64
	Sockets int // of each pod
	Rings   int
	Files   int // names made in a second
	Nice    bool
}

// floodMain does not return if this process was started by flood.start.
func floodMain() {
	raw := os.Getenv(envFlood)
	if raw == "" {
		return
	}
	var f flood
	if err := json.Unmarshal([]byte(raw), &f); err != nil {
		panic(err)
	}
	if f.Nice { // where no control group bounds it
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19)
	}
	random := rand.New(rand.NewPCG(f.Seed, 1))
	for _, dir := range f.Dirs {
		for local := range f.Sockets {
			go floodSocket(dir, local, f.Sockets, lineOf(random.IntN(floodLines), random))
		}
		go floodRings(dir, f.Rings)
		go floodNames(dir, f.Files)
	}
	select {}
}

// start runs the flood among the hostile pods until the test's end or the returned function is called.
func (f flood) start(t testing.TB, g *groups) (stop func()) {
	t.Helper()
	f.Nice = g.dir == ""
	raw, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envFlood+"="+string(raw), "GOMAXPROCS=2")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g.put(t, "pods", cmd.Process.Pid)
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// floodLines is how many kinds of floods of a socket there are.
const floodLines = 9

// lineOf is what one socket sends again and again. An empty one opens and closes connections as fast as it can.
func lineOf(kind int, r *rand.Rand) string {
	many := strings.TrimSuffix(strings.Repeat("{},", 21_000), ",")
	switch kind {
	case 0:
		return `{"t":"collectives","attempt":0,"step":1,"groups":[` + many + "]}\n"
	case 1:
		return `{"t":"saved","req":"x","files":[` + many + "]}\n"
	case 2:
		return strings.Repeat(`{"t":"pong"}`+"\n", 4000)
	case 3:
		return strings.Repeat(`{"t":"x"}`+"\n", 6000)
	case 4: // begins a long line and never ends it
		return `{"t":"collectives","x":"` + strings.Repeat("a", 60_000)
	case 5: // a type that is long text
		return fmt.Sprintf(`{"t":"%s%d"}`+"\n", strings.Repeat("A", 60_000), r.Uint64())
	case 6: // names that are new each time, as far as this line goes
		var b strings.Builder
		for i := range 200 {
			fmt.Fprintf(&b, `{"t":"collectives","attempt":0,"step":1,"groups":[{"name":"%d-%d","op":"op%d","ranks":"0"}]}`+"\n", i, r.Uint32(), i)
		}
		return b.String()
	case 7:
		return `{"t":"error","attempt":0,"step":1,"error":"` + strings.Repeat(`\u001b[31m\n`, 4000) + `"}` + "\n"
	}
	return ""
}

func floodSocket(dir string, local, world int, line string) {
	at, err := os.Open(dir)
	if err != nil {
		return
	}
	ln, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), hook.SocketName(local)))
	if err != nil {
		return
	}
	for attempt := 0; ; attempt++ {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		hello := fmt.Sprintf(`{"t":"hello","v":1,"role":"rank","rank":%d,"local_rank":%d,"world_size":%d,"attempt":%d,"pid":%d,"section":"%s","ckpt_dir":"%s"}`+"\n",
			local, local, world, attempt, os.Getpid()+attempt, strings.Repeat("s", 5000), strings.Repeat("/d", 2000))
		if line == "" {
			_, _ = c.Write([]byte(hello))
			time.Sleep(10 * time.Millisecond)
			_ = c.Close()
			continue
		}
		go func() {
			_, err := c.Write([]byte(hello))
			for err == nil {
				_, err = c.Write([]byte(line))
			}
		}()
	}
}

// floodRings writes 64 steps into each ring ten times a second.
func floodRings(dir string, rings int) {
	const capacity = 64
	var all [][]byte
	for local := range rings {
		path := filepath.Join(dir, hook.RingName(local))
		f, err := os.Create(path + ".tmp")
		if err != nil || f.Truncate(4096+capacity*128) != nil {
			return
		}
		m, err := syscall.Mmap(int(f.Fd()), 0, 4096+capacity*128, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		_ = f.Close()
		if err != nil {
			return
		}
		copy(m, "PCRING01")
		for i, v := range []uint32{1, 4096, 128, capacity, uint32(local), uint32(local), uint32(rings), 0, uint32(os.Getpid()), hook.FlagTokens} {
			binary.LittleEndian.PutUint32(m[8+4*i:], v)
		}
		binary.LittleEndian.PutUint64(m[48:], uint64(time.Now().UnixNano()))
		binary.LittleEndian.PutUint64(m[56:], hook.Monotonic())
		copy(m[64:], fmt.Sprintf("GPU-hostile-%d", local))
		copy(m[192:], fmt.Sprintf("job-%d", local)) // a resource of its own for each
		binary.LittleEndian.PutUint64(m[952:], math.Float64bits(1e12))
		binary.LittleEndian.PutUint64(m[960:], math.Float64bits(1e15))
		_ = os.Rename(path+".tmp", path)
		all = append(all, m)
	}
	for seq := uint64(0); ; {
		now := hook.Monotonic()
		for range capacity {
			seq++
			for _, m := range all {
				r := m[4096+int((seq-1)%capacity)*128:]
				binary.LittleEndian.PutUint64(r[8:], now)
				binary.LittleEndian.PutUint64(r[16:], seq)
				for _, off := range []int{32, 40, 48, 56, 64, 72, 80, 88, 96, 104} {
					binary.LittleEndian.PutUint64(r[off:], 1_000_000)
				}
				binary.LittleEndian.PutUint32(r[28:], 0xf)
				binary.LittleEndian.PutUint64(r, seq)
			}
		}
		for _, m := range all {
			for off, v := range map[int]uint64{512: now, 520: seq, 528: seq, 536: now, 912: seq, 944: now} {
				binary.LittleEndian.PutUint64(m[off:], v)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// floodNames makes and removes names in the pod's directory: some nobody wants, some of ranks beyond those there are.
func floodNames(dir string, perSecond int) {
	for i := 0; ; i++ {
		for k := range max(perSecond/20, 1) {
			name := filepath.Join(dir, fmt.Sprintf("x%d", k))
			if k%8 == 0 {
				name = filepath.Join(dir, hook.RingName(64+(i+k)%5000))
			}
			if f, err := os.Create(name); err == nil {
				_ = f.Close()
				_ = os.Remove(name)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}
