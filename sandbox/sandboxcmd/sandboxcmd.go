// Package sandboxcmd is `pitcrew sandbox`: a GPU cluster in a box from the command line.
//
// Every subcommand finds the sandbox by its state directory (--dir). With -o json each prints one JSON object and nothing else.
package sandboxcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/sandbox"
)

// DefaultDir is where `pitcrew sandbox up` keeps its state, and `pitcrew demo --keep` too: one sandbox for each user.
func DefaultDir() string {
	return filepath.Join(os.TempDir(), "pitcrew-sandbox-u"+strconv.Itoa(os.Getuid()))
}

type options struct {
	dir    string
	output string
}

// Command returns `sandbox` with its subcommands.
func Command() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{Use: "sandbox", Short: "Run a GPU cluster in a box: a real control plane, nodes whose pods are local processes",
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if o.output != "text" && o.output != "json" {
				return fmt.Errorf("unknown output %q; text or json", o.output)
			}
			return nil
		}}
	cmd.PersistentFlags().StringVar(&o.dir, "dir", DefaultDir(), "state directory")
	cmd.PersistentFlags().StringVarP(&o.output, "output", "o", "text", "text or json")
	cmd.AddCommand(o.setup(), o.up(), o.down(), o.status(), o.fault(), o.repair(), o.logs())
	return cmd
}

func (o *options) print(w io.Writer, v any, text func(io.Writer)) error {
	if o.output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	text(w)
	return nil
}

func (o *options) up() *cobra.Command {
	var detach, jobset bool
	cmd := &cobra.Command{Use: "up", Args: cobra.NoArgs, Short: "Start the sandbox and keep it until Ctrl-C",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if r, err := sandbox.Connect(o.dir); err == nil {
				st, err := r.Status(ctx)
				if err != nil {
					return err
				}
				return fmt.Errorf("a sandbox is up in %s already (process %d): `pitcrew sandbox down` ends it", o.dir, st.PID)
			}
			if detach {
				return o.detached(ctx, cmd, jobset)
			}
			s, err := sandbox.Up(ctx, sandbox.Options{Dir: o.dir, JobSet: jobset, Progress: cmd.ErrOrStderr()})
			if err != nil {
				return err
			}
			defer os.RemoveAll(o.dir)
			defer s.Stop()
			down, err := s.ServeControl()
			if err != nil {
				return err
			}
			if err := o.print(cmd.OutOrStdout(), s.Status(), func(w io.Writer) { describe(w, s.Status()) }); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
			case <-down:
			}
			return nil
		}}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "return when the sandbox is up, and leave it running")
	cmd.Flags().BoolVar(&jobset, "jobset", false, "also run JobSet's controller")
	return cmd
}

// detached starts this program again in a session of its own and waits until that one answers.
func (o *options) detached(ctx context.Context, cmd *cobra.Command, jobset bool) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	path := strings.Fields(cmd.CommandPath())[1:] // the same subcommand, without the program's name
	args := append(path, "--dir", o.dir, "--jobset="+strconv.FormatBool(jobset), "-o", "json")
	child := exec.Command(exe, args...)
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	log, err := detachedLog{o.dir}.create()
	if err != nil {
		return err
	}
	defer log.Close()
	child.Stdout, child.Stderr = log, log
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		if r, err := sandbox.Connect(o.dir); err == nil {
			st, err := r.Status(ctx)
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), st, func(w io.Writer) { describe(w, st) })
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the sandbox did not start: %v; see %s", err, log.Name())
		case <-ctx.Done():
			_ = child.Process.Signal(syscall.SIGTERM)
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (o *options) down() *cobra.Command {
	return &cobra.Command{Use: "down", Args: cobra.NoArgs, Short: "End the sandbox, also one whose supervisor is gone",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ended := "the sandbox is down"
			if _, err := os.Stat(o.dir); os.IsNotExist(err) {
				ended = "there is no sandbox in " + o.dir
			}
			if r, err := sandbox.Connect(o.dir); err == nil {
				st, err := r.Status(cmd.Context())
				if err != nil {
					return err
				}
				if err := r.Down(cmd.Context()); err != nil {
					return err
				}
				for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline) && syscall.Kill(st.PID, 0) == nil; {
					if _, err := os.Stat(o.dir); os.IsNotExist(err) {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
			if _, err := os.Stat(o.dir); err == nil {
				if err := sandbox.Clean(o.dir); err != nil {
					return err
				}
			}
			detachedLog{o.dir}.remove()
			return o.print(cmd.OutOrStdout(), map[string]any{"dir": o.dir, "down": true}, func(w io.Writer) { fmt.Fprintln(w, ended) })
		}}
}

func (o *options) status() *cobra.Command {
	return &cobra.Command{Use: "status", Args: cobra.NoArgs, Short: "Show nodes, ranks, processes and where the files are",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := sandbox.Connect(o.dir)
			if err != nil {
				return err
			}
			st, err := r.Status(cmd.Context())
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), st, func(w io.Writer) { describe(w, st) })
		}}
}

func (o *options) fault() *cobra.Command {
	f := sandbox.Fault{}
	var kinds []string
	for _, k := range sandbox.AllFaults() {
		kinds = append(kinds, string(k))
	}
	cmd := &cobra.Command{Use: "fault <kind>", Args: cobra.ExactArgs(1), ValidArgs: kinds,
		Short: "Break something: " + strings.Join(kinds, ", "),
		Long:  "Break something where a rank runs (--rank), or on a node (--node, --gpu). For rank-killed and rank-hung, --gpu is the local rank.",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := sandbox.Connect(o.dir)
			if err != nil {
				return err
			}
			f.Kind = sandbox.FaultKind(args[0])
			in, err := r.Fault(cmd.Context(), f)
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), in, func(w io.Writer) {
				fmt.Fprintf(w, "%s on %s, GPU %d (%s, %s)\n", in.Kind, in.Node, in.GPU.Index, in.GPU.PCI, in.GPU.UUID)
			})
		}}
	cmd.Flags().StringVar(&f.Node, "node", "", "the node to break")
	cmd.Flags().IntVar(&f.GPU, "gpu", 0, "its GPU, by index")
	cmd.Flags().IntVar(&f.Rank, "rank", 0, "without --node: the rank whose GPU, process or node to break")
	return cmd
}

func (o *options) repair() *cobra.Command {
	return &cobra.Command{Use: "repair <node>", Args: cobra.ExactArgs(1), Short: "Make a node whole again; a lost one boots",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := sandbox.Connect(o.dir)
			if err != nil {
				return err
			}
			if err := r.Repair(cmd.Context(), args[0]); err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), map[string]any{"node": args[0], "repaired": true}, func(w io.Writer) { fmt.Fprintf(w, "%s is whole again\n", args[0]) })
		}}
}

func (o *options) logs() *cobra.Command {
	return &cobra.Command{Use: "logs [part of a name]", Args: cobra.MaximumNArgs(1), Short: "List the log files, or print those whose name contains a word",
		RunE: func(cmd *cobra.Command, args []string) error {
			root := filepath.Join(o.dir, "logs")
			files := []string{}
			err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
				if err == nil && !d.IsDir() && (len(args) == 0 || strings.Contains(strings.TrimPrefix(path, root), args[0])) {
					files = append(files, path)
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("no sandbox's logs in %s: %w", o.dir, err)
			}
			if len(args) > 0 && len(files) == 0 {
				return fmt.Errorf("no log's name contains %q; `pitcrew sandbox logs` lists them", args[0])
			}
			return o.print(cmd.OutOrStdout(), map[string]any{"files": files}, func(w io.Writer) {
				for _, f := range files {
					fmt.Fprintln(w, f)
					if len(args) == 0 {
						continue
					}
					if in, err := os.Open(f); err == nil {
						_, _ = io.Copy(w, in)
						in.Close()
					}
				}
			})
		}}
}

func describe(w io.Writer, st sandbox.Status) {
	fmt.Fprintf(w, "sandbox in %s\n  export KUBECONFIG=%s\n  logs %s\n\n", st.Dir, st.Kubeconfig, st.Logs)
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tRACK\tADDRESS\tPOWER\tGPUS\tRANKS")
	for _, n := range st.Nodes {
		power := map[bool]string{true: "on", false: "lost"}[n.Up]
		var ranks []string
		for _, r := range st.Ranks {
			if r.Node == n.Name {
				ranks = append(ranks, fmt.Sprintf("%d (pid %d)", r.Rank, r.PID))
			}
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\n", n.Name, n.Rack, n.IP, power, len(n.GPUs), strings.Join(ranks, ", "))
	}
	tw.Flush()
	fmt.Fprintln(w)
	fmt.Fprintln(tw, "PROCESS\tNODE\tPID\tSTATE\tLOG")
	for _, p := range st.Processes {
		state := "running"
		if !p.Running {
			state = fmt.Sprintf("ended with %d", p.Exit)
		}
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\t%s\n", p.Name, cmp.Or(p.Node, "-"), p.PID, state, p.Log)
	}
	tw.Flush()
}
