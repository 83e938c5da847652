package doctorcmd

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	kube "github.com/pitcrew/pitcrew/remediator/cluster"
	"github.com/pitcrew/pitcrew/sandbox"
)

type options struct {
	bus                   connect.Flags
	kubeconfig, namespace string
	root                  string
	on                    []string
}

// Command is `pitcrew doctor`.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use: "doctor", Args: cobra.NoArgs,
		Short: "What works, what is missing, and how to fix it: on a laptop, on a cluster, on a node",
		Long: `What works, what is missing, and how to fix it. It changes nothing.

Without --on, it examines what it finds: the laptop in a clone of the repository, the cluster if there is a kubeconfig,
the node if it has an NVIDIA GPU. The exit code is 7 if a check failed.`,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	o.bus.Register(c.Flags())
	c.Flags().StringSliceVar(&o.on, "on", nil, "`places` to examine: laptop, cluster, node")
	c.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig (KUBECONFIG)")
	c.Flags().StringVar(&o.namespace, "namespace", "", "Pitcrew's namespace (default pitcrew-system)")
	c.Flags().StringVar(&o.root, "root", "/", "the node's file system, as a container sees it")
	return c
}

func (o *options) run(c *cobra.Command) error {
	if err := o.bus.Check(); err != nil {
		return err
	}
	for _, p := range o.on {
		if !slices.Contains(places, place(p)) {
			return exit.With(exit.Usage, fmt.Errorf("unknown place %q; one of: laptop, cluster, node", p))
		}
	}
	survey, noCluster := kube.SurveyOf(o.kubeconfig, o.namespace)
	results := []Result{}
	out, last := c.OutOrStdout(), place("")
	each := func(r Result) {
		results = append(results, r)
		if o.bus.Structured() {
			return
		}
		if r.Where != last {
			fmt.Fprintf(out, "%s\n", strings.ToUpper(string(r.Where)))
			last = r.Where
		}
		r.write(out)
	}
	for _, where := range o.places(noCluster == nil) {
		switch where {
		case laptop:
			examine(c.Context(), where, laptopChecks(), each)
		case node:
			examine(c.Context(), where, host(o.root).checks(), each)
		case cluster:
			if noCluster != nil {
				each(Result{cluster, "kubeconfig", Bad, noCluster.Error(), "see https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/"})
				continue
			}
			examine(c.Context(), where, clusterChecks(survey, &o.bus), each)
		}
	}
	if err := c.Context().Err(); err != nil {
		return err
	}
	if done, err := o.bus.Encode(out, results); done && err != nil {
		return err
	}
	return verdict(results, out, o.bus.Structured())
}

// places are those asked for, or those that are there.
func (o *options) places(kubeconfig bool) (out []place) {
	if len(o.on) > 0 {
		for _, p := range o.on {
			out = append(out, place(p))
		}
		return out
	}
	if _, err := sandbox.RepoRoot(); err == nil {
		out = append(out, laptop)
	}
	if kubeconfig {
		out = append(out, cluster)
	}
	if _, err := os.Stat(host(o.root).path("/dev/nvidia0")); err == nil {
		out = append(out, node)
	}
	if len(out) == 0 {
		return []place{cluster}
	}
	return out
}

var marks = map[Grade]string{OK: "✓", Warn: "!", Bad: "✗", Unknown: "?"}

func (r Result) write(out io.Writer) {
	fmt.Fprintf(out, "  %s %-24s %s\n", marks[r.Grade], r.Check, r.Found)
	if r.Remedy != "" {
		fmt.Fprintf(out, "    %-24s → %s\n", "", r.Remedy)
	}
}

func verdict(results []Result, out io.Writer, quiet bool) error {
	count := map[Grade]int{}
	for _, r := range results {
		count[r.Grade]++
	}
	if !quiet {
		fmt.Fprintf(out, "\n%d ok, %d with a limit, %d unknown, %d failed\n", count[OK], count[Warn], count[Unknown], count[Bad])
	}
	if count[Bad] == 0 {
		return nil
	}
	return exit.With(exit.Unhealthy, fmt.Errorf("%d of %d checks failed", count[Bad], len(results)))
}
