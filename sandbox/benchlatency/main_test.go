package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const printed = `goos: linux
cpu: AMD EPYC
BenchmarkKernelLineToStoredEvent/pause=0s-2         	    2000	    900000 ns/op	        12.5 max-ms	         0.85 p50-ms	         2.5 p99-ms
BenchmarkKernelLineToStoredEvent/pause=5ms-2        	    2000	   5100000 ns/op	        20 max-ms	         1.5 p50-ms	         4 p99-ms
BenchmarkAckedEventToAnsweredCordon/pause=0s-2      	     120	  51930623 ns/op	        36.55 max-ms	         9.083 p50-ms	        28.78 p99-ms
PASS
`

func TestTheFirstRunOfEachBenchmarkIsItsFigure(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "latency.json")
	var said strings.Builder
	if err := run(strings.NewReader(printed), &said, out); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if *r.KernelToAck != (latency{2000, 0.85, 2.5, 12.5, "0s"}) || *r.AckToCordon != (latency{120, 9.083, 28.78, 36.55, "0s"}) || len(r.Runs["kernel_to_ack"]) != 2 || r.CPU != "AMD EPYC" {
		t.Errorf("report %s", raw)
	}
	if !strings.Contains(said.String(), "PASS") || !strings.Contains(said.String(), "28.78") {
		t.Errorf("said %s", said.String())
	}
}

func TestABenchmarkThatDidNotRunIsAnError(t *testing.T) {
	half := printed[:strings.Index(printed, "BenchmarkAcked")] + "BenchmarkAckedEventToAnsweredCordon/pause=0s-2 --- FAIL\n"
	if err := run(strings.NewReader(half), &strings.Builder{}, filepath.Join(t.TempDir(), "x.json")); err == nil || !strings.Contains(err.Error(), "ack_to_cordon") {
		t.Errorf("error %v", err)
	}
}
