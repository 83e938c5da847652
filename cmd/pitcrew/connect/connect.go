// Package connect holds the flags by which the CLI's commands reach the bus.
package connect

import (
	"context"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/pitcrew/pitcrew/bus"
)

// Flags name the bus and the form of output.
type Flags struct {
	Output
	url, cluster, creds, tokenFile string
	wait                           time.Duration
}

// Register adds the flags. Each has an environment variable as its default.
func (f *Flags) Register(p *pflag.FlagSet) {
	p.StringVar(&f.url, "nats", envOr("PITCREW_NATS", bus.DefaultURL), "address of NATS (PITCREW_NATS)")
	p.StringVar(&f.cluster, "cluster", envOr("PITCREW_CLUSTER", bus.DefaultCluster), "name of the cluster (PITCREW_CLUSTER)")
	p.StringVar(&f.creds, "creds", os.Getenv("PITCREW_NATS_CREDS"), "NATS credentials file (PITCREW_NATS_CREDS)")
	p.StringVar(&f.tokenFile, "token-file", os.Getenv("PITCREW_NATS_TOKEN_FILE"), "file of a service account's token for NATS (PITCREW_NATS_TOKEN_FILE)")
	f.Output.Register(p)
	p.DurationVar(&f.wait, "wait", 5*time.Second, "how long to wait for NATS, or for an answer")
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// Wait is how long whoever is waited for has.
func (f *Flags) Wait() time.Duration { return f.wait }

// Open connects and calls do, or says what is missing.
func (f *Flags) Open(ctx context.Context, do func(context.Context, *bus.Bus) error) error {
	if err := f.Check(); err != nil {
		return err
	}
	waited, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	b, err := bus.Connect(bus.Options{URL: f.url, Cluster: f.cluster, Creds: f.creds, TokenFile: f.tokenFile, Name: "pitcrew-cli"})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Wait(waited); err != nil {
		return err
	}
	return b.Explain(do(ctx, b))
}
