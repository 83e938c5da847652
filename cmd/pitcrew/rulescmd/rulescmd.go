// Package rulescmd is `pitcrew rules` and `pitcrew runbook`: the alerts that Pitcrew ships, their rule files and their pages.
package rulescmd

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/connect"
	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/docs/runbooks"
	"github.com/pitcrew/pitcrew/rules/catalog"
)

// Commands are `pitcrew rules` and `pitcrew runbook`.
func Commands() []*cobra.Command {
	c := &cobra.Command{Use: "rules", Short: "List the alerts that Pitcrew ships, write their Prometheus rule files, and test rule files"}
	c.AddCommand(list(), render(), test())
	return []*cobra.Command{c, runbook()}
}

// Alert is one alert as the commands print it.
type Alert struct {
	ID        string `json:"id"`
	Name      string `json:"alert"`
	Area      string `json:"area"`
	Severity  string `json:"severity"`
	Stability string `json:"stability"`
	Expr      string `json:"expr"`
	For       string `json:"for,omitempty"`
	Meaning   string `json:"meaning"`
	Runbook   string `json:"runbook_url"`
}

func alerts(base string) ([]Alert, error) {
	all, err := catalog.Shipped()
	if err != nil {
		return nil, err
	}
	out := make([]Alert, 0, len(all))
	for i := range all {
		r := &all[i]
		a := Alert{r.ID, r.Alert, r.Area, r.Severity, r.Stability, strings.Join(strings.Fields(r.Expr), " "), "", strings.Join(strings.Fields(r.Meaning), " "), runbooks.URL(base, r.Alert)}
		if r.For > 0 {
			a.For = r.For.String()
		}
		out = append(out, a)
	}
	return out, nil
}

func list() *cobra.Command {
	var o connect.Output
	var area, severity string
	c := &cobra.Command{
		Use: "list", Short: "List the alerts, by area", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return err
			}
			all, err := alerts("")
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(a Alert) bool { return area != "" && a.Area != area || severity != "" && a.Severity != severity })
			if done, err := o.Encode(c.OutOrStdout(), all); done {
				return err
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
			head := "ALERT\tAREA\tSEVERITY\tFOR\tMEANING"
			if o.Wide() {
				head += "\tEXPRESSION"
			}
			fmt.Fprintln(w, head)
			for _, a := range all {
				row := []string{a.Name, a.Area, a.Severity, a.For, sentence(a.Meaning)}
				if o.Wide() {
					row = append(row, a.Expr)
				}
				fmt.Fprintln(w, strings.Join(row, "\t"))
			}
			return w.Flush()
		},
	}
	o.Register(c.Flags())
	c.Flags().StringVar(&area, "area", "", "only alerts of this area, such as thermal")
	c.Flags().StringVar(&severity, "severity", "", "only alerts of this severity: critical, warning, info")
	return c
}

// sentence is the first sentence of a text.
func sentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(first, ".")
}

func render() *cobra.Command {
	var out, base string
	c := &cobra.Command{
		Use: "render --out DIR", Short: "Write the Prometheus rule files: alerts and recordings", Args: cobra.NoArgs,
		Long: `Write the Prometheus rule files: alerts and recordings, as the chart installs them. Existing files of the same names are
overwritten. --runbooks-base-url sets where the alerts lead.`,
		RunE: func(c *cobra.Command, _ []string) error {
			files, err := rendered(base)
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(files)) {
				path := filepath.Join(out, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(path, []byte(files[name]), 0o644); err != nil {
					return err
				}
				fmt.Fprintln(c.OutOrStdout(), path)
			}
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "", "`folder` to write to; it is made if need be")
	c.Flags().StringVar(&base, "runbooks-base-url", "", "`address` below which the runbooks are, such as https://pitcrew.example.com/runbooks/")
	_ = c.MarkFlagRequired("out")
	return c
}

// rendered are the rule files by name. The address of runbooks in them is replaced, as the chart does.
func rendered(base string) (map[string]string, error) {
	records, err := catalog.Shipped()
	if err != nil {
		return nil, err
	}
	recordings, err := catalog.Recordings()
	if err != nil {
		return nil, err
	}
	files := catalog.RuleFiles(records)
	maps.Copy(files, catalog.RecordingFiles(recordings))
	files[catalog.InhibitFile] = catalog.InhibitRules(records)
	for name, text := range files {
		if base != "" {
			files[name] = strings.ReplaceAll(text, runbooks.DefaultBase, strings.TrimSuffix(base, "/")+"/")
		}
		if strings.HasPrefix(name, "tests"+string(filepath.Separator)) {
			delete(files, name)
		}
	}
	return files, nil
}

func runbook() *cobra.Command {
	return &cobra.Command{
		Use: "runbook [NAME]", Short: "Print the runbook of an alert; without a name, list them", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprintln(c.OutOrStdout(), strings.Join(runbooks.Names(), "\n"))
				return err
			}
			return page(c.OutOrStdout(), args[0])
		},
	}
}

// page prints a page by its name in any case, or names those that are meant.
func page(w io.Writer, name string) error {
	var like []string
	for _, n := range runbooks.Names() {
		if strings.EqualFold(n, name) {
			text, err := runbooks.Page(n)
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		}
		if strings.Contains(strings.ToLower(n), strings.ToLower(name)) {
			like = append(like, n)
		}
	}
	meant := "`pitcrew runbook` lists them"
	if len(like) > 0 {
		meant = "did you mean " + strings.Join(like, ", ") + "?"
	}
	return exit.With(exit.NotFound, fmt.Errorf("no runbook %q; %s", name, meant))
}
