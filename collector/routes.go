package collector

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"go.opentelemetry.io/collector/confmap"
)

// GatewaysEnv names the gateways among which a router shares jobs: a YAML list of host:port.
const GatewaysEnv = "PITCREW_GATEWAYS"

const gatewaysExample = GatewaysEnv + "='[gw-0.gw:4317, gw-1.gw:4317]'"

// routes reports what keeps a router from having gateways to route to. Where an overlay may name another resolver, that is for the
// exporter to check.
func routes() error {
	named := os.Getenv(GatewaysEnv)
	if named == "" {
		if os.Getenv(OverlayEnv) != "" {
			return nil
		}
		return fmt.Errorf("a router needs to know its gateways: set %s, or give a resolver (dns or k8s) by %s; a single gateway needs no router", gatewaysExample, OverlayEnv)
	}
	own := cmp.Or(os.Getenv("PITCREW_OTLP"), routerAddress)
	list, err := addresses(GatewaysEnv, gatewaysExample)
	if err == nil && slices.Contains(list, own) {
		err = fmt.Errorf("%s=%q: %s is the router itself; for example %s", GatewaysEnv, named, own, gatewaysExample)
	}
	return err
}

// addresses reads a variable that is a YAML list of host:port. An error says what is wrong with each, and how it is right.
func addresses(env, example string) (out []string, err error) {
	named := os.Getenv(env)
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s=%q: %w; for example %s", env, named, fmt.Errorf(format, args...), example)
	}
	value, err := confmap.NewRetrievedFromYAML([]byte(named))
	if err != nil {
		return nil, wrong("%w", err)
	}
	raw, err := value.AsRaw()
	if err != nil {
		return nil, wrong("%w", err)
	}
	list, ok := raw.([]any)
	if !ok {
		return nil, wrong("not a list; a list has brackets")
	}
	if len(list) == 0 {
		return nil, wrong("none is named")
	}
	var errs []error
	for _, v := range list {
		at, _ := v.(string)
		host, port, err := net.SplitHostPort(at)
		switch {
		case err != nil || host == "" || port == "":
			errs = append(errs, wrong("%v is not host:port", v))
		case slices.Contains(out, at):
			errs = append(errs, wrong("%s is named twice", at))
		}
		out = append(out, at)
	}
	return out, errors.Join(errs...)
}

// routerAddress is where a router listens if nothing else is said (config/router.yaml).
const routerAddress = "127.0.0.1:4319"
