// Command pitcrew is the one command line of Pitcrew: look at incidents, check policies, explain fault codes, and run the
// demonstration.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/anomalycmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/buscmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/controlcmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/detectcmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/incidentcmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/policycmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/xidcmd"
	"github.com/pitcrew/pitcrew/sandbox/demo"
	"github.com/pitcrew/pitcrew/sandbox/sandboxcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := commands()
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "pitcrew:", err)
	}
	if err != nil {
		stop()
		os.Exit(1)
	}
}

// commands are all that the command line has.
func commands() *cobra.Command {
	root := &cobra.Command{
		Use: "pitcrew", Short: "GPU training jobs that heal themselves",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(demo.Command(), incidentcmd.Command(), policycmd.Command(), xidcmd.Command(), detectcmd.Command(), anomalycmd.Command(), sandboxcmd.Command(), buscmd.Command())
	root.AddCommand(controlcmd.Commands()...)
	refuseUnknown(root)
	return root
}

// refuseUnknown makes an error of a word that no command below c has: by itself the library prints the help and exits with 0.
func refuseUnknown(c *cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.HasSubCommands() && !sub.Runnable() {
			sub.RunE = func(c *cobra.Command, args []string) error {
				if len(args) == 0 {
					return c.Help()
				}
				return fmt.Errorf("unknown command %q for %q; `%s --help` lists them", args[0], c.CommandPath(), c.CommandPath())
			}
		}
		refuseUnknown(sub)
	}
}
