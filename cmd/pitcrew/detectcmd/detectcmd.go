// Package detectcmd is `pitcrew detect`: the flags of detector/offline, which judges a CSV file.
package detectcmd

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/detector/offline"
	"github.com/pitcrew/pitcrew/detector/series"
)

const long = `Run the anomaly detector on a CSV file: one pass, no thresholds set by hand, and no row's verdict depends on a later row.

The first line names the columns. "timestamp" is RFC 3339, "2006-01-02 15:04:05" (UTC), or seconds since 1970; every other column
whose first value is a number is judged. In long form --series-by names the column that tells series apart. Columns "phase" and
"workload" say what a job does: a change of either is no anomaly, and "warmup" is never judged. A column "step" aligns a run with
its --siblings.

The output repeats each row and adds anomaly_score (0 to 1; from 0.5 on beyond the threshold), alarm (1 while a finding is open),
expected, lower and upper, with VALUE_ before each where there are several value columns. What is not judged has score 0 and no
expected value: unknown, not normal. A series is learnt from its first 24 values (intervals below a minute, profile training) or
200 (profile facility).

Kinds of finding, named when they end:
  spike     off its band and back within two minutes of its onset
  shift     a new level: off its band for two minutes and longer, or for so long that it became the new baseline
  drift     left its band too slowly for the fast evidence, and was back within two minutes
  stall     one value and its interval three times as long as usual, and 1.5 s longer
  flatline  stands still for 30 s and 120 values and 20 times the longest rest before
  novel     profile facility: unlike what came before, in value, level or spread
  absent    no value for three intervals while rows go on

The two minutes are a convention; duration_s in the findings and in -o json says how long each was. gpu_seconds_lost_per_gpu counts from
the onset and is about series of durations.

Severity: "warning" is against a schedule that was told (columns phase, workload) or that siblings showed, "info" is not. A node's agent
says either as information until another signal bears it out (docs/anomalies.md). With "bad: high" or "bad: low" in the configuration, for all
columns or for one of its signals, a change to the other side is "info" whatever was told, and soon the new baseline.

Files appear when all of them are whole; after an error or Ctrl-C they are as they were. A summary goes to standard error.`

// Command is `pitcrew detect`.
func Command() *cobra.Command {
	var o offline.Options
	var config, output string
	var backtest bool
	c := &cobra.Command{
		Use: "detect --in FILE [--out FILE]", Short: "Run the anomaly detector on a CSV file", Long: long,
		Example: "  pitcrew detect --in steps.csv --out judged.csv --findings found.jsonl --plot steps.png\n" +
			"  pitcrew detect --in run7.csv --siblings runs/ --backtest\n" +
			"  tail -n +1 -F steps.csv | pitcrew detect --in - --out -",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if config != "" {
				asked := o.Config.Asked
				if err := readConfig(config, &o.Config); err != nil {
					return err
				}
				if c.Flags().Changed("asked-rate") {
					o.Config.Asked = asked
				}
			}
			switch output {
			case "text":
			case "json":
				o.JSON = true
			default:
				return fmt.Errorf("unknown output %q; text or json", output)
			}
			if backtest {
				o.Backtest = c.OutOrStdout()
			}
			if o.Config.Asked == 0 {
				return errors.New("asked rate 0: above 0 and at most 600 onsets per series-hour")
			}
			o.Stdin, o.Stdout, o.Notes = c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr()
			signal.Ignore(syscall.SIGPIPE) // a closed pipe is an error of ours, after which no half file is left
			return offline.Run(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.In, "in", "", "CSV `file` to judge; - is standard input")
	f.StringVar(&o.Out, "out", "", "CSV `file` to write; - is standard output, row by row")
	f.StringVar(&config, "config", "", "YAML `file`: asked, profile (training, facility), kind (ratio, level, counter), bad (high, low, both), signals (kind and bad by column)")
	f.Float64Var(&o.Config.Asked, "asked-rate", series.AskedShipped, "false onsets per series-hour that are acceptable")
	f.StringVar(&o.Timestamp, "timestamp", "timestamp", "`column` with the time")
	f.StringSliceVar(&o.Values, "value", nil, "`columns` to judge; without it, those with a number in the first row")
	f.StringVar(&o.SeriesBy, "series-by", "", "`column` that tells series apart (long form)")
	f.StringVar(&o.Step, "step", "step", "`column` with the step's number, where the file has it")
	f.StringVar(&o.Findings, "findings", "", "JSON lines `file` for the findings; - is standard output")
	f.StringVar(&o.Siblings, "siblings", "", "`folder` with past runs of the same class, CSV files of the same form")
	f.StringVar(&o.Plot, "plot", "", "PNG `file` (.png): value, band, findings and told changes")
	f.BoolVar(&backtest, "backtest", false, "print what an operator would have been told, when, and why")
	f.StringVarP(&output, "output", "o", "text", "`form` of --backtest: text or json (one object a line)")
	f.BoolVar(&o.Strict, "strict", false, "fail if anything in the file cannot be judged; nothing is written then")
	_ = c.MarkFlagRequired("in")
	return c
}

func readConfig(path string, c *offline.Config) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalWithOptions(b, c, yaml.Strict()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
