package xidcmd

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/rules"
)

// Codes from 10000 on are NVSwitch codes: the driver numbers them so.
const firstSXid = 10000

func explainCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:     "explain CODE...",
		Short:   "Say what a code means and what to do about it",
		Example: "  pitcrew xid explain 79\n  pitcrew xid explain 149 20034 -o json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := o.tables()
			if err != nil {
				return err
			}
			all := make([]explanation, len(args))
			for i, arg := range args {
				if all[i], err = explain(t, arg); err != nil {
					return err
				}
			}
			w := c.OutOrStdout()
			if o.output == "json" {
				if len(all) == 1 {
					return printJSON(w, all[0])
				}
				return printJSON(w, all)
			}
			for i, e := range all {
				if i > 0 {
					fmt.Fprintln(w)
				}
				if err := e.print(w); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// explanation is all that is known of one code. One of XID and SXid is set.
type explanation struct {
	Kind       string           `json:"kind"`
	XID        *rules.XID       `json:"xid,omitempty"`
	SXid       *rules.SXid      `json:"sxid,omitempty"`
	Subcodes   []rules.NVLink5  `json:"subcodes,omitempty"`
	Recoveries []rules.Recovery `json:"recovery_actions,omitempty"`
}

func explain(t *rules.Tables, arg string) (explanation, error) {
	s := strings.ToLower(arg)
	kind := ""
	for _, k := range []string{"sxid", "xid"} {
		if rest, ok := strings.CutPrefix(s, k); ok {
			kind, s = k, strings.TrimLeft(rest, "/ :-")
			break
		}
	}
	code, err := strconv.Atoi(s)
	if err != nil || code < 0 {
		return explanation{}, fmt.Errorf("%q is no code: give a number such as 79, or sxid/20034", arg)
	}
	if kind == "sxid" || kind == "" && code >= firstSXid {
		r := t.SXid(code)
		return explanation{Kind: "sxid", SXid: &r}, nil
	}
	r := t.XID(code)
	e := explanation{Kind: "xid", XID: &r, Subcodes: t.NVLink5Rules(code)}
	if r.Role == rules.Verdict {
		e.Recoveries = t.Recoveries()
	}
	return e, nil
}

func (e explanation) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(tw, "  %s\t%s\n", name, value)
		}
	}
	if r := e.XID; r != nil {
		fmt.Fprintf(tw, "Xid %d: %s\n", r.Code, r.Name)
		line("driver's name", r.Mnemonic)
		line("class", r.Class)
		line("severity", string(r.Severity))
		line("advice", string(r.Advice))
		line("application's fault", string(r.AppCaused))
		line("in a burst", roleWords[r.Role])
		if r.Clears != 0 {
			line("clears", strconv.Itoa(r.Clears))
		}
		line("NVIDIA's bucket", r.Official)
		line("then", r.OfficialFollowup)
		line("note", r.Note)
		line("sources", strings.Join(r.Sources, "; "))
		line("changed by", overridden(r.Overridden))
	}
	if r := e.SXid; r != nil {
		fmt.Fprintf(tw, "SXid %d: %s\n", r.Code, r.Name)
		line("driver's name", r.Mnemonic)
		line("block", r.Block)
		line("fatal", string(r.Fatality))
		line("advice", string(r.Advice))
		if r.AdviceNonFatal != r.Advice {
			line("advice when non-fatal", string(r.AdviceNonFatal))
		}
		if r.Clears != 0 {
			line("clears", strconv.Itoa(r.Clears))
		}
		line("note", r.Note)
		line("sources", strings.Join(r.Sources, "; "))
		line("changed by", overridden(r.Overridden))
	}
	if len(e.Recoveries) > 0 {
		fmt.Fprintln(tw, "\n  action on the line\tseverity\tadvice\tnote")
		for _, r := range e.Recoveries {
			fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", r.Action, r.Severity, r.Advice, r.Note)
		}
	}
	if len(e.Subcodes) > 0 {
		fmt.Fprintln(tw, "\n  unit\tregister before 575\tregister from 575\tstatus\tseverity\tadvice\tthen")
		for _, r := range e.Subcodes {
			severity, advice := r.Judge()
			fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Unit, r.Before575, r.From575, r.Status(), severity,
				cmp.Or(follow[r.Resolution], string(advice)), r.Investigate)
		}
	}
	return tw.Flush()
}

var follow = map[string]string{rules.ResolveVerdict: "as Xid 154 says"}

var roleWords = map[rules.Role]string{
	rules.Cause:   "a cause: the first one explains the rest",
	rules.Echo:    "an echo: look for the code before it",
	rules.Verdict: "the driver's own recovery action",
	rules.Clear:   "ends a condition",
}

func overridden(yes bool) string {
	if yes {
		return "your rules file"
	}
	return ""
}
