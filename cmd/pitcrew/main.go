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
	root := &cobra.Command{
		Use: "pitcrew", Short: "GPU training jobs that heal themselves",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(demo.Command(), incidentcmd.Command(), policycmd.Command(), xidcmd.Command(), detectcmd.Command(), anomalycmd.Command(), sandboxcmd.Command(), buscmd.Command())
	root.AddCommand(controlcmd.Commands()...)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "pitcrew:", err)
	}
	if err != nil {
		stop()
		os.Exit(1)
	}
}
