// Package offline is the detector's engine of single series on a CSV file, in one pass. It promises that what it writes of a row depends
// on that row and those before it, and on nothing else; and that files appear when all of them are whole, or stay as they were.
package offline

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

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
