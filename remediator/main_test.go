package remediator_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox/sandboxtest"
)

// asRemediator is the word that makes the test binary a remediator.
const asRemediator = "remediator"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asRemediator {
		if err := runRemediator(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	sandboxtest.Main(m)
}

// lease is short for a test, and whole seconds as a Lease is.
const lease = 2 * time.Second

// runRemediator is a candidate that sends itself a signal after the step that it is told, before that is recorded.
func runRemediator(args []string) error {
	o := remediator.Options{Cluster: "bench", Namespace: "pitcrew-system", Elect: true, Lease: lease, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	var policies, after string
	var number int
	f := flag.NewFlagSet(asRemediator, flag.ContinueOnError)
	f.StringVar(&o.NATS, "nats", "", "")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "")
	f.StringVar(&policies, "policies", "", "")
	f.StringVar(&o.Audit, "audit", "", "")
	f.StringVar(&o.Identity, "identity", "", "")
	f.StringVar(&after, "after", "", "")
	f.IntVar(&number, "signal", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	o.Policies = strings.Split(policies, ",")
	o.AfterStep = func(s incident.State) {
		if string(s) == after {
			after = ""
			_ = syscall.Kill(os.Getpid(), syscall.Signal(number))
			time.Sleep(100 * time.Millisecond) // a stop takes effect a moment later
		}
	}
	return remediator.Run(context.Background(), o)
}
