package hooktest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pitcrew/pitcrew/hook"
)

func (p *program) socketName() string {
	if p.c.Launcher {
		return hook.LauncherSocket
	}
	return hook.SocketName(p.c.LocalRank)
}

func (p *program) listen() {
	_ = os.Remove(filepath.Join(p.c.Dir, p.socketName()))
	// A socket's path has at most 107 bytes, and a pod's directory on a node is longer: by its descriptor it is short.
	dir, err := os.Open(p.c.Dir)
	p.fail(err)
	defer func() { _ = dir.Close() }()
	ln, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), p.socketName()))
	p.fail(err)
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	p.ln = ln
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
			go p.serve(c)
		}
	}()
}

func (p *program) hello() any {
	if p.c.Launcher {
		return map[string]any{"t": "hello", "v": 1, "role": "launcher", "pid": os.Getpid(), "state": p.state, "attempt": p.attempt,
			"nproc": p.c.NProc, "nnodes": 1, "node_rank": 0, "job_uid": p.c.JobUID, "torch": "none", "more": "unknown"}
	}
	return map[string]any{"t": "hello", "v": 1, "role": "rank", "rank": p.c.Rank, "local_rank": p.c.LocalRank, "world_size": p.c.WorldSize,
		"attempt": p.c.Attempt, "pid": os.Getpid(), "step": p.step, "section": "step", "can_save": p.c.CanSave, "strategy": "ddp",
		"ckpt_dir": p.c.CkptDir, "save_p99_s": 0.2}
}

func (p *program) serve(c net.Conn) {
	if p.c.Mute != 0 {
		return
	}
	p.mu.Lock()
	h := p.hello()
	p.mu.Unlock()
	send(c, h)
	in := bufio.NewScanner(c)
	in.Buffer(nil, hook.MaxAgentLine)
	for in.Scan() {
		m, err := hook.Decode(in.Bytes())
		p.fail(err)
		if p.c.Launcher {
			p.launch(m, in.Text())
		} else {
			p.answer(c, m)
		}
	}
}

func send(c net.Conn, v any) {
	raw, _ := json.Marshal(v)
	_, _ = c.Write(append(raw, '\n'))
}

// say goes to every connection.
func (p *program) say(v any) {
	p.mu.Lock()
	conns := append([]net.Conn(nil), p.conns...)
	p.mu.Unlock()
	for _, c := range conns {
		send(c, v)
	}
}

// launch follows an instruction and prints it, so that a test can see it.
func (p *program) launch(m hook.Message, line string) {
	fmt.Println("told", line)
	p.mu.Lock()
	switch m := m.(type) {
	case hook.Alone:
		p.state = "running"
	case hook.Start:
		p.state, p.attempt = "running", m.Attempt
	case hook.Stop:
		p.state, p.attempt = "stopped", m.Attempt
	}
	state := map[string]any{"t": "state", "state": p.state, "attempt": p.attempt, "pids": []int{}}
	p.mu.Unlock()
	p.say(state)
}

// answer keeps section 3 of the protocol.
func (p *program) answer(c net.Conn, m hook.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reply := func(t, req string, more map[string]any) {
		out := map[string]any{"t": t, "req": req, "attempt": p.c.Attempt, "step": p.step}
		for k, v := range more {
			out[k] = v
		}
		if t != "nack" {
			p.answers[t+req] = out
		}
		send(c, out)
	}
	nack := func(req, reason string) { reply("nack", req, map[string]any{"reason": reason}) }
	again := func(t, req string) bool {
		a, ok := p.answers[t+req]
		if ok {
			send(c, a)
		}
		return ok
	}
	switch m := m.(type) {
	case hook.Arm:
		switch {
		case m.Attempt != p.c.Attempt:
			nack(m.Req, "attempt")
		case again("armed", m.Req):
		case !p.c.CanSave:
			nack(m.Req, "cannot-save")
		case p.step >= m.AtStep:
			nack(m.Req, "past")
		default:
			p.armed[m.Req] = m.AtStep
			reply("armed", m.Req, map[string]any{"at_step": m.AtStep})
		}
	case hook.Go:
		switch at, armed := p.armed[m.Req]; {
		case m.Attempt != p.c.Attempt:
			nack(m.Req, "attempt")
		case again("saved", m.Req):
		case !armed:
			nack(m.Req, "unknown")
		default:
			go p.save(m.Req, at)
		}
	case hook.Manifest:
		reply("manifested", m.Req, map[string]any{"dir": m.Dir, "step": m.Step, "crc32": fmt.Sprintf("%08x", len(m.Files))})
	case hook.Cancel:
		delete(p.armed, m.Req)
		p.held = ""
		reply("cancelled", m.Req, nil)
	case hook.Release:
		p.held = ""
		delete(p.armed, m.Req)
		p.put32(544, uint32(hook.SectionStep))
		reply("released", m.Req, nil)
	case hook.Abort:
		if m.Attempt == p.c.Attempt {
			os.Exit(75)
		}
	case hook.Ping:
		send(c, map[string]any{"t": "pong", "step": p.step, "section": "step"})
	}
}

// save waits for the step, then tells every connection.
func (p *program) save(req string, at int64) {
	for range time.Tick(time.Millisecond) {
		p.mu.Lock()
		held := p.held == req
		p.mu.Unlock()
		if held {
			break
		}
	}
	time.Sleep(p.c.SaveTakes)
	p.mu.Lock()
	out := map[string]any{"t": "saved", "req": req, "attempt": p.c.Attempt, "step": at, "dir": fmt.Sprintf("%s/step-%d.attempt-%d", p.c.CkptDir, at, p.c.Attempt),
		"files": []hook.File{{Name: fmt.Sprintf("rank-%d.pt", p.c.Rank), Bytes: 8, CRC32: "00000001"}}, "bytes": 8, "seconds": p.c.SaveTakes.Seconds()}
	p.answers["saved"+req] = out
	p.mu.Unlock()
	p.say(out)
}
