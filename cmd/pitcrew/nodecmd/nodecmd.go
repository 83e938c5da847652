// Package nodecmd is `pitcrew node`: the nodes that Pitcrew has quarantined, and how a person gives one back.
package nodecmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/remediator/cluster"
)

// Quarantined is a node that Pitcrew has quarantined, as the commands print it.
type Quarantined struct {
	Node     string    `json:"node"`
	Incident string    `json:"incident"`
	Since    time.Time `json:"since,omitzero"` // zero if an earlier version quarantined it
	Why      string    `json:"why,omitempty"`
	// FoundCordoned says that somebody else had cordoned the node before: an uncordon leaves that cordon.
	FoundCordoned bool `json:"found_cordoned,omitempty"`
	IncidentOpen  bool `json:"incident_open,omitempty"`
	// Active are the conditions that the node reports now, with their severity. It is only known where Known is set.
	Active []string `json:"active_conditions,omitempty"`
	Known  bool     `json:"conditions_known"`

	boot string
}

type options struct {
	bus        connect.Flags
	kubeconfig string
	nodes      cluster.NodeClient // set by tests
}

// Command is `pitcrew node`.
func Command() *cobra.Command { return command(&options{}) }

func command(o *options) *cobra.Command {
	c := &cobra.Command{Use: "node", Aliases: []string{"nodes"}, Short: "Nodes that Pitcrew has quarantined; give one back; hold one"}
	o.bus.Register(c.PersistentFlags())
	c.PersistentFlags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig (KUBECONFIG); the account needs list and patch on nodes")
	c.AddCommand(o.list(), o.uncordon(), o.hold(), o.release())
	return c
}

func (o *options) client() (cluster.NodeClient, error) {
	if o.nodes != nil {
		return o.nodes, nil
	}
	return cluster.OperatorNodes(o.kubeconfig)
}

func read(n *corev1.Node) (Quarantined, bool) {
	q, why, quarantined := cluster.QuarantineOf(n)
	return Quarantined{Node: q.Node, Incident: q.Incident, Since: q.Since, Why: why, FoundCordoned: q.FoundCordoned, boot: n.Status.NodeInfo.BootID}, quarantined
}

func (o *options) list() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Quarantined nodes: by which incident, since when, why, and what is still active. As text, also nodes on hold", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			nodes, err := o.client()
			if err != nil {
				return err
			}
			found, held := []Quarantined{}, []heldNode{}
			page := metav1.ListOptions{Limit: 500}
			for {
				list, err := nodes.List(c.Context(), page)
				if err != nil {
					return fmt.Errorf("list nodes: %w", err)
				}
				for k := range list.Items {
					if q, quarantined := read(&list.Items[k]); quarantined {
						found = append(found, q)
					}
					if why := cluster.HoldOf(&list.Items[k]); why != "" {
						held = append(held, heldNode{list.Items[k].Name, true, why})
					}
				}
				if page.Continue = list.Continue; page.Continue == "" {
					break
				}
			}
			slices.SortStableFunc(found, func(a, b Quarantined) int { return a.Since.Compare(b.Since) })
			if len(found) > 0 {
				o.enrich(c, found)
			}
			if done, err := o.bus.Encode(c.OutOrStdout(), found); done {
				return err
			}
			if err := table(c.OutOrStdout(), found); err != nil {
				return err
			}
			return holds(c.OutOrStdout(), held)
		},
	}
}

func table(out io.Writer, found []Quarantined) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(out, "No node is quarantined by Pitcrew.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tSINCE (UTC)\tINCIDENT\tACTIVE CONDITIONS\tWHY")
	for _, q := range found {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", q.Node, q.since(), q.incident(), q.active(), q.Why)
	}
	return w.Flush()
}

func (q Quarantined) since() string {
	if q.Since.IsZero() {
		return "unknown"
	}
	return q.Since.UTC().Format(time.DateTime)
}

func (q Quarantined) incident() string {
	if q.IncidentOpen {
		return q.Incident + " (open)"
	}
	return q.Incident
}

func (q Quarantined) active() string {
	switch {
	case !q.Known:
		return "unknown"
	case len(q.Active) == 0:
		return "none"
	}
	return strings.Join(q.Active, ", ")
}

func (o *options) uncordon() *cobra.Command {
	var reason string
	var yes bool
	c := &cobra.Command{
		Use: "uncordon NODE", Short: "Lift Pitcrew's quarantine of a node; a cordon of somebody else stays", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			nodes, err := o.client()
			if err != nil {
				return err
			}
			n, err := nodes.Get(c.Context(), args[0], metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("read node %s: %w", args[0], err)
			}
			q, quarantined := read(n)
			if !quarantined {
				return fmt.Errorf("node %s: %w; `pitcrew node list` names those that are, and kubectl uncordon lifts other cordons", q.Node, cluster.ErrNotQuarantined)
			}
			one := []Quarantined{q}
			o.enrich(c, one)
			plan(c.ErrOrStderr(), one[0])
			if !yes {
				if err := confirm(c, q.Node); err != nil {
					return err
				}
			}
			l := cluster.Lift{Incident: q.Incident, By: connect.Operator(), Reason: reason, At: time.Now().UTC()}
			if err := cluster.LiftQuarantine(c.Context(), nodes, q.Node, l); err != nil {
				return err
			}
			if done, err := o.bus.Encode(c.OutOrStdout(), struct {
				Node          string `json:"node"`
				StaysCordoned bool   `json:"stays_cordoned"`
				cluster.Lift
			}{q.Node, q.FoundCordoned, l}); done {
				return err
			}
			state := "takes pods again"
			if q.FoundCordoned {
				state = "stays cordoned, since somebody else had cordoned it before"
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: quarantine of incident %s lifted; the node %s\n", q.Node, q.Incident, state)
			return err
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "kept with the node and in the log")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// plan says what an uncordon will change, and what speaks against it.
func plan(out io.Writer, q Quarantined) {
	fmt.Fprintf(out, "%s is quarantined by incident %s since %s", q.Node, q.incident(), q.since())
	if q.Why != "" {
		fmt.Fprintf(out, ": %s", q.Why)
	}
	fmt.Fprintf(out, "\n  remove the taint %s=%s and Pitcrew's annotations\n", cluster.TaintQuarantine, q.Incident)
	if q.FoundCordoned {
		fmt.Fprintln(out, "  leave the node cordoned: somebody else had cordoned it before")
	} else {
		fmt.Fprintln(out, "  make the node schedulable")
	}
	fmt.Fprintf(out, "  active conditions: %s\n", q.active())
	if q.IncidentOpen {
		fmt.Fprintln(out, "  its incident is open: it is cancelled if no rank was stopped yet, and does not cordon the node again")
	}
}

var errNotConfirmed = errors.New("not confirmed; nothing was changed (--yes does not ask)")

func confirm(c *cobra.Command, node string) error {
	fmt.Fprintf(c.ErrOrStderr(), "Uncordon %s? [y/N] ", node)
	answer, err := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errNotConfirmed
	}
	return c.Context().Err()
}

// enrich adds what only the bus knows. Without it the commands work all the same, and say what is unknown.
func (o *options) enrich(c *cobra.Command, found []Quarantined) {
	ctx, cancel := context.WithTimeout(c.Context(), 2*o.bus.Wait())
	defer cancel()
	if err := o.fromBus(ctx, found); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "active conditions and incidents are unknown: %v\n", err)
	}
}
