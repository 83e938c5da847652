package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestAWordThatNoCommandHasIsAnError(t *testing.T) {
	run := func(args ...string) error {
		root := &cobra.Command{Use: "pitcrew", SilenceUsage: true, SilenceErrors: true}
		group := &cobra.Command{Use: "group"}
		group.AddCommand(&cobra.Command{Use: "list", RunE: func(*cobra.Command, []string) error { return nil }})
		root.AddCommand(group)
		refuseUnknown(root)
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
