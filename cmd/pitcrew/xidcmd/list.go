package xidcmd

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/rules"
)

func listCommand(o *options) *cobra.Command {
	var sxid bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the known codes",
		Example: "  pitcrew xid list\n  pitcrew xid list --sxid\n  pitcrew xid list -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			t, err := o.tables()
			if err != nil {
				return err
			}
			w := c.OutOrStdout()
			if o.output == "json" {
				if sxid {
					return printJSON(w, t.SXids())
				}
				return printJSON(w, struct {
					XID      []rules.XID      `json:"xid"`
					SXid     []rules.SXid     `json:"sxid"`
					Recovery []rules.Recovery `json:"recovery_actions"`
					Signals  []rules.Signal   `json:"signals"`
				}{t.XIDs(), t.SXids(), t.Recoveries(), t.Signals()})
			}
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			if sxid {
				fmt.Fprintln(tw, "CODE\tFATAL\tADVICE\tBLOCK\tNAME")
				for _, r := range t.SXids() {
					fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\n", r.Code, r.Fatality, r.Advice, r.Block, r.Name)
				}
				return tw.Flush()
			}
			fmt.Fprintln(tw, "CODE\tSEVERITY\tADVICE\tAPP'S FAULT\tCLASS\tNAME")
			for _, r := range t.XIDs() {
				fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\n", r.Code, r.Severity, r.Advice, r.AppCaused, r.Class, r.Name)
			}
			return tw.Flush()
		},
	}
	c.Flags().BoolVar(&sxid, "sxid", false, "list the NVSwitch codes (SXid)")
	return c
}
