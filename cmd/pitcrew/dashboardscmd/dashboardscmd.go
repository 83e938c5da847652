// Package dashboardscmd is `pitcrew dashboards`: list and write the Grafana dashboards, and look at them without a Grafana.
package dashboardscmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/cmd/pitcrew/exit"
	"github.com/pitcrew/pitcrew/dashboards"
	"github.com/pitcrew/pitcrew/dashboards/preview"
)

// Command is `pitcrew dashboards`.
func Command() *cobra.Command {
	c := &cobra.Command{Use: "dashboards", Short: "List, write and look at the Grafana dashboards"}
	c.AddCommand(listCommand(), exportCommand(), previewCommand())
	return c
}

func listCommand() *cobra.Command {
	output := "table"
	c := &cobra.Command{
		Use: "list", Short: "List the dashboards", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := dashboards.All()
			if err != nil {
				return err
			}
			w := c.OutOrStdout()
			switch output {
			case "json":
				e := json.NewEncoder(w)
				e.SetIndent("", "  ")
				return e.Encode(all)
			case "table":
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				fmt.Fprintln(tw, "UID\tPANELS\tSHOWS")
				for _, b := range all {
					fmt.Fprintf(tw, "%s\t%d\t%s\n", b.UID, b.Panels, b.Description)
				}
				return tw.Flush()
			}
			return fmt.Errorf("unknown output %q: use table or json", output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", output, "`format`: table or json")
	return c
}

func exportCommand() *cobra.Command {
	dir := ""
	c := &cobra.Command{
		Use: "export [DASHBOARD]...", Short: "Write dashboards as JSON that Grafana imports",
		Example: "  pitcrew dashboards export --dir boards\n  pitcrew dashboards export fleet >fleet.json",
		RunE: func(c *cobra.Command, names []string) error {
			var chosen []dashboards.Board
			for _, name := range names {
				b, err := dashboards.Find(name)
				if err != nil {
					return exit.With(exit.Usage, err)
				}
				chosen = append(chosen, b)
			}
			if dir == "" {
				if len(chosen) != 1 {
					return exit.With(exit.Usage, fmt.Errorf("%d dashboards named: name one, or a folder with --dir; `pitcrew dashboards list` names them", len(chosen)))
				}
				_, err := c.OutOrStdout().Write(chosen[0].JSON)
				return err
			}
			if len(names) == 0 {
				var err error
				if chosen, err = dashboards.All(); err != nil {
					return err
				}
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			for _, b := range chosen {
				if err := os.WriteFile(filepath.Join(dir, b.UID+".json"), b.JSON, 0o644); err != nil {
					return err
				}
			}
			fmt.Fprintf(c.ErrOrStderr(), "wrote %d dashboards to %s\n", len(chosen), dir)
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "`folder` to write to, one file each; without names, all of them")
	return c
}

func previewCommand() *cobra.Command {
	o := preview.Options{Prometheus: "http://127.0.0.1:9090", Scrape: 30 * time.Second}
	listen := "127.0.0.1:7070"
	c := &cobra.Command{
		Use: "preview", Short: "Serve a page that draws the dashboards from a Prometheus", Args: cobra.NoArgs,
		Long: "Serve a page that draws the dashboards from a Prometheus.\n\nIt is not Grafana: it draws the same queries, units, limits and links in its own way. It only reads. Anyone who reaches the page\n" +
			"can query that Prometheus, so it listens on the loopback by default.",
		Example: "  kubectl -n monitoring port-forward svc/prometheus 9090 &\n  pitcrew dashboards preview --prometheus http://127.0.0.1:9090",
		RunE: func(c *cobra.Command, _ []string) error {
			h, err := preview.Handler(o)
			if err != nil {
				return err
			}
			l, err := new(net.ListenConfig).Listen(c.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("%w; choose another address with --listen", err)
			}
			fmt.Fprintf(c.OutOrStdout(), "http://%s\n", l.Addr())
			if err := preview.Reachable(c.Context(), o); err != nil {
				fmt.Fprintf(c.ErrOrStderr(), "warning: Prometheus cannot be queried: %v; panels stay empty until it answers, or start again with --prometheus\n", err)
			}
			return serve(c.Context(), l, h)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Prometheus, "prometheus", o.Prometheus, "`address` of Prometheus, or of what answers as one")
	f.DurationVar(&o.Scrape, "scrape", o.Scrape, "its scrape `interval`; rates are over four of it")
	f.StringVar(&listen, "listen", listen, "`address` to serve on")
	f.StringSliceVar(&o.Hosts, "host", nil, "another host `name` under which a browser reaches the page")
	return c
}

// serve answers until ctx ends, which is no error.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
