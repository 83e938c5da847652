package collector

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/featuregate"
	"go.opentelemetry.io/collector/otelcol"
)

//go:embed config/*.yaml config/overlay/*.yaml
var configs embed.FS

// Mode is a place where the collector runs.
type Mode string

// Modes. Without one the collector is the node's agent.
const (
	Agent   Mode = "agent"
	DCGM    Mode = "dcgm"
	Gateway Mode = "gateway"
	Router  Mode = "router"
)

var modes = []struct {
	mode  Mode
	about string
}{
	{Agent, "Run on a node: kernel log, ranks and GPU samples → findings on NATS"},
	{DCGM, "Run beside the agent, in a process of its own: GPU samples from DCGM → the agent's socket"},
	{Gateway, "Run once or a few times a cluster: ranks of whole jobs compared → findings on NATS; metrics for dashboards"},
	{Router, "Run before several gateways: brings all ranks of a job to one of them (builds with the tag gateway)"},
}

// componentStatus lets health_check say how each component is, and not only that the process serves.
const componentStatus = "extension.healthcheck.useComponentStatus"

// GatewayEnv is the address, host:port, of the gateway to which an agent sends its ranks' steps. Empty: to none.
const GatewayEnv = "PITCREW_GATEWAY"

// RulesEnv names the Prometheus rule files, or patterns of them, that a gateway runs; several with commas between. Empty: none.
const RulesEnv = "PITCREW_RULE_FILES"

// ScrapeEnv names the exporters of other makers' accelerators that an agent scrapes: a YAML list of host:port. Empty: none.
const ScrapeEnv = "PITCREW_SCRAPE"

// overlays are parts of a configuration that are there when a variable is.
var overlays = []struct {
	mode      Mode
	env, file string
}{
	{Agent, GatewayEnv, "to-gateway.yaml"},
	{Agent, ScrapeEnv, "accelerators.yaml"},
	{Gateway, RulesEnv, "rules.yaml"},
	{Router, GatewaysEnv, "gateways.yaml"},
}

// OverlayEnv names a YAML file, or holds "yaml:" and a line of YAML, that is laid over the built-in configuration, key by key.
const OverlayEnv = "PITCREW_OVERLAY"

// Config is the built-in configuration of a mode.
func Config(m Mode) (string, error) {
	raw, err := configs.ReadFile("config/" + string(m) + ".yaml")
	if err != nil {
		return "", fmt.Errorf("unknown mode %q (known: agent, dcgm, gateway, router)", m)
	}
	return string(raw), nil
}

// Settings of a collector that runs the mode's configuration.
func Settings(m Mode) (otelcol.CollectorSettings, error) {
	text, err := Config(m)
	if err != nil {
		return otelcol.CollectorSettings{}, err
	}
	if err := featuregate.GlobalRegistry().Set(componentStatus, true); err != nil {
		return otelcol.CollectorSettings{}, err
	}
	uris := []string{"yaml:" + text}
	for _, o := range overlays {
		if m != o.mode || os.Getenv(o.env) == "" {
			continue
		}
		over, err := configs.ReadFile("config/overlay/" + o.file)
		if err != nil {
			return otelcol.CollectorSettings{}, err
		}
		uris = append(uris, "yaml:"+string(over))
	}
	if o := os.Getenv(OverlayEnv); o != "" {
		if !strings.HasPrefix(o, "yaml:") && !strings.HasPrefix(o, "file:") {
			o = "file:" + o
		}
		uris = append(uris, o)
	}
	return otelcol.CollectorSettings{
		Factories:             Factories,
		SkipSettingGRPCLogger: true, // it says every attempt to connect; components say what matters once
		BuildInfo:             component.BuildInfo{Command: "pitcrew-collector", Description: "Pitcrew's OpenTelemetry Collector"},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: uris, DefaultScheme: "env",
			ProviderFactories: []confmap.ProviderFactory{envprovider.NewFactory(), fileprovider.NewFactory(), yamlprovider.NewFactory()},
		}},
	}, nil
}

// Command is pitcrew-collector: a command for each mode, and the collector's own (components, validate, print-config).
// Version is what each of them says it is, and its own telemetry.
func Command(version string) (*cobra.Command, error) {
	root, err := modeCommand(Agent, version)
	if err != nil {
		return nil, err
	}
	root.Short = "Pitcrew's OpenTelemetry Collector; without a command it is the node's agent"
	var errs []error
	for _, m := range modes {
		c, err := modeCommand(m.mode, version)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.Use, c.Short = string(m.mode), m.about
		root.AddCommand(c)
	}
	return root, errors.Join(errs...)
}

func modeCommand(m Mode, version string) (*cobra.Command, error) {
	set, err := Settings(m)
	if err != nil {
		return nil, err
	}
	set.BuildInfo.Version = version
	c := otelcol.NewCommand(set)
	c.SilenceUsage = true
	c.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd == c || cmd.Name() == "validate" { // the others show what this build has
			if err := lacks(m); err != nil {
				return err
			}
		}
		return name()
	}
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if err := Prepare(m); err != nil {
			return err
		}
		defer economise(m)()
		return run(cmd, args)
	}
	return c, nil
}

// lacks says how to get a build that has what a mode is asked for, where this one does not.
func lacks(m Mode) error {
	switch full := len(onDemand().exporters) > 0; {
	case !full && (m == Router || m == Gateway && os.Getenv(RulesEnv) != ""):
		return errors.New("this build has neither the load-balancing exporter nor alert rules: make gateway, or go build -tags grpcnotrace,gateway ./cmd/pitcrew-collector")
	case m == Agent && os.Getenv(ScrapeEnv) != "" && len(scrapers()) == 0:
		return errors.New("this build has no Prometheus receiver: make accelerators, or go build -tags grpcnotrace,accelerators,remove_all_sd ./cmd/pitcrew-collector")
	}
	return nil
}

// sockets are where the agent takes OTLP: from the DCGM process, and from training processes.
func sockets() []string {
	run := os.Getenv("PITCREW_RUN_DIR")
	return []string{filepath.Join(run, "otlp.sock"), filepath.Join(run, "training", "otlp.sock")}
}
