// Command pitcrew-remediator takes findings from NATS and brings jobs back, by written policy.
package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pitcrew/pitcrew/bus"
	"github.com/pitcrew/pitcrew/cmd/version"
	"github.com/pitcrew/pitcrew/remediator"
	"github.com/pitcrew/pitcrew/remediator/steer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pitcrew-remediator:", err)
		stop()
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o remediator.Options
	var verbose bool
	logs := func(c *cobra.Command) {
		level := slog.LevelInfo
		if verbose {
			level = slog.LevelDebug
		}
		o.Log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	}
	c := &cobra.Command{
		Use: "pitcrew-remediator", Short: "Bring jobs back, by written policy", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: version.Of(),
		RunE: func(c *cobra.Command, _ []string) error {
			logs(c)
			if n := o.NATSReplicas; n != 1 && n != 3 && n != 5 {
				return fmt.Errorf("--nats-replicas %d (PITCREW_NATS_REPLICAS): must be 1, 3 or 5, and not more than NATS has servers", n)
			}
			if err := checkPage(&o); err != nil {
				return err
			}
			return remediator.Run(c.Context(), o)
		},
	}
	c.SetVersionTemplate(version.Template)
	f := c.Flags()
	f.StringVar(&o.NATS, "nats", env("PITCREW_NATS", bus.DefaultURL), `address of NATS, or "embedded" (PITCREW_NATS)`)
	f.StringVar(&o.NATSDir, "nats-dir", "pitcrew-bus", "folder of the embedded server's streams")
	f.StringVar(&o.Creds, "creds", env("PITCREW_NATS_CREDS", ""), "NATS credentials file (PITCREW_NATS_CREDS)")
	f.StringVar(&o.TokenFile, "nats-token-file", env("PITCREW_NATS_TOKEN_FILE", ""), "file of a service account's token for NATS (PITCREW_NATS_TOKEN_FILE)")
	f.StringVar(&o.NATSKeys, "nats-keys", env("PITCREW_NATS_KEYS", ""), "`file` of keys, made by pitcrew bus keys, by which this process says who may connect to NATS (PITCREW_NATS_KEYS)")
	f.StringVar(&o.NATSAccount, "nats-account", env("PITCREW_NATS_ACCOUNT", ""), "NATS account that clients are put into; empty: the global one (PITCREW_NATS_ACCOUNT)")
	f.IntVar(&o.NATSReplicas, "nats-replicas", count("PITCREW_NATS_REPLICAS"), "servers of the NATS cluster that keep each stream and bucket: 1, 3 or 5; applies to those that this process creates (PITCREW_NATS_REPLICAS)")
	p := c.PersistentFlags()
	p.StringVar(&o.Cluster, "cluster", env("PITCREW_CLUSTER", bus.DefaultCluster), "name of the cluster (PITCREW_CLUSTER)")
	p.StringVar(&o.Namespace, "namespace", "pitcrew-system", "Pitcrew's own namespace")
	p.StringVar(&o.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig (KUBECONFIG); empty: in-cluster")
	f.StringSliceVar(&o.Policies, "policies", []string{"deploy/policies"}, "policy files or folders; reloaded when they change")
	f.StringVar(&o.Metrics, "metrics", env("PITCREW_METRICS", "127.0.0.1:9401"), "address of /metrics and /healthz; empty: none (PITCREW_METRICS)")
	f.BoolVar(&o.Profiles, "pprof", false, "serve profiles at /debug/pprof on the address of /metrics")
	p.StringVar(&o.Audit, "audit", "", "file of the audit log, one JSON line per write to the cluster")
	f.StringSliceVar(&o.Alertmanagers, "alertmanager", list("PITCREW_ALERTMANAGER"), "address of an Alertmanager for the policy step notify, such as http://alertmanager:9093; repeat it for each of a cluster (PITCREW_ALERTMANAGER)")
	f.StringSliceVar(&o.Webhooks, "webhook", list("PITCREW_WEBHOOK"), "address that gets the policy step notify as CloudEvents; may be repeated (PITCREW_WEBHOOK)")
	f.StringVar(&o.Channels, "channels", env("PITCREW_CHANNELS", ""), "`file` of Slack channels and of webhooks with templates for the policy step notify (PITCREW_CHANNELS)")
	f.DurationVar(&o.Canary, "canary", period("PITCREW_CANARY", time.Minute), "time between canaries, which show that notices arrive; -1s: none (PITCREW_CANARY)")
	f.StringVar(&o.Steer, "steer", env("PITCREW_STEER", ""), "`address` of the webhook that sends replacements to their nodes below Kubernetes 1.36, such as :9443; empty: none (PITCREW_STEER)")
	f.StringVar(&o.SteerCA, "steer-ca", env("PITCREW_STEER_CA", ""), "`directory` with ca.crt and ca.key, by which the webhook makes its certificates (PITCREW_STEER_CA)")
	pageFlags(f, &o)
	f.StringVar(&o.OTLP, "otlp", "", "where one trace per incident goes, OTLP over gRPC: host:4317 without TLS, or with https://; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says, or none")
	f.BoolVar(&o.Elect, "leader-elect", true, "act only while holding the lease")
	f.DurationVar(&o.Lease, "lease", 15*time.Second, "a leader that is silent for so long is replaced; whole seconds")
	p.BoolVarP(&verbose, "verbose", "v", false, "log debug lines")
	c.AddCommand(uninstall(&o, logs), webhookCA(&o))
	return c
}

func uninstall(o *remediator.Options, logs func(*cobra.Command)) *cobra.Command {
	var keepCordons bool
	c := &cobra.Command{
		Use: "uninstall", Short: "Take away what Pitcrew wrote on nodes, on pods and in its namespace; the programs are yours to remove", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			logs(c)
			return remediator.Uninstall(c.Context(), *o, keepCordons, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&keepCordons, "keep-cordons", false, "leave nodes that Pitcrew had cordoned unschedulable")
	return c
}

func webhookCA(o *remediator.Options) *cobra.Command {
	return &cobra.Command{
		Use: "webhook-ca DIR", Short: "Make the authority of the placement webhook: ca.crt and ca.key, good for ten years", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			a, err := steer.NewAuthority(time.Now(), steer.ServiceName(o.Namespace))
			if err != nil {
				return err
			}
			if err := a.Write(args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), base64.StdEncoding.EncodeToString(a.Bundle()))
			return err
		},
	}
}

// count is an environment variable's number: 1 if it is not set, and 0, which no option accepts, if it is not a number.
func count(name string) int {
	v := os.Getenv(name)
	if v == "" {
		return 1
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0
	}
	return n
}

// period is an environment variable's duration, or the other one if it is none.
func period(name string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv(name)); err == nil {
		return d
	}
	return otherwise
}

// list is an environment variable's words, which commas part.
func list(name string) []string {
	if v := os.Getenv(name); v != "" {
		return strings.Split(v, ",")
	}
	return nil
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
