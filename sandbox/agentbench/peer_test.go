package agentbench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/sandbox/freeport"
)

// Env of the peer.
const (
	envPeer       = "DCGM_EXPORTER"     // a built dcgm-exporter; "none": not beside
	envPeerSource = "DCGM_EXPORTER_SRC" // a checkout, which is copied and built; default: a clone
)

// The commit of go-dcgm that dcgm-exporter pins is refused by the Go module proxy. The release replaces it; it is close enough for what is
// measured, and the figures name it.
const (
	peerRepository = "https://github.com/NVIDIA/dcgm-exporter"
	peerReplace    = "github.com/NVIDIA/go-dcgm=github.com/NVIDIA/go-dcgm@v1.4611.0"
)

// peerUse is what dcgm-exporter took under a load.
type peerUse struct {
	usage
	Scrapes scrapes `json:"scrapes"`
}

// peer is a dcgm-exporter that runs.
type peer struct {
	cmd *exec.Cmd
	url string
}

// startPeer starts dcgm-exporter beside the node, on the same stub and at the same 1 Hz. It returns nil and the reason where there is none.
func startPeer(b testing.TB, n *node) (*peer, string) {
	exe, counters, said := buildPeer()
	if exe == "" {
		return nil, said
	}
	at := freeport.Loopback(b)
	args := []string{"-a", at, "-c", "1000"}
	if counters != "" {
		args = append(args, "-f", counters)
	}
	p := &peer{exec.Command(exe, args...), "http://" + at + "/metrics"}
	log, err := os.Create(filepath.Join(n.dir, "dcgm-exporter.log"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = log.Close() })
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = n.env, log, log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Sprintf("does not start: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	b.Cleanup(func() { _ = p.cmd.Process.Signal(syscall.SIGTERM) })
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		select {
		case err := <-ended:
			raw, _ := os.ReadFile(log.Name())
			return nil, fmt.Sprintf("ended at its start (%v): %s", err, raw[max(0, len(raw)-500):])
		default:
		}
		if page, _ := get(p.url); strings.Contains(page, "DCGM_FI_DEV_GPU_TEMP{") {
			return p, said
		}
	}
	_ = p.cmd.Process.Kill()
	return nil, "served no temperature within 30 s"
}

// buildPeer gives a dcgm-exporter and its default counters, or why there is none.
func buildPeer() (exe, counters, said string) {
	if exe = os.Getenv(envPeer); exe == "none" {
		return "", "", "not beside: " + envPeer + "=none"
	} else if exe != "" {
		return exe, os.Getenv("DCGM_EXPORTER_COUNTERS"), exe
	}
	dir, err := os.MkdirTemp("", "dcgm-exporter-")
	if err != nil {
		return "", "", err.Error()
	}
	cleanup = append(cleanup, dir)
	src := filepath.Join(dir, "src")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	run := func(argv ...string) error {
		c := exec.CommandContext(ctx, argv[0], argv[1:]...)
		c.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GOFLAGS=-mod=mod -buildvcs=false")
		if argv[0] == "go" {
			c.Dir = src
		}
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out[max(0, len(out)-300):])))
		}
		return nil
	}
	get := []string{"git", "clone", "-q", "--depth", "1", peerRepository, src}
	if from := os.Getenv(envPeerSource); from != "" {
		get = []string{"cp", "-r", from, src}
	}
	exe = filepath.Join(dir, "dcgm-exporter")
	for _, argv := range [][]string{get, {"go", "mod", "edit", "-replace", peerReplace}, {"go", "build", "-o", exe, "./cmd/dcgm-exporter"}} {
		if err := run(argv...); err != nil {
			return "", "", "cannot be built, so no ratios: " + err.Error() + " (" + envPeerSource + " names a checkout, " + envPeer + " a program)"
		}
	}
	return exe, filepath.Join(src, "etc", "default-counters.csv"), "built with -replace " + peerReplace
}
