// Package anomalycmd is `pitcrew anomaly`: look at the statistical findings that stand, acknowledge, mute and accept them.
package anomalycmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/detector/statement"
	"github.com/pitcrew/pitcrew/event"
)

// Command is `pitcrew anomaly`.
func Command() *cobra.Command {
	var f connect.Flags
	c := &cobra.Command{Use: "anomaly", Aliases: []string{"anomalies"}, Short: "Look at statistical findings; acknowledge, mute or accept them"}
	f.Register(c.PersistentFlags())
	c.AddCommand(list(&f), ack(&f), mute(&f), unmute(&f), accept(&f))
	return c
}

// prefix of the conditions' keys.
const prefix = "anomaly/"

// standing reads the findings of one node, or of all, that are open or accepted.
func standing(ctx context.Context, b *bus.Bus, node string) ([]bus.Condition, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	current := make(chan struct{})
	var all []bus.Condition
	done := make(chan error, 1)
	go func() {
		done <- b.Conditions(ctx, current, func(c bus.Condition) {
			select {
			case <-current: // news after the moment
			default:
				if c.Active && c.Event != nil && strings.HasPrefix(c.Key, prefix) && (node == "" || node == c.Node) {
					all = append(all, c)
				}
			}
		})
	}()
	select {
	case <-current:
		cancel()
		if err := <-done; err != nil {
			return nil, err
		}
	case err := <-done:
		if err == nil {
			err = ctx.Err()
		}
		return nil, err
	}
	slices.SortFunc(all, func(a, b bus.Condition) int {
		return cmp.Or(rank(b).Compare(rank(a)), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Key, b.Key))
	})
	return all, nil
}

// rank orders by onset, as a time, with worse ones later in it.
func rank(c bus.Condition) time.Time {
	t := c.Event.Data.Onset
	if c.Event.Data.Severity.AtLeast(event.Warning) {
		t = t.AddDate(100, 0, 0)
	}
	return t
}

func statements(ctx context.Context, b *bus.Bus, now time.Time) ([]bus.Statement, error) {
	all, err := b.Statements().List(ctx)
	if err != nil {
		return nil, err
	}
	var out []bus.Statement
	for _, c := range all {
		if c.Value.Verb != bus.StateMute || c.Value.Until.After(now) {
			out = append(out, c.Value)
		}
	}
	slices.SortFunc(out, func(a, b bus.Statement) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID(), b.ID())) })
	return out, nil
}

// finding is one line of the list.
type finding struct {
	Node     string      `json:"node"`
	Key      string      `json:"key"`
	Severity string      `json:"severity"`
	State    event.State `json:"state"`
	Onset    time.Time   `json:"onset"`
	Muted    bool        `json:"muted,omitempty"`
	Event    event.Event `json:"-"`
	Raw      event.Data  `json:"finding"`
}

func findings(cs []bus.Condition, said []bus.Statement) []finding {
	out := make([]finding, 0, len(cs))
	for _, c := range cs {
		d := c.Event.Data
		f := finding{Node: c.Node, Key: c.Key, Severity: string(d.Severity), State: d.Evidence.State, Onset: d.Onset, Event: *c.Event, Raw: d}
		f.Muted = slices.ContainsFunc(said, func(s bus.Statement) bool {
			return s.Verb == bus.StateMute && s.Of(c.Node) && statement.Match(s.Key, c.Key)
		})
		out = append(out, f)
	}
	return out
}

func list(f *connect.Flags) *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: "list", Short: "Findings that are open or accepted, worst first, and what people said of them", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.Open(c.Context(), func(ctx context.Context, b *bus.Bus) error {
				cs, err := standing(ctx, b, node)
				if err != nil {
					return err
				}
				said, err := statements(ctx, b, time.Now())
				if err != nil {
					return err
				}
				fs := findings(cs, said)
				said = slices.DeleteFunc(said, func(s bus.Statement) bool { return node != "" && !s.Of(node) })
				if f.JSON() {
					return writeJSON(c.OutOrStdout(), map[string]any{"findings": fs, "statements": nonNil(said)})
				}
				return table(c.OutOrStdout(), fs, said, time.Now())
			})
		},
	}
	c.Flags().StringVar(&node, "node", "", "of this node only")
	return c
}

func nonNil[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func table(out io.Writer, fs []finding, said []bus.Statement, now time.Time) error {
	if len(fs) == 0 {
		fmt.Fprintln(out, "No finding stands.")
	} else {
		w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "NODE\tFINDING\tSEVERITY\tSTATE\tFOR\tGPU-SECONDS LOST\tWHAT")
		for _, f := range fs {
			state := string(f.State)
			if f.Muted {
				state += ", muted"
			}
			what := strings.Join(append([]string{f.Raw.Evidence.Raw}, f.Raw.Evidence.Told...), "; ")
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.0f\t%s\n", f.Node, f.Key, f.Severity, state, now.Sub(f.Onset).Round(time.Second), f.Raw.Evidence.LostGPUSeconds, what)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	mutes := slices.DeleteFunc(slices.Clone(said), func(s bus.Statement) bool { return s.Verb != bus.StateMute })
	if len(mutes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "MUTED\tON\tUNTIL\tBY\tREASON")
	for _, s := range mutes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Key, cmp.Or(s.Node, "all nodes"), s.Until.Format(time.RFC3339), s.By, s.Reason)
	}
	return w.Flush()
}

func who() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

var errNothing = errors.New("no such finding stands; `pitcrew anomaly list` names them")
