package anomalycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/detector/job"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// plan is what a command is about to do, told before it is done.
type plan struct {
	Statement bus.Statement `json:"statement"`
	Findings  []finding     `json:"findings"` // that stand now and that it is about
	DryRun    bool          `json:"dry_run"`
	Done      bool          `json:"done"`

	Unanswered []string `json:"unanswered,omitempty"` // by gateways, which may hear it later
}

type speech struct {
	verb, effect    string
	node, reason    string
	dry             bool
	lasts           time.Duration // of mute
	mustStand, undo bool
}

func (s *speech) flags(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&s.node, "node", "", "of what is found on this node only; a name that ends in * is a prefix")
	c.Flags().StringVar(&s.reason, "reason", "", "kept, and shown wherever the finding is")
	c.Flags().BoolVar(&s.dry, "dry-run", false, "say what would be done, and do nothing")
	return c
}

const findingArg = " FINDING [SUBJECT]"

const findingHelp = `FINDING is a key as ` + "`pitcrew anomaly list`" + ` shows it, in one or two words: anomaly/sm-clock gpu/GPU-1, or of a gateway
rank/straggler job/UID/rank/5/attempt/0. Either word may be *, or end in one: rank/* job/UID/*. Of what a gateway found it is waited for
until that has heard it, for as long as --wait says; if it does not, what was said is kept for it.`

func ack(f *connect.Flags) *cobra.Command {
	s := &speech{verb: bus.StateAck, effect: "is known; it is not said again when it gets worse", mustStand: true}
	return s.flags(&cobra.Command{
		Use: "ack" + findingArg, Short: "Someone knows: the finding stands and is not said again when it gets worse", Long: findingHelp, Args: cobra.RangeArgs(1, 2), RunE: s.run(f),
	})
}

func accept(f *connect.Flags) *cobra.Command {
	s := &speech{verb: bus.StateAccept, effect: "ends: its present level is the new baseline", mustStand: true}
	return s.flags(&cobra.Command{
		Use: "accept" + findingArg, Short: "The present level is the new baseline; the finding ends without having recovered", Long: findingHelp, Args: cobra.RangeArgs(1, 2), RunE: s.run(f),
	})
}

func mute(f *connect.Flags) *cobra.Command {
	s := &speech{verb: bus.StateMute, effect: "is held back until the mute ends; what still stands then is said"}
	c := s.flags(&cobra.Command{
		Use: "mute" + findingArg + " --for DURATION", Short: "Hold findings back for a while, also ones that do not stand yet", Long: findingHelp, Args: cobra.RangeArgs(1, 2), RunE: s.run(f),
	})
	c.Flags().DurationVar(&s.lasts, "for", 0, "how long, such as 2h; at most 720h")
	_ = c.MarkFlagRequired("for")
	return c
}

func unmute(f *connect.Flags) *cobra.Command {
	s := &speech{verb: bus.StateMute, effect: "is said again", undo: true}
	return s.flags(&cobra.Command{
		Use: "unmute" + findingArg, Short: "End a mute before its time", Long: findingHelp, Args: cobra.RangeArgs(1, 2), RunE: s.run(f),
	})
}

func (s *speech) run(f *connect.Flags) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		now := time.Now().UTC()
		st := bus.Statement{Verb: s.verb, Node: s.node, Key: strings.Join(args, " "), By: connect.Operator(), Reason: s.reason, At: now}
		if s.verb == bus.StateMute && !s.undo {
			st.Until = now.Add(s.lasts)
		}
		if !s.undo {
			if err := st.Validate(); err != nil {
				return err
			}
		}
		if !findable(st.Key) {
			return fmt.Errorf("finding %q: its name begins with %s, or is one of a gateway's (%s), as `pitcrew anomaly list` shows it",
				st.Key, prefix, strings.Join(event.GatewaySignals, ", "))
		}
		return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error { return s.do(ctx, c, f, b, st) })
	}
}

// findable reports whether a pattern can name statistical findings.
func findable(pattern string) bool {
	return strings.HasPrefix(pattern, prefix) || slices.ContainsFunc(event.GatewaySignals, func(name string) bool { return statement.Names(pattern, name) })
}

func (s *speech) do(ctx context.Context, c *cobra.Command, f *connect.Flags, b *bus.Bus, st bus.Statement) error {
	fs, refused, err := standing(ctx, b)
	if err != nil {
		return err
	}
	warn(c.ErrOrStderr(), refused)
	fs = slices.DeleteFunc(fs, func(x finding) bool { return !about(st, x) })
	switch {
	case s.mustStand && len(fs) == 0:
		return fmt.Errorf("%s %q%s: %w", s.verb, st.Key, on(st.Node), errNothing)
	case s.mustStand && !slices.ContainsFunc(fs, func(x finding) bool { return x.levelled(s.verb) }):
		return fmt.Errorf("%s %q%s: %s", s.verb, st.Key, on(st.Node), noLevel)
	}
	for _, x := range fs { // the clock of whoever found it may run ahead of this one's: what stands was found before it is spoken of
		if s.mustStand && x.at.After(st.At) {
			st.At = x.at
		}
	}
	p := plan{Statement: st, Findings: nonNil(fs), DryRun: s.dry}
	if !f.JSON() {
		s.tell(c, p)
	}
	var silent []finding
	if !s.dry {
		if s.undo {
			p.Statement, err = withdraw(ctx, b, st)
		} else {
			err = put(ctx, b, st)
		}
		if err != nil {
			return err
		}
		p.Done = true
		if silent, err = answered(ctx, b, p.Statement, s.undo, fs, f.Wait()); err != nil {
			return err
		}
		for _, x := range silent {
			p.Unanswered = append(p.Unanswered, x.Gateway+" "+x.Key)
		}
	}
	if done, err := f.Encode(c.OutOrStdout(), p); done {
		if err != nil {
			return err
		}
		return unanswered(silent, f.Wait())
	}
	switch {
	case len(silent) > 0:
		return unanswered(silent, f.Wait())
	case p.Done:
		fmt.Fprintln(c.OutOrStdout(), "done")
	default:
		fmt.Fprintln(c.OutOrStdout(), "nothing was done (--dry-run)")
	}
	return nil
}

const noLevel = "it has no level that could be normal; acknowledge it, or mute it for a while"

// levelled reports whether a verb can be said of a finding.
func (f *finding) levelled(verb string) bool {
	return verb != bus.StateAccept || f.Source == agent || job.Levelled(f.Signal)
}

func (s *speech) tell(c *cobra.Command, p plan) {
	out := c.OutOrStdout()
	verb := s.verb
	if s.undo {
		verb = "unmute"
	}
	fmt.Fprintf(out, "%s %s%s", verb, p.Statement.Key, on(p.Statement.Node))
	if !p.Statement.Until.IsZero() {
		fmt.Fprintf(out, " until %s", p.Statement.Until.Format(time.RFC3339))
	}
	fmt.Fprintln(out)
	for _, x := range p.Findings {
		effect := s.effect
		if !x.levelled(s.verb) {
			effect = "stays: " + noLevel
		}
		fmt.Fprintf(out, "  %s  %s (%s, %s) %s\n", cmp.Or(x.Node, "-"), x.Key, x.Severity, x.words(), effect)
	}
	if len(p.Findings) == 0 {
		fmt.Fprintln(out, "  nothing that matches stands now")
	}
}

func on(node string) string {
	if node == "" {
		return " on all nodes"
	}
	return " on node " + node
}

// put writes a statement over an earlier one of the same verb, node and findings.
func put(ctx context.Context, b *bus.Bus, st bus.Statement) error {
	for {
		_, rev, err := b.Statements().Get(ctx, st.ID())
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return err
		}
		if _, err = b.Statements().Put(ctx, st.ID(), st, rev); !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
}

// withdraw takes a mute away, and gives it.
func withdraw(ctx context.Context, b *bus.Bus, st bus.Statement) (bus.Statement, error) {
	was, rev, err := b.Statements().Get(ctx, st.ID())
	if errors.Is(err, bus.ErrNotFound) {
		return st, fmt.Errorf("%q is not muted%s; `pitcrew anomaly list` shows the mutes", st.Key, on(st.Node))
	}
	if err != nil {
		return st, err
	}
	return was, b.Statements().Delete(ctx, st.ID(), rev)
}
