// Command pitcrew is the one command line of Pitcrew: look at incidents, check policies, explain fault codes, and run the
// demonstration.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/anomalycmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/buscmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/controlcmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/dashboardscmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/detectcmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/doctorcmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/incidentcmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/nodecmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/policycmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/rulescmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/statuscmd"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/terminal"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/xidcmd"
	"github.com/pitcrew/pitcrew/cmd/version"
	"github.com/pitcrew/pitcrew/sandbox/demo"
	"github.com/pitcrew/pitcrew/sandbox/sandboxcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := commands()
	out, errs := terminal.To(os.Stdout), terminal.To(os.Stderr)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(errs, "pitcrew:", strings.TrimSpace(err.Error())) // libraries end theirs with a new line
	}
	if err != nil {
		stop()
		os.Exit(exit.Code(err))
	}
}

// commands are all that the command line has.
func commands() *cobra.Command {
	root := &cobra.Command{
		Use: "pitcrew", Short: "GPU training jobs that heal themselves",
		SilenceUsage: true, SilenceErrors: true, Version: version.Of(),
	}
	root.SetVersionTemplate(version.Template)
	root.AddCommand(demo.Command(), incidentcmd.Command(), nodecmd.Command(), policycmd.Command(), xidcmd.Command(), detectcmd.Command(), dashboardscmd.Command(), anomalycmd.Command(), sandboxcmd.Command(), buscmd.Command())
	root.AddCommand(controlcmd.Commands()...)
	root.AddCommand(rulescmd.Commands()...)
	root.AddCommand(statuscmd.Command(), doctorcmd.Command())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return exit.With(exit.Usage, fmt.Errorf("%w; `%s --help` lists the flags", err, c.CommandPath()))
	})
	nameCommands(root)
	sayUsage(root)
	return root
}

// nameCommands makes an error of one line, which says what is right, of a word that a group of commands does not have. By itself the library
// prints the help and exits with 0, or for the root says it in five lines.
func nameCommands(group *cobra.Command) {
	group.Args, group.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
	group.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		meant := ""
		if like := c.SuggestionsFor(args[0]); len(like) > 0 {
			meant = "did you mean " + strings.Join(like, " or ") + "? "
		}
		return exit.With(exit.Usage, fmt.Errorf("unknown command %q for %q; %s`%s --help` lists them", args[0], c.CommandPath(), meant, c.CommandPath()))
	}
}

// sayUsage makes an error, which says what is right, of words where a group of commands has none of that name, of too many or too few
// arguments, and of a flag that is missing. By itself the library says "accepts 1 arg(s), received 0".
func sayUsage(c *cobra.Command) {
	for _, sub := range c.Commands() {
		takes := sub.Args
		switch {
		case sub.Name() == "help":
			sub.Args = func(_ *cobra.Command, args []string) error {
				if _, rest, err := c.Root().Find(args); err != nil || len(rest) > 0 {
					return exit.With(exit.Usage, fmt.Errorf("no help for %q: there is no such command; `pitcrew --help` lists them", strings.Join(args, " ")))
				}
				return nil
			}
		case sub.HasSubCommands() && !sub.Runnable():
			nameCommands(sub)
		case takes != nil:
			sub.Args = func(c *cobra.Command, args []string) error {
				if takes(c, args) == nil {
					if err := c.ValidateRequiredFlags(); err != nil {
						return exit.With(exit.Usage, fmt.Errorf("%w; usage: %s", err, c.UseLine()))
					}
					return nil
				}
				given := fmt.Sprintf("%d arguments", len(args))
				if len(args) == 1 {
					given = fmt.Sprintf("%q", args[0])
				}
				return exit.With(exit.Usage, fmt.Errorf("%s given to %q; usage: %s", given, c.CommandPath(), c.UseLine()))
			}
		}
		sayUsage(sub)
	}
}
