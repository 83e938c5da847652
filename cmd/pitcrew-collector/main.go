// pitcrew-collector runs Pitcrew's distribution of the OpenTelemetry Collector: agent, dcgm or gateway.
package main

import (
	"fmt"
	"os"

	"github.com/pitcrew/pitcrew/cmd/version"
	"github.com/pitcrew/pitcrew/collector"
)

func main() {
	cmd, err := collector.Command(version.Of())
	if err != nil {
		fmt.Fprintln(os.Stderr, "pitcrew-collector:", err)
		os.Exit(1)
	}
	cmd.SetVersionTemplate(version.Template)
	if cmd.Execute() != nil { // cobra has printed it
		os.Exit(1)
	}
}
