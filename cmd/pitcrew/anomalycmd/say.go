package anomalycmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/detector/statement"
)

// plan is what a command is about to do, told before it is done.
type plan struct {
	Statement bus.Statement `json:"statement"`
	Findings  []finding     `json:"findings"` // that stand now and that it is about
	DryRun    bool          `json:"dry_run"`
	Done      bool          `json:"done"`
}

type speech struct {
	verb, effect    string
	node, reason    string
	dry             bool
	lasts           time.Duration // of mute
	mustStand, undo bool
}

func (s *speech) flags(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&s.node, "node", "", "on this node only; a name that ends in * is a prefix")
	c.Flags().StringVar(&s.reason, "reason", "", "kept, and shown wherever the finding is")
	c.Flags().BoolVar(&s.dry, "dry-run", false, "say what would be done, and do nothing")
	return c
}

const findingArg = " FINDING [SUBJECT]"

const findingHelp = `FINDING is a key as ` + "`pitcrew anomaly list`" + ` shows it, in one or two words: anomaly/sm-clock gpu/GPU-1. Either word may be *, or end in one.`

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
		st := bus.Statement{Verb: s.verb, Node: s.node, Key: strings.Join(args, " "), By: who(), Reason: s.reason, At: now}
		if s.verb == bus.StateMute && !s.undo {
			st.Until = now.Add(s.lasts)
		}
		if !s.undo {
			if err := st.Validate(); err != nil {
				return err
			}
		}
		if st.Key != "*" && !strings.HasPrefix(st.Key, prefix) {
			return fmt.Errorf("finding %q: its name begins with %s, as `pitcrew anomaly list` shows it", st.Key, prefix)
		}
		return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error { return s.do(ctx, c, f, b, st) })
	}
}

func (s *speech) do(ctx context.Context, c *cobra.Command, f *connect.Flags, b *bus.Bus, st bus.Statement) error {
	cs, err := standing(ctx, b, "")
	if err != nil {
		return err
	}
	cs = slices.DeleteFunc(cs, func(x bus.Condition) bool { return !st.Of(x.Node) || !statement.Match(st.Key, x.Key) })
	if s.mustStand && len(cs) == 0 {
		return fmt.Errorf("%s %q%s: %w", s.verb, st.Key, on(st.Node), errNothing)
	}
	for _, x := range cs { // a node's clock may run ahead of this one's: what stands began before it is spoken of
		if onset := x.Event.Data.Onset; s.mustStand && onset.After(st.At) {
			st.At = onset
		}
	}
	p := plan{Statement: st, Findings: findings(cs, nil), DryRun: s.dry}
	if !f.JSON() {
		s.tell(c, p)
	}
	if !s.dry {
		if s.undo {
			err = withdraw(ctx, b, st)
		} else {
			err = put(ctx, b, st)
		}
		if err != nil {
			return err
		}
		p.Done = true
	}
	if f.JSON() {
		return writeJSON(c.OutOrStdout(), p)
	}
	if p.Done {
		fmt.Fprintln(c.OutOrStdout(), "done")
	} else {
		fmt.Fprintln(c.OutOrStdout(), "nothing was done (--dry-run)")
	}
	return nil
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
		fmt.Fprintf(out, "  %s  %s (%s, %s) %s\n", x.Node, x.Key, x.Severity, x.State, s.effect)
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

func withdraw(ctx context.Context, b *bus.Bus, st bus.Statement) error {
	_, rev, err := b.Statements().Get(ctx, st.ID())
	if errors.Is(err, bus.ErrNotFound) {
		return fmt.Errorf("%q is not muted%s; `pitcrew anomaly list` shows the mutes", st.Key, on(st.Node))
	}
	if err != nil {
		return err
	}
	return b.Statements().Delete(ctx, st.ID(), rev)
}
