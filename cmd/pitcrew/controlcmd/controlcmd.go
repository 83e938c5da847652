// Package controlcmd is `pitcrew pause` and `pitcrew resume`: the kill switch.
package controlcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
)

// Commands are `pitcrew pause` and `pitcrew resume`.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		command("pause", "Stop every action at once; incidents under way wait where they stand", "shown wherever an action is refused for it", true),
		command("resume", "Let Pitcrew act again", "kept with the switch", false),
	}
}

func command(use, short, reasonHelp string, on bool) *cobra.Command {
	var f connect.Flags
	var reason string
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error {
				k := bus.KillSwitch{On: on, By: connect.Operator(), Reason: reason, Since: time.Now().UTC()}
				if err := b.Control().Set(ctx, bus.KillKey, k); err != nil { // whatever lies there
					return err
				}
				if done, err := f.Encode(c.OutOrStdout(), k); done {
					return err
				}
				_, err := fmt.Fprintf(c.OutOrStdout(), "Pitcrew is %s\n", k)
				return err
			})
		},
	}
	f.Register(c.Flags())
	c.Flags().StringVar(&reason, "reason", "", reasonHelp)
	return c
}
