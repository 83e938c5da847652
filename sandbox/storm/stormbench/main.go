// Command stormbench lets nodes of a large cluster fail at once and measures what the remediator does: make bench-storm.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew/pitcrew/sandbox/storm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stormbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o := storm.Options{Progress: os.Stderr}
	f := flag.NewFlagSet("stormbench", flag.ContinueOnError)
	f.IntVar(&o.Nodes, "nodes", 5000, "nodes of 8 GPUs")
	f.IntVar(&o.Gangs, "gangs", 300, "gangs of up to 512 pods, a node each")
	f.IntVar(&o.Fill, "fill", 6, "pods on each node that belong to no gang")
	f.IntVar(&o.Remediators, "remediators", 2, "remediator processes, one of which leads")
	f.IntVar(&o.Rate, "rate", 5000, "events a second in events-5000")
	f.DurationVar(&o.Duration, "duration", 5*time.Minute, "of events-5000")
	f.DurationVar(&o.Limit, "limit", 2*time.Minute, "how long a case waits for a verdict on every node that failed")
	f.DurationVar(&o.Settle, "settle", time.Minute, "how long a case then waits for its incidents to end")
	f.IntVar(&o.LeaseSeconds, "lease", 120, "duration of a node's lease in seconds, renewed four times as often")
	f.StringVar(&o.Dir, "dir", "", "state directory, for its logs; default a temporary one")
	f.StringVar(&o.Profiles, "profiles", "", "directory for a CPU and an allocation profile of the leader in each case; default none")
	cases := f.String("cases", "", "cases to run, separated by commas or spaces; default all: "+strings.Join(storm.CaseNames(), ","))
	remediator := f.String("remediator", "bin/pitcrew-remediator", "the remediator to measure")
	pitcrew := f.String("pitcrew", "bin/pitcrew", "the program whose command bus runs NATS")
	out := f.String("out", "bench/out/storm.json", "file to write")
	allow := f.Bool("allow-miss", false, "exit with code 0 although a goal was missed")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.Cases = strings.FieldsFunc(*cases, func(r rune) bool { return r == ',' || r == ' ' })
	for path, command := range map[*string]*[]string{remediator: &o.Remediator, pitcrew: &o.Bus} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		if _, err := os.Stat(absolute); err != nil {
			return fmt.Errorf("%w: run `make build`", err)
		}
		*command = []string{absolute}
	}
	o.Bus = append(o.Bus, "bus")
	report, err := storm.Run(ctx, o)
	if len(report.Cases) > 0 {
		if err := write(*out, report); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if met := report.Print(os.Stdout); !met && !*allow {
		return fmt.Errorf("a goal was missed; ALLOW_MISS=1 accepts that")
	}
	return nil
}

func write(path string, r storm.Report) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}
