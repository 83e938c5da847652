package rulescmd

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/rules/ruletest"
)

func test() *cobra.Command {
	var o connect.Output
	c := &cobra.Command{
		Use: "test FILE...", Short: "Run unit tests of Prometheus rule files", Args: cobra.MinimumNArgs(1),
		Long: `Run unit tests of Prometheus rule files, in the format of promtool test rules. They are evaluated with Prometheus' own query
engine and alert states, as Pitcrew's own rules are. Native histograms in expectations are not read.

The exit code is 0 if all tests pass, 7 if one fails, 2 if a file cannot be read as tests, and 3 if it does not exist.`,
		Example: "  pitcrew rules test rules/tests/*.yaml\n  pitcrew rules test -o json my-tests.yaml",
		RunE: func(c *cobra.Command, files []string) error {
			if err := o.Check(); err != nil {
				return err
			}
			all, failed := []ruletest.Result{}, 0
			for _, file := range files {
				results, err := ruletest.Run(file)
				if errors.Is(err, fs.ErrNotExist) {
					return exit.With(exit.NotFound, err)
				}
				if err != nil {
					return exit.With(exit.Usage, err)
				}
				all = append(all, results...)
			}
			for _, r := range all {
				if len(r.Failures) > 0 {
					failed++
				}
			}
			done, err := o.Encode(c.OutOrStdout(), all)
			if err != nil {
				return err
			}
			for _, r := range all {
				for _, f := range r.Failures {
					if !done {
						fmt.Fprintf(c.OutOrStdout(), "%s: %s: %s\n", r.File, r.Name, f)
					}
				}
			}
			if failed > 0 {
				return exit.With(exit.Unhealthy, fmt.Errorf("%d of %d tests failed", failed, len(all)))
			}
			if !done {
				_, err = fmt.Fprintf(c.OutOrStdout(), "%d tests passed\n", len(all))
			}
			return err
		},
	}
	o.Register(c.Flags())
	return c
}
