// Package detectcmd is `pitcrew detect`: the detector's engine of single series on a CSV file, in one pass. It promises that what
// it writes of a row depends on that row and those before it, and on nothing else.
package detectcmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/detector/series"
)

// Options of a run.
type Options struct {
	In, Out, Findings, Plot, Siblings string
	SeriesBy, Step, Timestamp         string
	Values                            []string  // columns to judge; none: those with a number in the first row
	Strict                            bool      // rows that cannot be judged are an error
	Backtest                          io.Writer // nil: not asked for
	JSON                              bool      // what the backtest says
	Config                            Config
	Stdin                             io.Reader // what "-" is
	Stdout                            io.Writer
	Notes                             io.Writer // for the summary; nil: none
}

// Config is the file given with --config.
type Config struct {
	Asked   float64                 `yaml:"asked"`   // false onsets per series-hour
	Profile series.Profile          `yaml:"profile"` // training | facility; empty: by the observed interval
	Kind    string                  `yaml:"kind"`    // ratio | level | counter; empty: by the values
	Bad     string                  `yaml:"bad"`     // high | low | both: the side of the expected on which values are bad; empty: both
	Signals map[string]SignalConfig `yaml:"signals"` // by value column
}

// SignalConfig is what is known of one value column.
type SignalConfig struct {
	Kind string `yaml:"kind"`
	Bad  string `yaml:"bad"`
}

var kinds = map[string]series.Kind{"": series.Auto, "ratio": series.Ratio, "level": series.Level, "counter": series.Counter}

var sides = map[string]series.Direction{"": series.Both, "both": series.Both, "high": series.High, "low": series.Low}

func (c Config) check() error {
	if _, ok := sides[c.Bad]; !ok {
		return fmt.Errorf("bad %q: high, low or both", c.Bad)
	}
	if _, ok := kinds[c.Kind]; !ok {
		return fmt.Errorf("kind %q: ratio, level or counter", c.Kind)
	}
	for name, s := range c.Signals {
		if _, ok := kinds[s.Kind]; !ok {
			return fmt.Errorf("signals: %s: kind %q: ratio, level or counter", name, s.Kind)
		}
		if _, ok := sides[s.Bad]; !ok {
			return fmt.Errorf("signals: %s: bad %q: high, low or both", name, s.Bad)
		}
	}
	_, err := series.New(series.Config{Asked: c.Asked, Profile: c.Profile})
	return err
}

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
	var o Options
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
			return Run(c.Context(), o)
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

func readConfig(path string, c *Config) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalWithOptions(b, c, yaml.Strict()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Run judges a file. What it writes takes its name at the end, all of it or nothing.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Config.check(); err != nil {
		return err
	}
	if err := o.checkFiles(); err != nil {
		return err
	}
	in := interruptible(ctx, o.Stdin)
	if o.In != "-" {
		f, err := os.Open(o.In)
		if err != nil {
			return err
		}
		defer f.Close()
		in = interruptible(ctx, f)
	}
	files := outputs{stdout: o.Stdout}
	defer func() { err = errors.Join(err, files.discard()) }()
	var to [3]io.Writer
	for i, path := range []string{o.Out, o.Findings, o.Plot} {
		if to[i] = io.Discard; path == "" {
			continue
		}
		if to[i], err = files.create(path); err != nil {
			return err
		}
	}
	out, found := bufio.NewWriterSize(to[0], 64<<10), bufio.NewWriter(to[1])
	r, err := newRun(o, in, out, found)
	if err == nil {
		err = r.all(ctx)
	}
	if err != nil {
		if o.Notes != nil && errors.Is(err, context.Canceled) {
			fmt.Fprintf(o.Notes, "%s: interrupted; no file is changed\n", o.In)
		}
		return fmt.Errorf("%s: %w", o.In, err)
	}
	if err := errors.Join(out.Flush(), found.Flush()); err != nil {
		return err
	}
	if o.Plot != "" {
		if err := r.plot.write(to[2]); err != nil {
			return fmt.Errorf("%s: %w", o.Plot, err)
		}
	}
	if err := files.commit(); err != nil {
		return err
	}
	if o.Notes != nil {
		r.report(o.Notes)
	}
	return nil
}

// checkFiles keeps what is read from being written over, and two texts out of one stream.
func (o Options) checkFiles() error {
	if o.Out == "" && o.Findings == "" && o.Plot == "" && o.Backtest == nil {
		return errors.New("nothing to do: ask for --out, --findings, --plot or --backtest")
	}
	if o.Plot == "-" {
		return errors.New("--plot -: name a file")
	}
	on := ""
	for _, f := range []struct {
		flag string
		is   bool
	}{{"--backtest", o.Backtest != nil}, {"--out -", o.Out == "-"}, {"--findings -", o.Findings == "-"}} {
		switch {
		case f.is && on != "":
			return fmt.Errorf("%s and %s would both be on standard output: name a file for one", on, f.flag)
		case f.is:
			on = f.flag
		}
	}
	taken := map[string]string{}
	for _, f := range []struct{ flag, path string }{{"--in", o.In}, {"--out", o.Out}, {"--findings", o.Findings}, {"--plot", o.Plot}} {
		if f.path == "" || f.path == "-" {
			continue
		}
		for flag, other := range taken {
			if sameFile(f.path, other) {
				return fmt.Errorf("%s: %s and %s name the same file", f.path, flag, f.flag)
			}
		}
		taken[f.flag] = f.path
	}
	if o.Plot != "" && !strings.EqualFold(filepath.Ext(o.Plot), ".png") {
		return fmt.Errorf("--plot %s: it writes PNG only; name a file that ends in .png", o.Plot)
	}
	return nil
}

// sameFile tells by what is on disk where both are there (links), otherwise by name.
func sameFile(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	if errA == nil && errB == nil {
		return x.Mode().IsRegular() && os.SameFile(x, y) // /dev/null may be named twice
	}
	return filepath.Clean(a) == filepath.Clean(b)
}
