package nodecmd

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// heldNode is what hold and release print with -o json.
type heldNode struct {
	Node   string `json:"node"`
	Held   bool   `json:"held"`
	Reason string `json:"reason,omitempty"`
}

func (o *options) hold() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "hold NODE", Args: cobra.ExactArgs(1),
		Short: "Keep Pitcrew off a node: it does not cordon it, does not move its pods and places nothing on it",
		Long: `Keep Pitcrew off a node: it does not cordon it, does not move its pods and places nothing on it. Incidents about it
wait. It is the annotation ` + cluster.AnnotationHold + `, which also works on a Job, a JobSet and a namespace.`,
		RunE: func(c *cobra.Command, args []string) error {
			by := reason + " (" + connect.Operator() + ")"
			return o.change(c, heldNode{args[0], true, by}, "is on hold: "+by, func(nodes cluster.NodeClient) error {
				return cluster.HoldNode(c.Context(), nodes, args[0], by)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why; shown wherever the hold stops an action")
	_ = c.MarkFlagRequired("reason")
	return c
}

func (o *options) release() *cobra.Command {
	return &cobra.Command{
		Use: "release NODE", Short: "Take the hold off a node", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return o.change(c, heldNode{Node: args[0]}, "is not on hold any more", func(nodes cluster.NodeClient) error {
				return cluster.ReleaseNode(c.Context(), nodes, args[0])
			})
		},
	}
}

// holds prints the nodes on hold below the quarantined ones. Without any, it prints nothing.
func holds(out io.Writer, held []heldNode) error {
	if len(held) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\nON HOLD\tREASON")
	for _, h := range held {
		fmt.Fprintf(w, "%s\t%s\n", h.Node, h.Reason)
	}
	return w.Flush()
}

func (o *options) change(c *cobra.Command, done heldNode, says string, do func(cluster.NodeClient) error) error {
	if err := o.bus.Check(); err != nil {
		return err
	}
	nodes, err := o.client()
	if err != nil {
		return exit.With(exit.Unreachable, err)
	}
	if err := do(nodes); err != nil {
		return err
	}
	if encoded, err := o.bus.Encode(c.OutOrStdout(), done); encoded {
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "%s %s\n", done.Node, says)
	return err
}
