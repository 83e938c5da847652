package collector

import (
	"strings"
	"testing"
)

func TestARouterThatWouldRouteNowhereDoesNotStartAndSaysHowItWould(t *testing.T) {
	for gateways, says := range map[string]string{
		"":                                 "needs to know its gateways",
		"gw-0:4317":                        "a list has brackets",
		"gw-0:4317,gw-1:4317":              "a list has brackets",
		"[]":                               "none is named",
		"[gw-0]":                           "gw-0 is not host:port",
		"[':4317']":                        ":4317 is not host:port",
		"[4317]":                           "4317 is not host:port",
		"[gw-0:4317, gw-0:4317]":           "named twice",
		"[gw-0:4317, 127.0.0.1:4319]":      "the router itself",
		"[gw-0:4317":                       "",
		"[gw-0.gw:4317, '[fe80::1]:4317']": "fine",
	} {
		t.Run(gateways, func(t *testing.T) {
			surround(t, t.TempDir(), "nats://127.0.0.1:1")
			t.Setenv("PITCREW_OTLP", "")
			t.Setenv(GatewaysEnv, gateways)
			err := Prepare(Router)
			if says == "fine" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "PITCREW_GATEWAYS='[gw-0.gw:4317, gw-1.gw:4317]'") {
				t.Errorf("%v, want %q and an example", err, says)
			}
		})
	}
}

func TestAnAgentThatIsToScrapeNobodyItCanReachSaysSo(t *testing.T) {
	for list, says := range map[string]string{"127.0.0.1:8082": "a list has brackets", "[npu-exporter]": "npu-exporter is not host:port", "[127.0.0.1:8082, '[::1]:5000']": ""} {
		surround(t, t.TempDir(), "nats://127.0.0.1:1")
		t.Setenv(ScrapeEnv, list)
		if err := Prepare(Agent); (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "PITCREW_SCRAPE='[127.0.0.1:8082]'")) {
			t.Errorf("%s: %v", list, err)
		}
	}
}

func TestARouterWithAResolverOfItsOwnNeedsNoList(t *testing.T) {
	surround(t, t.TempDir(), "nats://127.0.0.1:1")
	t.Setenv(GatewaysEnv, "")
	t.Setenv(OverlayEnv, "yaml:exporters::loadbalancing::resolver::dns::hostname: localhost")
	if err := Prepare(Router); err != nil {
		t.Error(err)
	}
	if len(onDemand().exporters) > 0 {
		run(t, Router)()
	}
}

func TestAnAgentThatIsGivenARoutersListSaysSo(t *testing.T) {
	surround(t, t.TempDir(), "nats://127.0.0.1:1")
	t.Setenv(GatewaysEnv, "[gw-0:4317]")
	if err := Prepare(Agent); err == nil || !strings.Contains(err.Error(), "PITCREW_GATEWAY=router:4319") {
		t.Error(err)
	}
	t.Setenv(GatewayEnv, "router:4319")
	if err := Prepare(Agent); err != nil {
		t.Error(err)
	}
}
