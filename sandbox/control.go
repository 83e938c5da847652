package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// NodeStatus is one node in Status.
type NodeStatus struct {
	Name   string `json:"name"`
	IP     string `json:"ip"`
	Rack   string `json:"rack"`
	Up     bool   `json:"up"`
	BootID string `json:"boot_id"`
	GPUs   []GPU  `json:"gpus"`
}

// Status is what the sandbox knows of itself, without asking the cluster.
type Status struct {
	Dir         string       `json:"dir"`
	PID         int          `json:"pid"`
	Kubeconfig  string       `json:"kubeconfig"`
	AuditLog    string       `json:"audit_log"`
	Logs        string       `json:"logs"`
	Checkpoints string       `json:"checkpoints"`
	Nodes       []NodeStatus `json:"nodes"`
	Ranks       []Rank       `json:"ranks"`
	Processes   []Process    `json:"processes"`
}

func (s *Sandbox) Status() Status {
	st := Status{Dir: s.dir, PID: os.Getpid(), Kubeconfig: s.Kubeconfig(), AuditLog: s.AuditLog(), Logs: s.Logs(), Checkpoints: s.Checkpoints(),
		Ranks: s.Ranks(), Processes: s.Processes()}
	for _, n := range s.nodes {
		st.Nodes = append(st.Nodes, NodeStatus{Name: n.Name, IP: n.IP, Rack: n.Rack, Up: n.Up(), BootID: n.BootID(), GPUs: n.GPUs})
	}
	return st
}

// controlSocket lies in the state directory; only the owner of the directory can reach it.
const controlSocket = "sandbox.sock"

// ServeControl lets other processes of this user steer the sandbox through Remote. It returns at once; the channel is closed when
// somebody asks for the sandbox to go down.
func (s *Sandbox) ServeControl() (<-chan struct{}, error) {
	l, err := net.Listen("unix", filepath.Join(s.dir, controlSocket))
	if err != nil {
		return nil, fmt.Errorf("sandbox: control socket: %w", err)
	}
	if err := os.Chmod(filepath.Join(s.dir, controlSocket), 0o600); err != nil {
		return nil, err
	}
	down := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.Status(), nil) })
	mux.HandleFunc("POST /fault", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		if err := json.NewDecoder(r.Body).Decode(&f); err != nil {
			reply(w, nil, err)
			return
		}
		in, err := s.Fault(r.Context(), f)
		reply(w, in, err)
	})
	mux.HandleFunc("POST /repair/{node}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, struct{}{}, s.Repair(r.Context(), r.PathValue("node")))
	})
	mux.HandleFunc("POST /down", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, struct{}{}, nil)
		select {
		case <-down:
		default:
			close(down)
		}
	})
	srv := &http.Server{Handler: mux}
	s.control.Store(srv)
	go func() { _ = srv.Serve(l) }()
	return down, nil
}

func (s *Sandbox) closeControl() {
	if srv := s.control.Load(); srv != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // let the answer to /down out
		defer cancel()
		_ = srv.Shutdown(ctx)
	}
}

func reply(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		v = map[string]string{"error": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(v)
}

// Remote steers a sandbox that another process runs.
type Remote struct {
	dir    string
	client *http.Client
}

// Connect finds the sandbox with that state directory.
func Connect(dir string) (*Remote, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Remote{dir: dir, client: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, controlSocket))
	}}}}
	if _, err := r.Status(context.Background()); err != nil {
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("no sandbox runs in %s; `pitcrew sandbox up` starts one, --dir names another", dir)
		}
		return nil, fmt.Errorf("the sandbox in %s does not answer: %w", dir, err)
	}
	return r, nil
}

func (r *Remote) Status(ctx context.Context) (st Status, err error) {
	err = r.call(ctx, http.MethodGet, "/status", nil, &st)
	return st, err
}

func (r *Remote) Fault(ctx context.Context, f Fault) (in Injected, err error) {
	err = r.call(ctx, http.MethodPost, "/fault", f, &in)
	return in, err
}

func (r *Remote) Repair(ctx context.Context, node string) error {
	return r.call(ctx, http.MethodPost, "/repair/"+node, nil, nil)
}

func (r *Remote) Down(ctx context.Context) error {
	return r.call(ctx, http.MethodPost, "/down", nil, nil)
}

func (r *Remote) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://sandbox"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var e struct {
			Error string `json:"error"`
		}
		_ = json.NewDecoder(resp.Body).Decode(&e)
		return errors.New(e.Error)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}
