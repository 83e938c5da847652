package sandboxcmd

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/sandbox"
)

// setup fetches and builds, once, what the sandbox runs on; up and the demo do it by themselves.
func (o *options) setup() *cobra.Command {
	return &cobra.Command{Use: "setup", Args: cobra.NoArgs, Short: "Build the control plane, helm and kwok, and find or install a Python with torch, once, into the cache",
		RunE: func(cmd *cobra.Command, _ []string) error {
			done, err := sandbox.Setup(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), done, func(w io.Writer) {
				fmt.Fprintf(w, "control plane  %s\njobset         %s\nhelm           %s\nkwok           %s\npython         %s (trainer: %s)\n", done.ControlPlane, done.JobSet, done.Helm, done.Kwok, done.Python, done.Trainer)
			})
		}}
}
