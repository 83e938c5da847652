package bus

import (
	"errors"
	"fmt"
	"log/slog"
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
	// Auth is the part of nats-server's own configuration that says who may connect; empty: everybody, and as everything.
	Auth   string
	Logger *slog.Logger // told whom the server refuses, and what; optional
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
	opts := &server.Options{}
	if o.Auth != "" {
		if err := opts.ProcessConfigString(o.Auth); err != nil {
			return nil, fmt.Errorf("embedded NATS: who may connect: %w", err)
		}
	}
	opts.ServerName, opts.Host, opts.Port, opts.JetStream, opts.StoreDir, opts.SyncAlways = "pitcrew-bus", o.Host, o.Port, true, o.Dir, o.SyncAlways
	opts.NoSigs, opts.NoLog, opts.MaxPayload = true, true, 1<<20
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS: %w", err)
	}
	if o.Logger != nil {
		s.SetLogger(serverLog{o.Logger}, false, false)
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

// serverLog passes on what the server complains of, and not that it works.
type serverLog struct{ log *slog.Logger }

func (serverLog) Noticef(string, ...any)           {}
func (serverLog) Debugf(string, ...any)            {}
func (serverLog) Tracef(string, ...any)            {}
func (l serverLog) Warnf(format string, v ...any)  { l.log.Warn(fmt.Sprintf(format, v...)) }
func (l serverLog) Errorf(format string, v ...any) { l.log.Error(fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any) { l.log.Error(fmt.Sprintf(format, v...)) }
