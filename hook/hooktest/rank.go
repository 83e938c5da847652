// Package hooktest is a training pod for tests: a rank and a launcher as processes of their own, keeping docs/hook-protocol.md
// as pitcrew_torch does, and driven by lines on their standard input. It trains nothing and writes no checkpoint.
package hooktest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pitcrew/pitcrew/hook"
)

// Config is one rank's process.
type Config struct {
	Dir                                  string
	Rank, LocalRank, WorldSize, Attempt  int
	StepEvery                            time.Duration // 0: steps only by the line "step N"
	CanSave                              bool
	SaveTakes                            time.Duration
	CkptDir                              string
	NoRing, NoSocket, Mute, StaleSeconds int // non-zero: leave out the ring, the socket, the Hello; age the heartbeat
	Launcher                             bool
	State, JobUID, Role, Workload        string
	NProc                                int
}

const env = "PITCREW_HOOKTEST"

// Main turns a test binary into a rank or a launcher when it was started by Start, and does not return then. Call it first in
// TestMain.
func Main() {
	raw := os.Getenv(env)
	if raw == "" {
		return
	}
	var c Config
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	(&program{c: c, armed: map[string]int64{}, answers: map[string]any{}}).run()
	os.Exit(0)
}

type program struct {
	c    Config
	ring []byte
	ln   net.Listener

	mu      sync.Mutex
	conns   []net.Conn
	armed   map[string]int64
	held    string
	step    int64
	seq     uint64
	answers map[string]any
	state   string
	attempt int
}

func (p *program) fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hooktest:", err)
		os.Exit(2)
	}
}

func (p *program) run() {
	p.state, p.attempt = p.c.State, p.c.Attempt
	if !p.c.Launcher && p.c.NoRing == 0 {
		p.makeRing()
	}
	if p.c.NoSocket == 0 {
		p.listen()
	}
	if p.ring != nil && p.c.StaleSeconds == 0 {
		go p.beat()
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		p.line(in.Text())
	}
}

func (p *program) line(line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "step":
		var n int64
		_, _ = fmt.Sscan(rest, &n)
		p.finish(n)
	case "attempt": // a launcher's
		p.mu.Lock()
		_, _ = fmt.Sscan(rest, &p.attempt)
		p.mu.Unlock()
	case "resume":
		var n uint64
		_, _ = fmt.Sscan(rest, &n)
		p.put64(584, n)
		p.put32(44, binary.LittleEndian.Uint32(p.ring[44:])|hook.FlagResumed)
	case "late": // from here on values are final only up to this record
		var n uint64
		_, _ = fmt.Sscan(rest, &n)
		p.put64(896, n)
		p.put32(44, binary.LittleEndian.Uint32(p.ring[44:])|hook.FlagSettles)
	case "put": // an 8-byte field of the ring: "put OFFSET VALUE"
		var off int
		var v uint64
		_, _ = fmt.Sscan(rest, &off, &v)
		p.put64(off, v)
	case "drop": // all connections, as a hiccup does
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.conns = nil
		p.mu.Unlock()
	case "unlisten":
		_ = p.ln.Close()
	case "listen":
		p.listen()
	case "say":
		p.say(json.RawMessage(rest))
	case "bye":
		p.put32(548, 1)
		p.say(map[string]any{"t": "bye", "attempt": p.c.Attempt, "step": p.step, "code": 0})
		os.Exit(0)
	case "raise":
		p.put32(548, 2)
		p.putText(640, 256, rest)
		p.say(map[string]any{"t": "error", "attempt": p.c.Attempt, "step": p.step, "error": rest})
		os.Exit(1)
	case "orphan": // a child that holds every descriptor open after this process is gone
		p.orphan()
	}
	fmt.Println("ok")
}

// orphan leaves a process behind that inherits the sockets, as a data loader's worker does.
func (p *program) orphan() {
	files := []uintptr{0, 1, 2}
	add := func(c syscall.Conn) {
		raw, err := c.SyscallConn()
		p.fail(err)
		_ = raw.Control(func(fd uintptr) {
			n, err := syscall.Dup(int(fd))
			p.fail(err)
			files = append(files, uintptr(n))
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	add(p.ln.(syscall.Conn))
	for _, c := range p.conns {
		add(c.(syscall.Conn))
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	p.fail(err)
	files[0], files[1], files[2] = null.Fd(), null.Fd(), null.Fd()
	pid, err := syscall.ForkExec("/bin/sleep", []string{"sleep", "30"}, &syscall.ProcAttr{Files: files})
	p.fail(err)
	fmt.Println("pid", pid)
}

func (p *program) makeRing() {
	const capacity = 64
	path := filepath.Join(p.c.Dir, hook.RingName(p.c.LocalRank))
	f, err := os.Create(path + ".tmp")
	p.fail(err)
	p.fail(f.Truncate(4096 + capacity*128))
	p.ring, err = syscall.Mmap(int(f.Fd()), 0, 4096+capacity*128, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	p.fail(err)
	copy(p.ring, "PCRING01")
	flags := uint32(0)
	if p.c.CanSave {
		flags |= hook.FlagCanSave
	}
	for i, v := range []uint32{1, 4096, 128, capacity, uint32(p.c.Rank), uint32(p.c.LocalRank), uint32(p.c.WorldSize), uint32(p.c.Attempt), uint32(os.Getpid()), flags} {
		p.put32(8+4*i, v)
	}
	now := hook.Monotonic() - uint64(p.c.StaleSeconds)*uint64(time.Second)
	p.put64(48, uint64(time.Now().UnixNano()))
	p.put64(56, now)
	copy(p.ring[64:], "GPU-fake-"+fmt.Sprint(p.c.Rank))
	p.putText(192, 64, p.c.JobUID)
	p.putText(256, 64, p.c.Role)
	p.putText(320, 128, p.c.Workload)
	p.put64(512, now)
	p.put64(536, now)
	p.put32(544, uint32(hook.SectionStep))
	p.put64(552, now)
	p.fail(os.Rename(path+".tmp", path))
}

func (p *program) put32(off int, v uint32) {
	if p.ring != nil {
		binary.LittleEndian.PutUint32(p.ring[off:], v)
	}
}

func (p *program) put64(off int, v uint64) {
	if p.ring != nil {
		binary.LittleEndian.PutUint64(p.ring[off:], v)
	}
}

func (p *program) putText(off, size int, s string) {
	if p.ring != nil {
		copy(p.ring[off:off+size-1], s)
	}
}

func (p *program) beat() {
	last := time.Now()
	for range time.Tick(20 * time.Millisecond) {
		p.put64(512, hook.Monotonic())
		if p.c.StepEvery > 0 && time.Since(last) >= p.c.StepEvery {
			last = time.Now()
			p.mu.Lock()
			n, held := p.step+1, p.held
			p.mu.Unlock()
			if held == "" {
				p.finish(n)
			}
		}
	}
}

// finish completes a step: a record, the header, and holding where a round asks for it.
func (p *program) finish(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := hook.Monotonic()
	p.step = n
	p.seq++
	off := 4096 + int((p.seq-1)%64)*128
	p.put64(off, 0)
	p.put64(off+8, now)
	p.put64(off+16, uint64(n))
	p.put32(off+24, uint32(hook.SectionStep))
	p.put32(off+28, 1)
	p.put64(off+32, uint64(10*time.Millisecond))
	p.put64(off+48, uint64(4*time.Millisecond))
	p.put64(off+88, 0x3fe0000000000000) // loss 0.5
	p.put64(off+104, 32)
	p.put64(off, p.seq)
	p.put64(520, p.seq)
	p.put64(528, uint64(n))
	p.put64(536, now)
	for req, at := range p.armed {
		if at == n {
			p.held = req
			p.put32(544, uint32(hook.SectionHeld))
			go p.say(map[string]any{"t": "held", "req": req, "attempt": p.c.Attempt, "step": n})
		}
	}
}
