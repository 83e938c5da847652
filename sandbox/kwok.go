package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// KwokOptions configure StartKwok.
type KwokOptions struct {
	Stages       string // path of a file of kwok's Stage objects: what becomes of nodes and pods
	LeaseSeconds int    // duration of a node's lease, which is renewed four times as often; 0: 40
	Port         int    // on which every node's kubelet answers /healthz
}

// kwokBinary returns the path of kwok, built once into the cache.
func kwokBinary(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := buildCached(ctx, "kwok", []struct{ name, pkg string }{{"kwok", "sigs.k8s.io/kwok/cmd/kwok"}}, progress)
	return filepath.Join(dir, "kwok"), err
}

// StartKwok runs kwok as the kubelet of every node that is not one of Nodes: pods bound to such a node are running objects without a
// process.
func (s *Sandbox) StartKwok(ctx context.Context, o KwokOptions) error {
	if len(s.nodes) > 0 {
		return errors.New("sandbox: kwok manages every node: start a sandbox without nodes of its own")
	}
	kwok, err := kwokBinary(ctx, s.progress)
	if err != nil {
		return err
	}
	if o.LeaseSeconds == 0 {
		o.LeaseSeconds = 40
	}
	// kwok reads $HOME/.kwok/kwok.yaml too; a run must not depend on what is there.
	home := filepath.Join(s.dir, "kwok")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	port := strconv.Itoa(o.Port)
	return s.StartProcess("", "kwok", []string{kwok, "--kubeconfig", s.Kubeconfig(), "--config", o.Stages, "--manage-all-nodes=true",
		"--node-lease-duration-seconds", strconv.Itoa(o.LeaseSeconds), "--cidr", "10.128.0.1/9", "--node-ip", "127.0.0.1", "--node-port", port,
		"--server-address", fmt.Sprintf("127.0.0.1:%s", port)}, []string{"HOME=" + home, "GOGC=50"})
}
