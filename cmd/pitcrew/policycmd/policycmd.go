// Package policycmd is `pitcrew policy`: check policy files, explain what they make of an event, simulate them on stored ones, print their schema. It needs no
// cluster and changes nothing; it uses the very parser and judgement that the remediator uses.
package policycmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/event"
	"github.com/pitcrew/pitcrew/remediator/guard"
	"github.com/pitcrew/pitcrew/remediator/policy"
)

// Command is `pitcrew policy`.
func Command() *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "Check policy files and explain what they decide"}
	c.AddCommand(check(), explain(time.Now), simulate(time.Now), schema())
	return c
}

func check() *cobra.Command {
	var output string
	var strict bool
	c := &cobra.Command{
		Use: "check FILE|DIR...", Short: "Read policies as the remediator does and report every fault",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("unknown output %q; text or json", output)
			}
			ps, err := policy.Load(args...)
			doubts := policy.Doubts(ps)
			if output == "json" {
				if err := checked(c.OutOrStdout(), ps, doubts, err); err != nil {
					return err
				}
				return doubted(doubts, strict)
			}
			if err != nil {
				fmt.Fprintln(c.ErrOrStderr(), err)
				return refused(faults(err))
			}
			if len(ps) == 0 {
				fmt.Fprintln(c.OutOrStdout(), "no policy in there; a remediator with these files does nothing")
			}
			for _, p := range ps {
				fmt.Fprintf(c.OutOrStdout(), "%s: policy %s: order %d, mode %s, %s, ok\n", p.File, p.Metadata.Name, p.Spec.Order, p.Spec.Mode, counted(len(p.Spec.Rules), "rule"))
			}
			for _, d := range doubts {
				fmt.Fprintln(c.ErrOrStderr(), "warning: "+d)
			}
			return doubted(doubts, strict)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text, or json: one object with the policies, the faults and the warnings")
	c.Flags().BoolVar(&strict, "strict", false, "fail on warnings too, such as an Xid that no table lists")
	return c
}

func doubted(doubts []string, strict bool) error {
	if !strict || len(doubts) == 0 {
		return nil
	}
	return fmt.Errorf("%s, and --strict", counted(len(doubts), "warning"))
}

// counted is a number with its noun, which takes an s.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// faults are the lines of what Load says, one a fault.
func faults(err error) []string {
	if err == nil {
		return []string{}
	}
	return strings.Split(err.Error(), "\n")
}

func refused(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%s; a remediator would load none of these policies", counted(len(faults), "fault"))
}

// checked is the -o json answer of check.
func checked(w io.Writer, ps []policy.Policy, doubts []string, err error) error {
	type row struct {
		File  string      `json:"file"`
		Name  string      `json:"policy"`
		Order int         `json:"order"`
		Mode  policy.Mode `json:"mode"`
		Rules int         `json:"rules"`
	}
	out := struct {
		Policies []row    `json:"policies"`
		Faults   []string `json:"faults"`
		Warnings []string `json:"warnings"`
	}{[]row{}, faults(err), append([]string{}, doubts...)}
	for _, p := range ps {
		out.Policies = append(out.Policies, row{p.File, p.Metadata.Name, p.Spec.Order, p.Spec.Mode, len(p.Spec.Rules)})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return errors.Join(e.Encode(out), refused(out.Faults))
}

func schema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of a policy, for editors and CI", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b, err := policy.Schema()
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(b)
			return err
		},
	}
}

// facts are what an event does not say and a judgement may look at.
type facts struct {
	Node     policy.Node     `json:"node"`
	Job      policy.Job      `json:"job"`
	Incident policy.Incident `json:"incident"`
}

// explanation is the -o json answer.
type explanation struct {
	policy.Judgement
	// Guards that judge by the facts alone; those that count incidents and nodes need the running remediator.
	Verdicts []guard.Verdict `json:"verdicts,omitempty"`
}

func explain(now func() time.Time) *cobra.Command {
	var eventFile, factsFile, output, mode string
	var paths []string
	c := &cobra.Command{
		Use: "explain --event FILE --policies DIR", Short: "Print the whole judgement of an event: every policy, every rule, and why",
		Long: "Print the whole judgement of an event: every policy, every rule, and why it matched or not.\n\n" +
			"The event is a CloudEvent in JSON, as `pitcrew` publishes it; - reads it from standard input. Facts that an event does not carry\n" +
			"(node, job, incident) come from --facts, a YAML or JSON file with the fields of docs/policy.md; without it they are empty.",
		Example: "  pitcrew policy explain --event xid79.json --policies deploy/policies\n" +
			"  pitcrew policy explain --event - --policies my.yaml --mode enforce -o json < xid79.json",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("unknown output %q; text or json", output)
			}
			ps, err := policy.Load(paths...)
			if err != nil {
				return err
			}
			if mode != "" {
				ps = policy.WithMode(ps, policy.Mode(mode))
				for _, p := range ps {
					if err := p.Validate(); err != nil {
						return fmt.Errorf("--mode: %w", err)
					}
				}
			}
			e, err := readEvent(eventFile, c.InOrStdin())
			if err != nil {
				return err
			}
			f, err := readFacts(factsFile)
			if err != nil {
				return err
			}
			return write(c.OutOrStdout(), output, judge(e, f, ps, now()))
		},
	}
	fl := c.Flags()
	fl.StringVar(&eventFile, "event", "", "file with the event, - for standard input")
	fl.StringSliceVar(&paths, "policies", nil, "policy file or folder; may be given several times")
	fl.StringVar(&factsFile, "facts", "", "file with what is known of node, job and incident")
	fl.StringVar(&mode, "mode", "", "judge as if the policies were in this mode (off, observe, approve, enforce)")
	fl.StringVarP(&output, "output", "o", "text", "text or json")
	for _, f := range []string{"event", "policies"} {
		if err := c.MarkFlagRequired(f); err != nil {
			panic(err)
		}
	}
	return c
}

// readEvent reads one event, bounded by what the bus would carry.
func readEvent(name string, stdin io.Reader) (e event.Event, err error) {
	err = opened("event", name, stdin, func(in io.Reader) error {
		b, err := io.ReadAll(io.LimitReader(in, event.MaxBytes+1))
		if err == nil {
			e, err = event.Decode(b)
		}
		return err
	})
	return e, err
}

func readFacts(name string) (f facts, err error) {
	if name == "" {
		return f, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return f, fmt.Errorf("facts: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(b, &f, yaml.Strict()); err != nil {
		return f, fmt.Errorf("facts %s: %w", name, err)
	}
	return f, nil
}

// judge decides, and asks the guards that need nothing but the facts: hold, opt-in, blackout and the age of the event.
func judge(e event.Event, f facts, ps []policy.Policy, now time.Time) explanation {
	if f.Node.Name == "" {
		f.Node.Name = e.Data.Target.Node
	}
	if j := e.Data.Target.Job; j != nil && f.Job.Name == "" {
		f.Job.APIVersion, f.Job.Kind, f.Job.Namespace, f.Job.Name, f.Job.UID = j.APIVersion, j.Kind, j.Namespace, j.Name, j.UID
	}
	out := explanation{Judgement: policy.Decide(e, f.Node, f.Job, f.Incident, ps)}
	known := map[guard.Name]bool{guard.Hold: true, guard.OptIn: true, guard.Blackout: true, guard.EventAge: true}
	done := map[guard.Name]bool{}
	for _, p := range ps {
		if p.Metadata.Name != out.Policy {
			continue
		}
		for _, s := range out.Steps {
			a := guard.Action{Verb: s.Do, Policy: p, With: s.With, Node: f.Node, Job: f.Job, Disruptive: out.Disruptive(), Seen: e.Time}
			for _, v := range guard.Check(guard.State{}, a, now) {
				if known[v.Guard] && v.Asked && !done[v.Guard] {
					done[v.Guard] = true
					out.Verdicts = append(out.Verdicts, v)
				}
			}
		}
	}
	return out
}

func write(w io.Writer, output string, x explanation) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(x)
	}
	var err error
	say := func(format string, args ...any) {
		_, e := fmt.Fprintf(w, format, args...)
		err = errors.Join(err, e)
	}
	say("%s", x.Judgement)
	if len(x.Verdicts) > 0 {
		say("guards that judge by these facts, now (the others count incidents and nodes of a running cluster)\n")
		for _, v := range x.Verdicts {
			say("         %s\n", v)
		}
	}
	return err
}
