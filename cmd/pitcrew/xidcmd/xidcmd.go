// Package xidcmd is `pitcrew xid`: what an Xid or SXid code means, the table of
// them, and what a kernel log says. It needs no GPU, no cluster and no network.
package xidcmd

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/rules"
)

// Command returns the command for the root to add.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "xid",
		Short: "Explain Xid and SXid codes and read kernel logs",
		Args:  cobra.NoArgs,
	}
	c.PersistentFlags().StringVarP(&o.output, "output", "o", "text", "output `format`: text or json")
	c.PersistentFlags().StringVar(&o.rules, "rules", "", "YAML `file` laid over the built-in tables")
	c.AddCommand(explainCommand(&o), listCommand(&o), parseCommand(&o))
	return c
}

type options struct {
	output string
	rules  string
}

// tables loads the tables and checks the flags that all commands share.
func (o *options) tables() (*rules.Tables, error) {
	if o.output != "text" && o.output != "json" {
		return nil, fmt.Errorf("unknown output %q; text or json", o.output)
	}
	t, err := rules.Builtin()
	if err != nil || o.rules == "" {
		return t, err
	}
	return t.LoadOverride(o.rules)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
