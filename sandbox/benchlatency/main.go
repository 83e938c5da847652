// Command benchlatency reads what `go test -bench` prints, gives the percentiles of the two latency benchmarks as a table, and
// writes them as JSON: go test … | go run ./sandbox/benchlatency --out bench/out/latency.json
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// latency is one run of a benchmark.
type latency struct {
	N     int     `json:"n"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
	Pause string  `json:"pause"` // between what is measured; 0s: each as soon as the last was answered
}

// report is the file. The first run of a benchmark, one at a time, is its figure; Runs are all of them.
type report struct {
	KernelToAck *latency             `json:"kernel_to_ack"`
	AckToCordon *latency             `json:"ack_to_cordon"`
	Runs        map[string][]latency `json:"runs"`
	CPUs        int                  `json:"cpus"`
	CPU         string               `json:"cpu"`
}

// benchmarks are the names that are read.
var benchmarks = map[string]string{"BenchmarkKernelLineToStoredEvent": "kernel_to_ack", "BenchmarkAckedEventToAnsweredCordon": "ack_to_cordon"}

func main() {
	out := flag.String("out", "bench/out/latency.json", "file to write")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *out); err != nil {
		fmt.Fprintln(os.Stderr, "benchlatency:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, say io.Writer, out string) error {
	r, err := read(in, say)
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(out, append(raw, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(say, "\n%-16s %-8s %7s %10s %10s %10s\n", "from → to", "pause", "n", "p50 ms", "p99 ms", "max ms")
	for _, name := range []string{"kernel_to_ack", "ack_to_cordon"} {
		for _, l := range r.Runs[name] {
			fmt.Fprintf(say, "%-16s %-8s %7d %10.2f %10.2f %10.2f\n", name, l.Pause, l.N, l.P50, l.P99, l.Max)
		}
	}
	_, err = fmt.Fprintf(say, "on %d cores (%s); written to %s\n", r.CPUs, r.CPU, out)
	return err
}

// read takes what it knows from the lines, and passes the rest on.
func read(in io.Reader, rest io.Writer) (*report, error) {
	r := &report{Runs: map[string][]latency{}, CPUs: runtime.NumCPU()}
	s := bufio.NewScanner(in)
	for s.Scan() {
		line := s.Text()
		if cpu, ok := strings.CutPrefix(line, "cpu: "); ok {
			r.CPU = cpu
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		name, l, ok := parse(fields)
		if !ok {
			fmt.Fprintln(rest, line)
			continue
		}
		r.Runs[name] = append(r.Runs[name], l)
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	for name, to := range map[string]**latency{"kernel_to_ack": &r.KernelToAck, "ack_to_cordon": &r.AckToCordon} {
		if len(r.Runs[name]) == 0 {
			return nil, fmt.Errorf("no run of the benchmark for %s came in", name)
		}
		*to = &r.Runs[name][0]
	}
	return r, nil
}

// parse reads a line such as "BenchmarkX/pause=0s-2  120  5193 ns/op  3.5 max-ms  0.9 p50-ms  2.7 p99-ms".
func parse(fields []string) (name string, l latency, ok bool) {
	full, sub, _ := strings.Cut(fields[0], "/")
	name, ok = benchmarks[full]
	if !ok || len(fields) < 4 {
		return "", l, false
	}
	sub, _, _ = strings.Cut(strings.TrimPrefix(sub, "pause="), "-")
	l.Pause = sub
	var err error
	if l.N, err = strconv.Atoi(fields[1]); err != nil {
		return "", l, false
	}
	to := map[string]*float64{"p50-ms": &l.P50, "p99-ms": &l.P99, "max-ms": &l.Max}
	for i := 2; i+1 < len(fields); i += 2 {
		if p := to[fields[i+1]]; p != nil {
			if *p, err = strconv.ParseFloat(fields[i], 64); err != nil {
				return "", l, false
			}
			delete(to, fields[i+1])
		}
	}
	return name, l, len(to) == 0
}
