// Package buscmd is `pitcrew bus`: the embedded NATS server as a process of its own, for a single machine.
package buscmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
)

// Command is `pitcrew bus`.
func Command() *cobra.Command {
	var o bus.ServerOptions
	c := &cobra.Command{
		Use: "bus", Short: "Run the embedded NATS server with JetStream (any NATS of your own does as well)", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
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
	return c
}
