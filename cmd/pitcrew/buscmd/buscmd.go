// Package buscmd is `pitcrew bus`: the embedded NATS server as a process of its own, for a single machine, and the keys by which NATS
// asks the remediator who may connect.
package buscmd

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/bus/callout"
	"github.com/pitcrew/pitcrew/deploy"
)

// Command is `pitcrew bus`.
func Command() *cobra.Command {
	var o bus.ServerOptions
	var keys string
	c := &cobra.Command{
		Use: "bus", Short: "Run the embedded NATS server with JetStream (any NATS of your own does as well)", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Port < -1 || o.Port == 0 || o.Port > 65535 { // before anything is written
				return fmt.Errorf("--port %d: a port is 1 to 65535; -1 takes a free one", o.Port)
			}
			o.Logger = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			if keys != "" {
				k, err := made(keys)
				if err != nil {
					return err
				}
				if o.Auth, err = k.Configure(deploy.NATSAuth); err != nil {
					return err
				}
			}
			s, err := bus.StartServer(o)
			if err != nil {
				return err
			}
			defer s.Stop()
			fmt.Fprintln(c.OutOrStdout(), s.URL())
			<-c.Context().Done()
			return nil
		},
	}
	c.Flags().StringVar(&o.Host, "host", "127.0.0.1", "address to listen on")
	c.Flags().IntVar(&o.Port, "port", 4222, "port to listen on; -1 takes a free one")
	c.Flags().StringVar(&o.Dir, "dir", "pitcrew-bus", "folder of the streams")
	c.Flags().BoolVar(&o.SyncAlways, "sync-always", false, "write each message to disk before acknowledging it (for enforcing)")
	c.Flags().StringVar(&keys, "auth-keys", "", "let in only whom a remediator with this file of keys lets in; made if it is not there")
	c.AddCommand(keysCommand())
	return c
}

func keysCommand() *cobra.Command {
	return &cobra.Command{
		Use: "keys FILE", Short: "Make a file of keys for the remediator's --nats-keys, and print the variables of deploy/nats-auth.conf", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := made(args[0])
			if err != nil {
				return err
			}
			public, err := k.Public()
			fmt.Fprint(c.OutOrStdout(), public)
			return err
		},
	}
}

// made are the keys in a file, which is made if need be.
func made(file string) (callout.Keys, error) {
	if err := callout.MakeKeys(file); err != nil {
		return callout.Keys{}, err
	}
	return callout.ReadKeys(file)
}
