package bus

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// ServerOptions configure the embedded NATS server.
type ServerOptions struct {
	Host       string // default 127.0.0.1
	Port       int    // 0: 4222; -1: any free one
	Dir        string // JetStream's folder; required
	SyncAlways bool   // fsync each write: for enforcing on a cluster
}

// Server is a NATS server inside this process, with file storage of its own.
type Server struct{ s *server.Server }

// StartServer starts the server and returns when it takes connections.
func StartServer(o ServerOptions) (*Server, error) {
	if o.Dir == "" {
		return nil, errors.New("embedded NATS: no storage folder given")
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "pitcrew-bus", Host: o.Host, Port: o.Port, JetStream: true, StoreDir: o.Dir, SyncAlways: o.SyncAlways,
		NoSigs: true, NoLog: true, MaxPayload: 1 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	go s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		s.Shutdown()
		return nil, fmt.Errorf("embedded NATS on %s:%d was not ready in 10 s; is the port taken, or %s in use by another server?", o.Host, o.Port, o.Dir)
	}
	return &Server{s}, nil
}

// URL is where clients connect.
func (s *Server) URL() string { return s.s.ClientURL() }

// Stop shuts down and waits for the files to be closed.
func (s *Server) Stop() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}
