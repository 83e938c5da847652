package main

import (
	"strings"
	"testing"

	"github.com/pitcrew/pitcrew/cmd/version"
)

func TestTheRemediatorSaysWhichBuildItIs(t *testing.T) {
	c := command()
	var out strings.Builder
	c.SetOut(&out)
	c.SetArgs([]string{"--version"})
	if err := c.Execute(); err != nil || out.String() != "pitcrew-remediator "+version.Of()+"\n" {
		t.Errorf("%v: %q", err, out.String())
	}
}

func TestANumberOfReplicasThatNATSCannotKeepIsRefused(t *testing.T) {
	for _, bad := range []string{"0", "2", "-1"} {
		c := command()
		c.SetArgs([]string{"--nats-replicas", bad})
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--nats-replicas "+bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	t.Setenv("PITCREW_NATS_REPLICAS", "three")
	if err := command().ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "PITCREW_NATS_REPLICAS") {
		t.Errorf("a word: %v", err)
	}
	t.Setenv("PITCREW_NATS_REPLICAS", "3")
	if got := command().Flags().Lookup("nats-replicas").DefValue; got != "3" {
		t.Errorf("from the environment: %s", got)
	}
}

func TestSettingsOfThePageThatCannotWorkAreRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--page :9403":                              "--page-access",
		"--runbooks-base-url wiki/runbooks":         "--runbooks-base-url",
		"--runbooks-base-url javascript:alert(1)//": "--runbooks-base-url",
	} {
		c := command()
		c.SetArgs(strings.Fields(args))
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
