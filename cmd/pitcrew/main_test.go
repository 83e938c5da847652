package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestWrongArgumentsAreAnErrorThatSaysWhatIsRight(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"incident show", "usage: pitcrew incident show ID"},
		{"incident show a b", "2 arguments given"},
		{"incident list x", `"x" given to "pitcrew incident list"`},
		{"anomaly ack", "usage: pitcrew anomaly ack FINDING [SUBJECT]"},
		{"xid nonsense", "`pitcrew xid --help` lists them"},
		{"xid explain", "usage: pitcrew xid explain CODE..."},
		{"completion nonsense", "`pitcrew completion --help` lists them"},
		{"help nonsense", "`pitcrew --help` lists them"},
		{"help incident nonsense", "no help"},
		{"nonsense", `unknown command "nonsense" for "pitcrew"; ` + "`pitcrew --help` lists them"},
		{"incidnt list", "did you mean incident? `pitcrew --help`"},
		{"incident shwo", "did you mean show?"},
		{"incident list --nope", "`pitcrew incident list --help` lists the flags"},
		{"policy explain", `"event", "policies" not set; usage: pitcrew policy explain --event FILE`},
		{"detect", `"in" not set; usage: pitcrew detect --in FILE`},
	} {
		root := commands()
		root.SetArgs(strings.Fields(test.args))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "arg(s)") || strings.Contains(err.Error(), "\n") {
			t.Errorf("pitcrew %s: %v, want %q in it, on one line", test.args, err, test.says)
		}
	}
	for _, args := range []string{"help", "help incident show", "incident --help", "--version"} {
		root := commands()
		root.SetArgs(strings.Fields(args))
		var out strings.Builder
		root.SetOut(&out)
		if err := root.Execute(); err != nil || out.Len() == 0 {
			t.Errorf("pitcrew %s: %v, %d bytes", args, err, out.Len())
		}
	}
}

func TestTheValueOfEachFlagHasANameOfOneWord(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if name, _ := pflag.UnquoteUsage(f); strings.Contains(name, " ") { // of what stands between backticks
				t.Errorf("%s --%s %s", c.CommandPath(), f.Name, name)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(commands())
}

func TestAWordThatNoCommandHasIsAnError(t *testing.T) {
	run := func(args ...string) error {
		root := &cobra.Command{Use: "pitcrew", SilenceUsage: true, SilenceErrors: true}
		group := &cobra.Command{Use: "group"}
		group.AddCommand(&cobra.Command{Use: "list", RunE: func(*cobra.Command, []string) error { return nil }})
		root.AddCommand(group)
		sayUsage(root)
		root.SetArgs(args)
		root.SetOut(io.Discard)
		return root.Execute()
	}
	if err := run("group", "lsit"); err == nil || !strings.Contains(err.Error(), `"lsit"`) {
		t.Errorf("a misspelt word: %v", err)
	}
	for _, args := range [][]string{{"group"}, {"group", "list"}} {
		if err := run(args...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestStandardOutputIsJSONOrNothingWhereJSONIsAskedFor(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	quiet := filepath.Join(t.TempDir(), "quiet.log")
	if err := os.WriteFile(quiet, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, empty := range map[string]bool{ // true: an error, or no line found
		"xid list": false, "xid list --sxid": false, "xid explain 79": false, "xid explain 79 9999": false, "xid explain nonsense": true, "xid parse " + quiet: true, "xid parse " + none: true,
		"policy check ../../deploy/policies": false, "policy check " + none: false, "policy simulate --policy ../../deploy/policies --events " + quiet: false,
		"policy explain --policies ../../deploy/policies --event ../../event/testdata/xid79.json": false, "policy explain --policies " + none + " --event -": true,
		"incident list --wait 1ms --nats nats://127.0.0.1:1": true, "incident show x --wait 1ms --nats nats://127.0.0.1:1": true, "anomaly list --wait 1ms --nats nats://127.0.0.1:1": true,
		"anomaly ack nonsense": true, "pause --wait 1ms --nats nats://127.0.0.1:1": true, "sandbox status --dir " + none: true, "sandbox logs --dir " + none: true, "sandbox down --dir " + none: false,
		"demo --fault nonsense": true, "demo bench --n 0": true, "detect --backtest --in " + none: true, "incident show": true,
	} {
		root := commands()
		var out bytes.Buffer
		root.SetArgs(append(strings.Fields(args), "-o", "json"))
		root.SetOut(&out)
		root.SetErr(io.Discard)
		err := root.Execute()
		for d := json.NewDecoder(bytes.NewReader(out.Bytes())); ; {
			var v any
			if e := d.Decode(&v); e == io.EOF {
				break
			} else if e != nil {
				t.Errorf("pitcrew %s: %v in\n%.200s", args, e, out.String())
				break
			} else if v == nil {
				t.Errorf("pitcrew %s: null", args)
			}
		}
		if empty != (out.Len() == 0) {
			t.Errorf("pitcrew %s: %v, %d bytes of output", args, err, out.Len())
		}
	}
}

func TestEachCommandThatNeedsNATSSaysWhichItDidNotReachAndWhy(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, args := range []string{
		"incident list", "incident show x", "incident watch", "incident approve x", "incident reject x", "anomaly list", "anomaly ack rank/straggler", "anomaly mute rank/straggler --for 1h",
		"anomaly unmute rank/straggler", "anomaly accept rank/straggler", "pause", "resume", "policy simulate --policy ../../deploy/policies",
	} {
		for more, wants := range map[string][]string{
			"":                      {"nats://127.0.0.1:1 is not reachable", "tried for ", "connection refused", "--nats or PITCREW_NATS"},
			" --token-file " + none: {"nats://127.0.0.1:1 is not asked", none + ": no such file", "PITCREW_NATS_TOKEN_FILE"},
		} {
			root := commands()
			root.SetArgs(strings.Fields(args + " --wait 1ms --nats nats://127.0.0.1:1" + more))
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			err := root.Execute()
			for _, want := range wants {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "deadline") || strings.Contains(err.Error(), "\n") {
					t.Errorf("pitcrew %s%s: %v, want %q in it", args, more, err, want)
				}
			}
		}
	}
}
