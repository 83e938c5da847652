// Command detectorbench measures the detector's quality on real recordings and writes one JSON report.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pitcrew/pitcrew/bench"
)

func main() {
	data := flag.String("data", os.Getenv("PITCREW_DATA"), "folder with the recordings; default $PITCREW_DATA")
	out := flag.String("out", "bench/out/detector.json", "report to write")
	nab := flag.String("nab", "", "folder for the scores of the benchmark's streams, for the scorer; empty: not written")
	examples := flag.String("examples", "", "folder for runs with a fault, hits and misses, to be drawn by pitcrew detect; nothing is measured then")
	flag.Parse()
	if *examples != "" {
		if err := bench.WriteExamples(*data, *examples); err != nil {
			fmt.Fprintln(os.Stderr, "detectorbench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*data, *out, *nab); err != nil {
		fmt.Fprintln(os.Stderr, "detectorbench:", err)
		os.Exit(1)
	}
}

func run(data, out, nab string) error {
	if data == "" {
		return fmt.Errorf("no recordings: give -data or set PITCREW_DATA")
	}
	r, err := bench.Quality(data)
	if err != nil {
		return err
	}
	if nab != "" {
		if err := bench.WriteNAB(data, nab); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(out, append(b, '\n'), 0o644); err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(b, '\n'))
	return err
}
