package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pitcrew/pitcrew/remediator/incident"
	"github.com/pitcrew/pitcrew/sandbox"
	"github.com/pitcrew/pitcrew/sandbox/sandboxcmd"
)

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

type flags struct {
	c      Scenario
	fault  string
	keep   bool
	output string
	dir    string
}

// ErrNotHealed is the demo's failure: the job did not step again.
var ErrNotHealed = errors.New("the job was not healed")

// Command is `pitcrew demo`.
func Command() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use: "demo", Short: "Watch a real training job lose a GPU and step again, on a cluster in a box", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr()) },
	}
	p := c.Flags()
	p.StringVar(&f.fault, "fault", string(sandbox.XID79), "what breaks: "+strings.Join(faultNames(), ", "))
	p.IntVar(&f.c.Rank, "rank", 1, "the rank whose node it hits: 0 or 1, up to 3 for a fault that slows a rank")
	p.StringVar(&f.c.Launcher, "launcher", sandbox.LauncherPitcrew, "pitcrew (only the faulty pod moves) or torchrun (the gang is recreated)")
	p.StringVar(&f.c.Workload, "workload", KindJob, "job (Indexed Job) or jobset")
	p.BoolVar(&f.keep, "keep", false, "leave everything running afterwards, until Ctrl-C")
	p.StringVarP(&f.output, "output", "o", "text", "text, or json: one object on standard output")
	p.StringVar(&f.dir, "dir", "", "state directory; default a temporary one, with --keep that of pitcrew sandbox")
	c.AddCommand(benchCommand())
	return c
}

func (f *flags) check() error {
	f.c.Fault = sandbox.FaultKind(f.fault)
	switch {
	case !slices.Contains(healed, f.c.Fault):
		return fmt.Errorf("unknown fault %q; one of %s", f.fault, strings.Join(faultNames(), ", "))
	case f.c.Rank < 0 || f.c.Rank >= f.c.world():
		return fmt.Errorf("rank %d does not exist; the demo's job has ranks 0 to %d", f.c.Rank, f.c.world()-1)
	case f.c.Workload != KindJob && f.c.Workload != KindJobSet:
		return fmt.Errorf("unknown workload %q; job or jobset", f.c.Workload)
	}
	return checkCommon(f.c.Launcher, f.output)
}

// checkCommon checks what the demo and its benchmark both take, before anything is started.
func checkCommon(launcher, output string) error {
	switch {
	case launcher != sandbox.LauncherPitcrew && launcher != sandbox.LauncherTorchrun:
		return fmt.Errorf("unknown launcher %q; pitcrew or torchrun", launcher)
	case output != "text" && output != "json":
		return fmt.Errorf("unknown output %q; text or json", output)
	}
	return nil
}

func faultNames() (names []string) {
	for _, k := range healed {
		names = append(names, string(k))
	}
	return names
}

func (f *flags) run(ctx context.Context, out, progress io.Writer) error {
	if err := f.check(); err != nil {
		return err
	}
	story := out
	if f.output == "json" {
		story = progress
	}
	kept := f.keep && f.dir == ""
	if kept {
		f.dir = sandboxcmd.DefaultDir()
	}
	s, err := SetUp(ctx, f.c.on(StageOptions{Dir: f.dir, JobSet: f.c.Workload == KindJobSet, Auth: true, Page: f.keep, Progress: story}))
	if err != nil {
		return err
	}
	if kept { // not before: a sandbox that is up there already is somebody's
		defer os.RemoveAll(f.dir)
	}
	defer s.Close()
	began := time.Now()
	j, err := s.Submit(ctx, "llm", f.c)
	if err != nil {
		return err
	}
	if f.keep {
		fmt.Fprintf(story, "\nopen this in a browser; it is live during the fault and after it:\n\n  %s\n\n", s.PageURL())
	}
	s.say("job %s/%s submitted: %d pods, %d real %s ranks (gloo), started by %s", Namespace, j.Name, j.World, j.World, s.trainer, f.c.Launcher)
	if err := s.Reached(ctx, j, f.c.warm(), startsWithin); err != nil {
		return err
	}
	s.say("every rank is past step %d; now %s hits rank %d\n", f.c.warm(), f.c.Fault, f.c.Rank)
	r := s.Recover(ctx, j, f.c, func(l string) { fmt.Fprintln(story, incident.FoldLine(l, incident.Columns(story), 0)) })
	s.checkAudit(began, j, &r)
	if f.output == "json" {
		if err := json.NewEncoder(out).Encode(r); err != nil {
			return err
		}
	} else {
		r.write(out)
	}
	if f.keep {
		if err := linger(ctx, s); err != nil {
			return err
		}
	}
	if !r.OK && ctx.Err() != nil { // interrupted: nobody knows
		return ctx.Err()
	}
	if !r.OK {
		return ErrNotHealed
	}
	return nil
}

// linger says how to look around, and waits for Ctrl-C or `pitcrew sandbox down`.
func linger(ctx context.Context, s *Stage) error {
	down, err := s.box.ServeControl()
	if err != nil {
		return err
	}
	token, err := s.Token("pitcrew-operator")
	if err != nil {
		return err
	}
	whole := func(format string, a ...any) { fmt.Fprintf(s.o.Progress, format+"\n", a...) } // what is to be copied is not folded
	whole("\nstill running; Ctrl-C ends it. What happened, why, and how long each part took:\n\n  %s\n\nIn another terminal:", s.PageURL())
	whole("  export KUBECONFIG=%s PITCREW_NATS=%s PITCREW_CLUSTER=%s PITCREW_NATS_TOKEN_FILE=%s", s.box.Kubeconfig(), s.url, ClusterName, token)
	whole("  bin/pitcrew status · incident list · incident show ID · incident watch · incident export ID · pause · resume")
	whole("  bin/pitcrew sandbox --dir %s status · fault KIND --rank R · repair NODE · logs agent", s.box.Dir())
	whole("  bin/pitcrew node list · node uncordon NODE (after a repair) · node hold NODE --reason WHY")
	whole("  kubectl get nodes,pods -A")
	select {
	case <-ctx.Done():
	case <-down:
	}
	return nil
}

func benchCommand() *cobra.Command {
	var n int
	var launcher, out, dir, output string
	c := &cobra.Command{
		Use: "bench", Short: "Repeat it over all faults, ranks and workload kinds on one sandbox, and measure", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if n < 1 {
				return fmt.Errorf("--n %d: at least one recovery", n)
			}
			if err := checkCommon(launcher, output); err != nil {
				return err
			}
			b, err := bench(c.Context(), n, launcher, out, dir, c.ErrOrStderr())
			if err != nil {
				return err
			}
			if output == "json" {
				raw, err := os.ReadFile(out)
				if err != nil {
					return err
				}
				_, err = c.OutOrStdout().Write(raw)
				if err != nil {
					return err
				}
			} else if err := b.Table(c.OutOrStdout()); err != nil {
				return err
			}
			if b.OK < b.N {
				return fmt.Errorf("%d of %d: %w", b.N-b.OK, b.N, ErrNotHealed)
			}
			return nil
		},
	}
	p := c.Flags()
	p.IntVar(&n, "n", 30, "recoveries")
	p.StringVar(&launcher, "launcher", sandbox.LauncherPitcrew, "pitcrew or torchrun")
	p.StringVar(&out, "out", "bench/out/recovery.json", "file to write")
	p.StringVar(&dir, "dir", "", "state directory; default a temporary one")
	p.StringVarP(&output, "output", "o", "text", "text or json")
	return c
}
