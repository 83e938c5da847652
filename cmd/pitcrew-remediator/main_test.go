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
