// Package detectcmd is `pitcrew detect`: the detector's engine of single series on a CSV file, in one pass. It promises that what
// it writes of a row depends on that row and those before it, and on nothing else.
package detectcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/detector/series"
)

// Options of a run.
type Options struct {
	In, Out, Findings, Plot, Siblings string
	SeriesBy, Step                    string
	Backtest                          io.Writer // nil: not asked for
	Config                            Config
}

// Config is the file given with --config.
type Config struct {
	Asked   float64                 `yaml:"asked"`   // false onsets per series-hour
	Profile series.Profile          `yaml:"profile"` // training | facility; empty: by the observed interval
	Kind    string                  `yaml:"kind"`    // ratio | level | counter; empty: by the values
	Signals map[string]SignalConfig `yaml:"signals"` // by value column
}

// SignalConfig is what is known of one value column.
type SignalConfig struct {
	Kind string `yaml:"kind"`
}

var kinds = map[string]series.Kind{"": series.Auto, "ratio": series.Ratio, "level": series.Level, "counter": series.Counter}

func (c Config) check() error {
	if _, ok := kinds[c.Kind]; !ok {
		return fmt.Errorf("kind %q: ratio, level or counter", c.Kind)
	}
	for name, s := range c.Signals {
		if _, ok := kinds[s.Kind]; !ok {
			return fmt.Errorf("signals: %s: kind %q: ratio, level or counter", name, s.Kind)
		}
	}
	_, err := series.New(series.Config{Asked: c.Asked, Profile: c.Profile})
	return err
}

// Command is `pitcrew detect`.
func Command() *cobra.Command {
	var o Options
	var config string
	var backtest bool
	c := &cobra.Command{
		Use: "detect --in FILE --out FILE", Short: "Run the anomaly detector on a CSV file",
		Long: "Run the anomaly detector on a CSV file, in one pass and without thresholds set by hand.\n\n" +
			"The file has a column timestamp (RFC 3339, \"2006-01-02 15:04:05\", or seconds since 1970) and one or more value columns; in long form\n" +
			"--series-by names the column that tells series apart. Columns phase and workload say what a job does; warmup is never judged.\n" +
			"A column step aligns a run with its --siblings. Columns whose first value is no number are repeated and not judged.\n\n" +
			"The output repeats the rows and adds anomaly_score (0 to 1; from 0.5 on beyond the threshold), alarm (1 while a finding is open),\n" +
			"expected, lower and upper, with VALUE_ before each where there are several value columns. Expected is empty while a series is\n" +
			"being learnt: unknown is not normal.",
		Example: "  pitcrew detect --in steps.csv --out judged.csv --findings found.jsonl --plot steps.png\n" +
			"  pitcrew detect --in run7.csv --out judged.csv --siblings runs/ --backtest",
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
			if backtest {
				o.Backtest = c.OutOrStdout()
			}
			if o.Config.Asked == 0 {
				return errors.New("asked rate 0: above 0 and at most 600 onsets per series-hour")
			}
			return Run(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.In, "in", "", "CSV file to judge; - is standard input")
	f.StringVar(&o.Out, "out", "", "CSV file to write; - is standard output")
	f.StringVar(&config, "config", "", "YAML file: asked, profile, kind, signals")
	f.Float64Var(&o.Config.Asked, "asked-rate", series.AskedShipped, "false onsets per series-hour that are acceptable")
	f.StringVar(&o.SeriesBy, "series-by", "", "column that tells series apart (long form)")
	f.StringVar(&o.Step, "step", "step", "column with the step's number, where the file has it")
	f.StringVar(&o.Findings, "findings", "", "JSON lines file for the findings")
	f.StringVar(&o.Siblings, "siblings", "", "folder with past runs of the same class, CSV files of the same form")
	f.StringVar(&o.Plot, "plot", "", "PNG file: value, band and findings")
	f.BoolVar(&backtest, "backtest", false, "print what an operator would have been told")
	_ = c.MarkFlagRequired("in")
	_ = c.MarkFlagRequired("out")
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

// Run judges a file.
func Run(ctx context.Context, o Options) (err error) {
	if err := o.Config.check(); err != nil {
		return err
	}
	if err := o.checkFiles(); err != nil {
		return err
	}
	in := io.Reader(os.Stdin)
	if o.In != "-" {
		f, err := os.Open(o.In)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	out, done, err := create(o.Out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	var found io.Writer = io.Discard
	if o.Findings != "" {
		w, done, err2 := create(o.Findings)
		if err2 != nil {
			return err2
		}
		defer func() { err = errors.Join(err, done()) }()
		found = w
	}
	r, err := newRun(o, in, out, found)
	if err != nil {
		return fmt.Errorf("%s: %w", o.In, err)
	}
	if err := r.all(ctx); err != nil {
		return fmt.Errorf("%s: %w", o.In, err)
	}
	if o.Plot != "" {
		return r.plot.write(o.Plot)
	}
	return nil
}

// checkFiles keeps what is read from being written over: files to write are emptied before the first row is read.
func (o Options) checkFiles() error {
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

func create(path string) (io.Writer, func() error, error) {
	if path == "-" {
		return os.Stdout, func() error { return nil }, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, err
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}
