package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
		{"nonsense", `unknown command "nonsense"`},
	} {
		root := commands()
		root.SetArgs(strings.Fields(test.args))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "arg(s)") {
			t.Errorf("pitcrew %s: %v, want %q in it", test.args, err, test.says)
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
